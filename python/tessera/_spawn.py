"""spawn(): runs a function on ranks that are threads, or forked processes, and returns their results."""
from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import re
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Sequence

from . import _group
from ._errors import CODES, ArgumentError, DeadlineError, RankError
from ._library import lib, set_options
from ._threads import ThreadWorld, add_places, blame_rank, describe_place

_GRACE = 2.0  # seconds that ranks have to end after the first failure
_NO_RESULT = "no result in time"
_OUTSIDE = 2  # exit status of a rank that failed before it entered the job, which the others cannot notice
# variables by which launchers make a process a rank
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_",
              "TESSERA_RENDEZVOUS", "TESSERA_PORT", "TESSERA_JOB")
_jobs = 0


def is_threaded(backend: str) -> bool:
    """Returns whether the ranks of a backend are threads: "loopback", "trace:loopback"."""
    return backend.rpartition(":")[2] in ("loopback", "auto")


def spawn(function: Callable[..., Any], args: Sequence[Any] = (), ranks: int = 2, backend: str | None = None, *,
          kwargs: Mapping[str, Any] | None = None, timeout: float | None = None) -> list[Any]:
    """Calls function(*args) on `ranks` ranks, where init() returns the group of the rank. Returns the results by rank.

    Over loopback, ranks are threads of this process; over other backends, they are processes, forked here, whose results
    are pickled. backend: default TESSERA_BACKEND; "auto" is loopback. The first exception of a rank is raised here, with
    the rank as `error.rank`, its traceback, and the rank in a note. timeout: seconds in which all ranks must return, or
    DeadlineError says where each rank is; None: no limit, but that of calls, TESSERA_TIMEOUT.

    Processes that have not ended are killed. Threads cannot be killed: those that do not return are left behind.
    """
    if backend is None:
        backend = lib.option_get(b"backend").decode()
    if ranks < 1:
        raise ValueError(f"spawn: ranks={ranks}: at least 1")
    if backend.rpartition(":")[2] == "mpi":
        raise ArgumentError("spawn: the ranks of the backend mpi are started by mpirun: mpirun -n N python3 program.py, which calls init()", "EINVAL")

    def call() -> Any:
        return function(*args, **(kwargs or {}))

    if is_threaded(backend):
        world = ThreadWorld(ranks, backend="loopback" if backend == "auto" else backend, timeout=_allow_calls(timeout))
        try:
            return world.run(lambda _: call(), timeout=timeout)
        finally:
            world.close()
    return _Processes(call, ranks, backend, timeout).run()


def _allow_calls(timeout: float | None) -> float | None:
    """Returns the time limit of a call: later than that of all ranks, unless TESSERA_TIMEOUT is less."""
    return None if timeout is None else min(timeout + _GRACE, float(lib.option_get(b"timeout").decode()))


# ---- in a process ----------------------------------------------------------------------------------------------------

class _Traceback(Exception):
    """The traceback of a rank, as the cause of its exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _fork() -> int:
    """Forks. Python 3.12 warns if there are other threads; ranks of models wait then, and hold no lock."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_rank(rank: int, size: int, backend: str, timeout: float | None, job: str) -> None:
    """Makes this process a rank of a job on this host."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: ends with its parent
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS):
            del os.environ[name]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size), TESSERA_JOB=job,
                      TESSERA_BACKEND=backend)
    limit = _allow_calls(timeout)
    if limit is not None:
        os.environ["TESSERA_TIMEOUT"] = f"{limit:g}"
    set_options(backend=backend, timeout=limit, job=job, rendezvous="", port="")


def _pack_failure(error: BaseException) -> bytes:
    """Pickles an exception with its time and traceback; one that cannot be pickled becomes a RankError."""
    when, text = time.monotonic_ns(), "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = pickle.dumps(RankError(_group.describe_error(error)))
    return pickle.dumps((b"", when, packed, text))


class _Report:
    """The one message of a rank to its parent."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._sent = False

    def send(self, data: bytes) -> None:
        with self._lock:
            if not self._sent:
                self._sent = True
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view):]

    def answer(self, question: int) -> None:
        """Waits in a thread until the parent closes the pipe `question`, then reports the failure of the job.

        The message of the library names the call and the module of each rank, even if no rank returns from its call.
        """
        main = threading.main_thread().ident
        os.read(question, 1)
        world = _group.find_process_world()
        if world and world.pointer:
            lib.world_fail(world.pointer, CODES["ETIMEOUT"], _NO_RESULT.encode())
            stack = "".join(traceback.format_stack(sys._current_frames()[main])) if main else ""
            error = DeadlineError(lib.error().decode(errors="replace"), "ETIMEOUT")
            self.send(pickle.dumps((b"", time.monotonic_ns(), pickle.dumps(error), stack)))


def _run_rank(call: Callable[[], Any], report: _Report) -> int:
    """Runs the function and reports its result. Returns the exit status."""
    try:
        packed = pickle.dumps((pickle.dumps(call()), 0, b"", ""))
        _group.shutdown()
    except BaseException as error:
        report.send(_pack_failure(error))
        world = _group.find_world()
        if not world:
            return _OUTSIDE
        world.fail(error)
        _group.shutdown()
        return 1
    report.send(packed)
    return 0


# ---- the parent ------------------------------------------------------------------------------------------------------

@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Keeps Ctrl-C until the end of the block. Any thread may receive the signal, so a mask would not do."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    seen: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: seen.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if seen:
            signal.raise_signal(signal.SIGINT)


def _describe_text(text: str, step: int = 1) -> str | None:
    """Returns the place in the program of a stack trace in text; step -1: its last line is the innermost call."""
    frames = re.findall(r'File "(.*)", line (\d+),? in (\S+)', text)
    return describe_place((path, int(line), name) for path, line, name in frames[::step])


class _Child:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.status: int | None = None  # of waitpid
        self.killed = False
        self.data = bytearray()
        self.fd = -1
        self.stack = os.memfd_create(f"tessera-stack-{rank}")

    def reap(self, wait: bool = False) -> bool:
        """Returns whether the process has ended."""
        if self.status is None and self.pid:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None or not self.pid

    def kill(self, number: int) -> None:
        if not self.reap():
            self.killed = self.killed or number == signal.SIGKILL
            os.kill(self.pid, number)

    def describe_end(self, size: int) -> str | None:
        """Returns how a process ended without a report."""
        assert self.status is not None
        if self.data or self.killed:
            return None
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            return f"rank {self.rank} of {size} was ended by signal {number} ({signal.Signals(number).name})"
        return f"rank {self.rank} of {size} has ended with status {os.WEXITSTATUS(self.status)}, and without a result"

    def read_stack(self) -> str | None:
        """Returns where the process is: "all_reduce at train.py:17, in work". It has written its stack."""
        return _describe_text(os.pread(self.stack, 1 << 16, 0).decode(errors="replace"))


class _Processes:
    """The ranks of one spawn()."""

    def __init__(self, call: Callable[[], Any], size: int, backend: str, timeout: float | None) -> None:
        global _jobs
        _jobs += 1
        self.call, self.size, self.backend, self.timeout = call, size, backend, timeout
        self.job = f"python-{os.getpid()}-{_jobs}"
        self.children = [_Child(rank) for rank in range(size)]
        self.stuck: dict[int, str | None] = {}  # places of ranks that have not ended after a failure
        self.question: tuple[int, ...] = os.pipe() if timeout is not None else ()  # closing its write end requests the places of ranks

    def run(self) -> list[Any]:
        try:
            for child in self.children:
                self._start(child)
            self._wait()
            return self._take()
        finally:
            for child in self.children:
                child.kill(signal.SIGKILL)
                child.reap(wait=True)
                for fd in (child.fd, child.stack):
                    if fd >= 0:
                        os.close(fd)
            for fd in self.question:
                os.close(fd)
            self._remove_socket()

    def _remove_socket(self) -> None:
        """Removes the socket of the job, which a killed rank 0 leaves."""
        folder = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"tessera-{os.getuid()}")
        for name in (self.job, self.job + ".lock"):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass

    def _start(self, child: _Child) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with _delay_interrupt():
            child.fd, report = os.pipe()
            try:
                child.pid = _fork()
                if not child.pid:
                    self._run_child(child, parent, report)
            finally:
                os.close(report)

    def _run_child(self, child: _Child, parent: int, report: int) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
            gc.freeze()
            _become_rank(child.rank, self.size, self.backend, self.timeout, self.job)
            if faulthandler.is_enabled():
                faulthandler.enable(2)  # not the descriptor that pytest has kept for a crash of its own
            lib.crash_reports_redirect(2)
            lib.crash_reports_enable()
            faulthandler.register(signal.SIGUSR2, child.stack, all_threads=False)
            to_parent = _Report(report)
            if self.question:
                os.close(self.question[1])
                threading.Thread(target=to_parent.answer, args=self.question[:1], daemon=True).start()
            if os.getppid() == parent:
                status = _run_rank(self.call, to_parent)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _wait(self) -> None:
        """Reads reports until all ranks have ended. After a failure, the others have little time."""
        until = time.monotonic() + self.timeout if self.timeout is not None else None
        failed = False
        while not self._have_ended():
            open_fds = [child.fd for child in self.children if child.fd >= 0]
            ready = select.select(open_fds, [], [], 0.02 if open_fds else 0.001)[0]
            for child in self.children:
                if child.fd in ready:
                    self._read(child)
            bad = [child.status for child in self.children if child.status]
            if bad and not failed:
                outside = any(os.waitstatus_to_exitcode(status) == _OUTSIDE for status in bad)
                failed, until = True, time.monotonic() + (0 if outside else _GRACE)
            if until is not None and time.monotonic() >= until:
                stuck = self._find_places()
                if not failed and not self._ask(stuck):
                    text = "; ".join(f"rank {r} is in {place or 'a state without a stack'}" for r, place in stuck.items())
                    raise DeadlineError(f"{len(stuck)} of {self.size} ranks have not returned within {self.timeout:g} s: {text}", "ETIMEOUT")
                self.stuck = stuck
                return

    def _ask(self, stuck: Mapping[int, str | None]) -> bool:
        """Makes stuck ranks report, by the end of the pipe. Returns whether one reports a failure other than _NO_RESULT."""
        os.close(self.question[1])
        self.question = self.question[:1]
        until = time.monotonic() + 0.5
        ended_late = [self.children[rank] for rank in stuck if self.children[rank].data]
        asked = [self.children[rank] for rank in stuck if not self.children[rank].data]
        while (left := [child.fd for child in asked if not child.data and child.fd >= 0]) and time.monotonic() < until:
            ready = select.select(left, [], [], 0.05)[0]
            for child in asked:
                if child.fd in ready:
                    self._read(child)
        known = [child for child in asked if child.data and _NO_RESULT.encode() not in child.data]
        for child in asked + ended_late:
            if child not in known:
                child.data, child.killed = bytearray(), True
        return bool(known)

    def _have_ended(self) -> bool:
        ended = [child.reap() for child in self.children]
        for child, has_ended in zip(self.children, ended):
            if has_ended:
                self._read_rest(child)
        return all(ended)

    def _read(self, child: _Child) -> None:
        data = os.read(child.fd, 1 << 20)
        child.data += data
        if not data:
            os.close(child.fd)
            child.fd = -1

    def _read_rest(self, child: _Child) -> None:
        """Reads what an ended process has written; its own children may still hold the pipe open."""
        while child.fd >= 0 and select.select([child.fd], [], [], 0)[0]:
            self._read(child)

    def _find_places(self) -> dict[int, str | None]:
        """Returns the place in the program of each rank that has not ended."""
        stuck = [child for child in self.children if not child.reap()]
        for child in stuck:
            child.kill(signal.SIGUSR2)  # writes its stack
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not all(child.read_stack() for child in stuck):
            time.sleep(0.01)
        return {child.rank: child.read_stack() for child in stuck}

    def _take(self) -> list[Any]:
        """Returns the results, or raises the first failure: a process that ended by itself, or else an exception."""
        values: list[bytes] = []
        failures: list[tuple[int, int, bytes, str]] = []
        for child in self.children:
            child.kill(signal.SIGKILL)
            child.reap(wait=True)
            value, when, error, text = pickle.loads(child.data) if child.data else (b"", 0, b"", "")
            values.append(value)
            if error:
                failures.append((when, child.rank, error, text))
        ends = [end for child in self.children if (end := child.describe_end(self.size))]
        failures.sort()
        if ends:
            raised = RankError(ends[0])
            for end in ends[1:]:
                raised.add_note(end)
            if failures:
                raised.add_note(f"rank {failures[0][1]}: {pickle.loads(failures[0][2])}")
            raise raised
        if failures:
            _, rank, packed, text = failures[0]
            error = pickle.loads(packed)
            error.__cause__ = _Traceback(text)
            places = {r: f"has not returned: it is in {place}" for r, place in self.stuck.items() if place}
            if isinstance(error, DeadlineError):
                places.update((r, f"was in {place}") for _, r, _, one in failures if (place := _describe_text(one, -1)))
            add_places(error, places)
            raise blame_rank(error, rank, self.size)
        killed = [str(child.rank) for child in self.children if child.killed]
        if killed:
            raise RankError(f"rank {', '.join(killed)} of {self.size} did not end after another rank failed")
        return [pickle.loads(value) for value in values]
