"""spawn(): results by rank, and failures that name the rank; no process and no file remains (conftest.py)."""
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import tessera
from tessera import _threads

BACKENDS = ["loopback", "shm", "gloo"]


def work(scale):
    group = tessera.init()
    x = np.full(5, group.rank + 1, np.float32)
    group.all_reduce(x, op="sum")
    return float(x[0]) * scale


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_in_the_order_of_ranks(backend):
    assert tessera.spawn(work, args=(2,), ranks=3, backend=backend) == [12.0] * 3
    assert tessera.spawn(lambda: tessera.init().rank, ranks=3, backend=backend) == [0, 1, 2]
    assert tessera.spawn(lambda: tessera.init().backend, ranks=2, backend=backend) == [backend] * 2


def fail_on_rank_1():
    group = tessera.init()
    if group.rank == 1:
        raise KeyError("nope")
    group.barrier()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exception_is_raised_with_its_rank_and_traceback(backend):
    with pytest.raises(KeyError, match="nope") as caught:
        tessera.spawn(fail_on_rank_1, ranks=3, backend=backend)
    assert caught.value.rank == 1 and caught.value.__notes__ == ["raised on rank 1 of 3"]
    traceback = str(caught.value.__cause__) if backend != "loopback" else str(caught.getrepr())
    assert "in fail_on_rank_1" in traceback or "fail_on_rank_1()" in traceback


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_whose_calls_differ(backend):
    with pytest.raises(tessera.MismatchError, match=r"all_reduce of \d f32 \(sum\), call 1, at test_spawn.py:\d+"):
        tessera.spawn(lambda: tessera.init().all_reduce(np.ones(3 + tessera.init().rank, np.float32)), ranks=2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_names_signal_and_rank(backend, number):
    def crash():
        if tessera.init().rank == 1:
            os.kill(os.getpid(), number)
        tessera.init().barrier()

    with pytest.raises(tessera.RankError, match=rf"rank 1 of 3 was ended by signal {number.value} \({number.name}\)"):
        tessera.spawn(crash, ranks=3, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_exits(backend):
    with pytest.raises(tessera.RankError, match="rank 1 of 2: SystemExit: 3"):
        tessera.spawn(lambda: sys.exit(3) if tessera.init().rank else tessera.init().barrier(), ranks=2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hang_ends_at_the_deadline(backend):
    def hang():
        group = tessera.init()
        while group.rank == 1:
            time.sleep(0.01)
        group.barrier()

    start = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        tessera.spawn(hang, ranks=3, backend=backend, timeout=0.5)
    assert time.monotonic() - start < 5
    text = str(caught.value)
    assert "3 of 3 ranks have not returned within 0.5 s" in text
    assert "rank 0 is in barrier at test_spawn.py:" in text and "rank 1 is in test_spawn.py:" in text and "in hang" in text


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_results_that_cannot_be_pickled(backend):
    with pytest.raises(Exception, match="pickle"):
        tessera.spawn(lambda: threading.Lock(), ranks=2, backend=backend)

    class Local(Exception):
        pass

    def fail():
        raise Local("mine")

    with pytest.raises(tessera.RankError, match="Local: mine"):
        tessera.spawn(fail, ranks=2, backend=backend)


def test_a_large_result():
    begin = time.monotonic()
    results = tessera.spawn(lambda: bytes(1 << 26), ranks=2, backend="shm")
    assert [len(one) for one in results] == [1 << 26] * 2
    assert time.monotonic() - begin < 20


def test_a_rank_that_does_not_enter_the_job():
    with pytest.raises(ValueError, match="early"):
        tessera.spawn(lambda: fail_early(int(os.environ["RANK"])), ranks=2, backend="shm")


def fail_early(rank):
    if rank == 1:
        raise ValueError("early")
    tessera.init()


def test_a_fork_while_another_thread_sets_options():
    inside, done = threading.Event(), threading.Event()

    def hold():
        with _threads.use_options(timeout=9):
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        results = tessera.spawn(lambda: tessera.spawn(int, ranks=2, backend="loopback"), ranks=2, backend="shm", timeout=30)
    finally:
        done.set()
        thread.join()
    assert results == [[0, 0]] * 2


def test_arguments():
    with pytest.raises(ValueError, match="mpirun"):
        tessera.spawn(work, args=(1,), ranks=2, backend="mpi")
    with pytest.raises(ValueError, match="ranks=0"):
        tessera.spawn(work, args=(1,), ranks=0)
    with pytest.raises(tessera.NotFoundError, match="no_such"):
        tessera.spawn(work, args=(1,), ranks=2, backend="no_such")
