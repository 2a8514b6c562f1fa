"""Ctrl-C during any call is a KeyboardInterrupt, and an interpreter ends without waiting for its ranks."""
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import tessera
from conftest import list_children

PROGRAMS = {
    # a call of a model that takes long: ends at the next step
    "generate": """
model = tessera.load(DATA, ranks=2)
def start():
    while True:
        model.generate("Once", max_tokens=500, stop=[], temperature=1)
def check():
    assert model.logits([1, 2]).shape[0] == 2  # the model is still usable
""",
    # a rank that computes in Python
    "threads": """
def loop():
    while tessera.init():
        time.sleep(0.001)
def start():
    tessera.spawn(loop, ranks=2, backend="loopback")
def check():
    pass
""",
    # a rank that waits in the library for another one
    "wait": """
def wait():
    group = tessera.init()
    while group.rank:
        time.sleep(0.001)
    group.barrier()
def start():
    tessera.spawn(wait, ranks=2, backend="loopback")
def check():
    pass
""",
    "processes": """
def wait():
    group = tessera.init()
    if group.rank:
        time.sleep(100)
    group.recv(np.empty(1), 1)
def start():
    tessera.spawn(wait, ranks=2, backend="shm")
def check():
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        assert not f.read()
""",
    # the process is a rank, whose main thread waits in the library
    "job": """
os.environ.update(RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", TESSERA_JOB=f"interrupt-{os.getpid()}")
other = os.fork()
if not other:
    os.environ["RANK"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tessera.init()
    time.sleep(100)
    os._exit(0)
group = tessera.init()
def start():
    group.barrier()
def check():
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_interrupts(data, name):
    code = f"import os, signal, sys, time\nimport numpy as np\nimport tessera\nDATA = {data!r}\n{PROGRAMS[name]}\n" + """
print("begin", flush=True)
try:
    start()
    print("returned")
except KeyboardInterrupt:
    check()
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "begin\n"
        time.sleep(0.2)
        program.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = program.communicate(timeout=20)
    assert out == "interrupted\n", err
    assert program.returncode == 0, err
    assert time.monotonic() - start < 5
    if name != "job":
        assert "Traceback" not in err, err


def test_interrupts_at_any_moment(data):
    """All ranks get a command, or none: the model is usable after each interrupt."""
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    model = tessera.load(data, ranks=2)
    want = model.logits([1])
    draw = random.Random(1)
    before = signal.signal(signal.SIGALRM, interrupt)
    for _ in range(200):
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-3))
            while True:
                model.logits([1])
    signal.signal(signal.SIGALRM, before)
    assert (model.logits([1]) == want).all()


def test_an_interrupt_during_a_fork(monkeypatch):
    """Each process is known to its parent when KeyboardInterrupt is raised."""
    fork = os.fork

    def interrupt():
        pid = fork()
        if pid:
            signal.raise_signal(signal.SIGINT)
        return pid

    monkeypatch.setattr(os, "fork", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tessera.spawn(time.sleep, args=(100,), ranks=2, backend="shm")
    assert not list_children()


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "1 / 0", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_the_interpreter_ends_with_open_models(data, end):
    code = f"""
import os, signal, sys, tessera
model = tessera.load({data!r}, ranks=4)
other = tessera.load({data!r}, ranks=2)
model.logits([1])
other.grad([1, 2])
{end}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == {"pass": 0, "sys.exit(3)": 3, "1 / 0": 1}.get(end, -signal.SIGTERM), done.stderr
    assert "ZeroDivisionError" in done.stderr if end == "1 / 0" else not done.stderr
