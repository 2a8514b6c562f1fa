"""Groups of ranks and their collectives, and how a rank enters its job: init()."""
from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, TypeVar

import numpy as np

from . import _abi
from ._arrays import Memory, make_array, read_memory
from ._errors import CODES
from ._library import is_own_file, lib, set_options

C = _abi.CONSTANTS
OPS = {name: C["TESS_" + name.upper()] for name in ("sum", "prod", "min", "max", "band", "bor", "bxor")}
X = TypeVar("X")


def _find_caller() -> bytes:
    """Returns the place of the call in the program, "train.py:17", by which errors and hangs name it."""
    frame = sys._getframe(2)
    while frame.f_back and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}".encode()


# ---- Ctrl-C in a rank that is the process ----------------------------------------------------------------------------

class _Interrupter:
    """Fails the job when SIGINT arrives while the main thread waits in the library, which then returns at once.

    Python runs handlers of signals only between its own instructions, but writes their numbers to a descriptor first.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.read, self.write = os.pipe()
        os.set_blocking(self.write, False)
        threading.Thread(target=self.watch, name="tessera-interrupt", daemon=True).start()

    def watch(self) -> None:
        while True:
            signals = os.read(self.read, 64)
            if not signals:
                os.close(self.read)
                return
            if signal.SIGINT in signals and self.world.pointer:
                lib.world_fail(self.world.pointer, CODES["EABORTED"], b"interrupted by Ctrl-C (SIGINT)")

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        before = signal.set_wakeup_fd(self.write, warn_on_full_buffer=False)
        try:
            return function(*arguments)
        finally:
            signal.set_wakeup_fd(before)


# ---- worlds ----------------------------------------------------------------------------------------------------------

class World:
    """A rank's end of a job. `owned`: this process is the rank, and leaves the job at its end."""

    def __init__(self, pointer: int, owned: bool) -> None:
        self.pointer: int | None = pointer
        self.owned = owned
        self.rank: int = lib.world_rank(pointer)
        self.size: int = lib.world_size(pointer)
        self.backend: str = lib.world_backend(pointer).decode()
        self.group = Group(self, lib.world_group(pointer))
        self.at_leave: list[Callable[[], None]] = []  # closes what is open in the world, the newest first
        self._interrupter: _Interrupter | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of the library that waits for other ranks. Ctrl-C ends the wait, and the job."""
        if not self.pointer:
            raise RuntimeError("this rank has left its job")
        if not self.owned or threading.current_thread() is not threading.main_thread():
            return function(*arguments)
        if not self._interrupter:
            self._interrupter = _Interrupter(self)
        return self._interrupter.call(function, *arguments)

    def fail(self, error: BaseException) -> None:
        """Fails the job: the calls of all ranks end with the message of an exception of this rank."""
        if self.pointer:
            lib.world_fail(self.pointer, CODES.get(getattr(error, "status", ""), CODES["EBUG"]), describe_error(error).encode())

    def leave(self) -> None:
        """Closes what is open in the world. The rank makes no call afterwards."""
        while self.at_leave:
            self.at_leave.pop()()
        self.pointer = self.group.pointer = None

    def close(self) -> None:
        """Leaves the job, and waits until all ranks leave it."""
        pointer = self.pointer
        if pointer:
            self.leave()
            with _default_interrupt():
                lib.world_close(pointer)
        if self._interrupter:
            os.close(self._interrupter.write)
            self._interrupter = None


def describe_error(error: BaseException) -> str:
    """Returns "ValueError: no such thing", or the message of the library alone."""
    text = str(error)
    if hasattr(error, "status"):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_thread = threading.local()  # world: of a rank that is a thread
_process: World | None = None


def set_thread_world(world: World | None) -> None:
    """Makes this thread a rank."""
    _thread.world = world


def find_world() -> World | None:
    """Returns the world that this thread is a rank of, or else this process; None: init() has not been called."""
    return getattr(_thread, "world", None) or _process


def find_process_world() -> World | None:
    """Returns the world that this process is a rank of, in any thread; None: there is none."""
    return _process


def _leave_at_exit() -> None:
    """Leaves the job of the process; after an exception that nobody caught, fails it for the other ranks."""
    global _process
    world, _process = _process, None
    if world:
        error = getattr(sys, "last_value", None)
        if error is not None:
            world.fail(error)
        world.close()


def _forget_in_child() -> None:
    global _process
    _process = None
    _thread.__dict__.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def _default_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process while the library enters or leaves a job, which no other call can stop."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _open_world() -> World:
    pointer = ctypes.c_void_p()
    with _default_interrupt():
        lib.world_open(ctypes.byref(pointer))
    assert pointer.value
    return World(pointer.value, True)


def init(backend: str | None = None, timeout: float | None = None) -> Group:
    """Enters the job, once, and returns the group of all its ranks.

    In a function of `spawn`, returns the group of the rank. Else reads the variables of tessera launch, torchrun,
    mpirun or srun; without them, the job has one rank. Blocks until all ranks have entered. `backend` and `timeout`
    (seconds) replace TESSERA_BACKEND and TESSERA_TIMEOUT. The process leaves the job when it ends, or by `shutdown`.
    """
    global _process
    world = find_world()
    if not world:
        set_options(backend=backend, timeout=timeout)
        world = _process = _open_world()
        atexit.unregister(_leave_at_exit)
        atexit.register(_leave_at_exit)
    return world.group


def shutdown() -> None:
    """Leaves the job that init() entered, and waits until all ranks leave it."""
    global _process
    if _process:
        _process.close()
    _process = None


# ---- groups ----------------------------------------------------------------------------------------------------------

class Group:
    """Ranks that communicate, seen from one of them.

    All ranks make the same calls in the same order; if a call differs, every rank raises MismatchError. An array is a
    NumPy array, a tensor with __dlpack__ (torch on CPU), or a writable buffer. It is contiguous, and used without a copy.
    Calls block until they are done on this rank. Errors name the line of the caller, or `where`.
    """

    def __init__(self, world: World, pointer: int, owned: bool = False) -> None:
        self.world = world
        self.pointer: int | None = pointer
        self._owned = owned
        self.rank: int = lib.group_rank(pointer)
        self.size: int = lib.group_size(pointer)
        self.name: str = lib.group_name(pointer).decode()

    def __repr__(self) -> str:
        return f"<tessera.Group {self.name}: rank {self.rank} of {self.size}, {self.world.backend}>"

    @property
    def backend(self) -> str:
        """The name of the backend: "loopback", "gloo", ..."""
        return self.world.backend

    @property
    def ranks(self) -> list[int]:
        """The world rank of each rank of the group."""
        return [lib.group_member(self.pointer, r) for r in range(self.size)]

    def _run(self, kind: str, src: Memory | None, dst: Memory | None, count: int, where: str | None, **fields: Any) -> None:
        one = dst or src
        call = _abi.Coll(kind=C["TESS_" + kind], src=src and src.address, dst=dst and dst.address, count=count,
                         dtype=one.number if one else 0, where=where.encode() if where else _find_caller(), **fields)
        if not self.pointer:
            raise RuntimeError(f"the group {self.name} is closed")
        self.world.call(lib.group_run, self.pointer, ctypes.byref(call))

    def all_reduce(self, x: X, op: str = "sum", where: str | None = None) -> X:
        """Reduces `x` over all ranks in place, and returns it. op: sum, prod, min, max, band, bor or bxor."""
        m = read_memory(x, True)
        self._run("ALL_REDUCE", m, m, m.size, where, op=_find_op(op))
        return x

    def reduce(self, x: X, dst: int = 0, op: str = "sum", where: str | None = None) -> X:
        """Reduces `x` over all ranks in place on rank `dst`; leaves it unchanged on other ranks."""
        m = read_memory(x, self.rank == dst)
        self._run("REDUCE", m, m if self.rank == dst else None, m.size, where, op=_find_op(op), peer=dst)
        return x

    def broadcast(self, x: X, src: int = 0, where: str | None = None) -> X:
        """Copies `x` of rank `src` to `x` of all ranks, and returns it."""
        m = read_memory(x, self.rank != src)
        self._run("BROADCAST", m, m, m.size, where, peer=src)
        return x

    def all_gather(self, x: Any, out: Any = None, where: str | None = None) -> Any:
        """Concatenates `x` of all ranks along its first axis, in the order of ranks, in `out` or a new NumPy array."""
        m = read_memory(x, False)
        out, to = _get_output(out, self._join_shape(m), m)
        self._run("ALL_GATHER", m, to, m.size, where)
        return out

    def gather(self, x: Any, dst: int = 0, out: Any = None, where: str | None = None) -> Any:
        """Concatenates `x` of all ranks along its first axis on rank `dst`, in `out` or a new NumPy array; returns None on others."""
        m = read_memory(x, False)
        to = None
        if self.rank == dst:
            out, to = _get_output(out, self._join_shape(m), m)
        self._run("GATHER", m, to, m.size, where, peer=dst)
        return out if to else None

    def scatter(self, out: X, x: Any = None, src: int = 0, where: str | None = None) -> X:
        """Sends block r of the first axis of `x` of rank `src` to `out` of rank r, and returns `out`."""
        to = read_memory(out, True)
        m = None
        if self.rank == src:
            m = read_memory(x, False)
            if m.dtype != to.dtype or m.size != to.size * self.size or not m.shape or m.shape[0] % self.size:
                raise ValueError(f"scatter: the array is {m.dtype} of shape {list(m.shape)}, but {self.size} ranks take blocks of "
                                 f"{to.dtype} of shape {list(to.shape)}")
        self._run("SCATTER", m, to, to.size, where, peer=src)
        return out

    def reduce_scatter(self, x: Any, op: str = "sum", out: Any = None, where: str | None = None) -> Any:
        """Reduces `x` over all ranks, and returns the part of this rank: block `rank` of equal blocks of the first axis."""
        m = read_memory(x, False)
        out, to = _get_output(out, self._cut_shape(m), m)
        self._run("REDUCE_SCATTER", m, to, to.size, where, op=_find_op(op))
        return out

    def all_to_all(self, x: Any, out: Any = None, send: list[int] | None = None, recv: list[int] | None = None,
                   where: str | None = None) -> Any:
        """Sends block r of the first axis of `x` to rank r, and returns the blocks of all ranks in their order.

        send, recv: the rows of each block, if they are not equal.
        """
        m = read_memory(x, False)
        if (send is None) != (recv is None):
            raise ValueError("all_to_all: give both send= and recv=, or neither")
        if send is None or recv is None:
            self._cut_shape(m)
            out, to = _get_output(out, m.shape, m)
            self._run("ALL_TO_ALL", m, to, m.size // self.size, where)
            return out
        if len(send) != self.size or len(recv) != self.size or not m.shape or sum(send) != m.shape[0]:
            raise ValueError(f"all_to_all: send= and recv= have a number of rows for each of {self.size} ranks, and "
                             f"those of send= add to the {m.shape[0] if m.shape else 0} rows of the array")
        row = m.size // m.shape[0] if m.shape[0] else 0
        out, to = _get_output(out, (sum(recv), *m.shape[1:]), m)
        counts = [(ctypes.c_uint64 * self.size)(*[n * row for n in rows]) for rows in (send, recv)]
        self._run("ALL_TO_ALL", m, to, 0, where, send_counts=counts[0], recv_counts=counts[1])
        return out

    def send(self, x: Any, dst: int, where: str | None = None) -> None:
        """Sends `x` to rank `dst`, which calls recv."""
        m = read_memory(x, False)
        self._run("SEND", m, None, m.size, where, peer=dst)

    def recv(self, x: X, src: int, where: str | None = None) -> X:
        """Receives `x` from rank `src`, in place, and returns it."""
        m = read_memory(x, True)
        self._run("RECV", None, m, m.size, where, peer=src)
        return x

    def barrier(self, where: str | None = None) -> None:
        """Blocks until all ranks of the group have called it."""
        self._run("BARRIER", None, None, 0, where)

    def split(self, color: int | None, key: int = 0, name: str = "split") -> Group | None:
        """Splits the group: ranks of one color form a group, ordered by key, then by rank. None: in no group."""
        out = ctypes.c_void_p()
        self.world.call(lib.group_split, self.pointer, -1 if color is None else color, key, name.encode(), ctypes.byref(out))
        return Group(self.world, out.value, True) if out.value else None

    def close(self) -> None:
        """Leaves a group of split(); without this, the world closes it."""
        if self._owned and self.pointer and self.world.pointer:
            lib.group_close(self.pointer)
            self.pointer = None

    def _join_shape(self, m: Memory) -> tuple[int, ...]:
        return (self.size * m.shape[0], *m.shape[1:]) if m.shape else (self.size,)

    def _cut_shape(self, m: Memory) -> tuple[int, ...]:
        if not m.shape or m.shape[0] % self.size:
            raise ValueError(f"an array of shape {list(m.shape)} has no {self.size} equal blocks along its first axis")
        return (m.shape[0] // self.size, *m.shape[1:])


def _find_op(op: Any) -> int:
    """Returns the number of an operation; accepts torch.distributed.ReduceOp, too."""
    name = str(op).rpartition(".")[2].lower().replace("product", "prod")
    if name not in OPS:
        raise ValueError(f"op={op!r}: use {', '.join(OPS)}")
    return OPS[name]


def _get_output(out: Any, shape: tuple[int, ...], like: Memory) -> tuple[Any, Memory]:
    """Returns `out`, or a new array of `shape`, with its memory."""
    out = make_array(shape, like.dtype) if out is None else out
    to = read_memory(out, True)
    if to.dtype != like.dtype or to.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"out= is {to.dtype} of shape {list(to.shape)}, but the result is {like.dtype} of shape {list(shape)}")
    return out, to
