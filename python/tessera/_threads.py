"""Ranks that are threads of this process: each waits for commands, and all run the same one."""
from __future__ import annotations

import atexit
import ctypes
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from . import _abi
from ._errors import CODES, DeadlineError, Error, RankError
from ._group import World, describe_error, set_thread_world
from ._library import fail, is_own_file, lib, set_options

_GRACE = 1.0  # seconds that a command has to end after Ctrl-C before its ranks are failed
_worlds: weakref.WeakSet[ThreadWorld] = weakref.WeakSet()
_left_behind: list[ThreadWorld] = []  # ranks that did not return may still use this memory
_options_lock = threading.Lock()


def _renew_lock() -> None:
    """Replaces the lock in a forked process: the thread that holds it may not be there."""
    global _options_lock
    _options_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def use_options(**options: Any) -> Iterator[None]:
    """Sets options of the library while worlds and sessions read them, for one user at a time; None: unchanged."""
    with _options_lock:
        before: dict[str, str] = {}
        try:
            before = set_options(**options)
            yield
        finally:
            set_options(**before)


def blame_rank(error: BaseException, rank: int, size: int) -> BaseException:
    """Notes in an exception the rank that raised it, as `error.rank` and in its traceback. Returns the exception.

    One that would end this process, such as SystemExit, becomes a RankError.
    """
    if not isinstance(error, Exception):
        error = RankError(f"rank {rank} of {size}: {describe_error(error)}")
    if getattr(error, "rank", None) is None:
        try:
            error.rank = rank  # type: ignore[attr-defined]
        except AttributeError:
            pass
        if size > 1:
            error.add_note(f"raised on rank {rank} of {size}")
    return error


def describe_place(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """Returns where a rank is in the program: "all_reduce at train.py:17, in work"; None: not in code of the program.

    frames: the file, line and function of each call, the innermost first.
    """
    call = ""
    for path, line, name in frames:
        if not is_own_file(path):
            return f"{call + ' at ' if call else ''}{os.path.basename(path)}:{line}, in {name}"
        call = name
    return None


def describe_frame(frame: Any) -> str | None:
    """Returns where a thread is in the program."""
    return describe_place((one.f_code.co_filename, line, one.f_code.co_name) for one, line in traceback.walk_stack(frame))


def describe_failure(error: BaseException) -> str | None:
    """Returns where in the program an exception was raised."""
    frames = [(one.f_code.co_filename, line, one.f_code.co_name) for one, line in traceback.walk_tb(error.__traceback__)]
    return describe_place(reversed(frames))


def add_places(error: BaseException, places: Mapping[int, str]) -> None:
    """Adds where ranks are or were to an error of the library: "; rank 0 was in barrier at train.py:17, in work"."""
    text = "".join(f"; rank {rank} {place}" for rank, place in sorted(places.items()))
    if isinstance(error, Error):
        error.args = (str(error) + text, error.status)
    elif text:
        error.add_note(text[2:])


class Flag:
    """An event for one waiting thread. An interrupted wait of threading.Event may leave its lock locked."""

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()  # locked until the flag is set
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        try:
            self._lock.release()
        except RuntimeError:  # another thread has set it
            pass

    def wait(self, timeout: float = -1) -> bool:
        """Returns whether the flag is set, at the latest after `timeout` seconds; negative: without a limit."""
        if not self._is_set:
            self._lock.acquire(timeout=timeout)
        return self._is_set


class Command:
    """A function that every rank calls with its world."""

    def __init__(self, size: int, function: Callable[[World], Any], collective: bool) -> None:
        self.function = function
        self.collective = collective
        self.size = size
        self.values: list[Any] = [None] * size
        self.failures: list[tuple[int, int, BaseException]] = []
        self.fatal = False
        self.running = set(range(size))
        self.sent: queue.SimpleQueue[None] = queue.SimpleQueue()  # not empty: the ranks have it
        self.done = Flag()
        self.settled = Flag()  # a rank has failed, or all are done
        self._lock = threading.Lock()

    def run(self, world: World) -> int:
        """Runs the function on one rank. Returns a failure if the job must end."""
        status = 0
        try:
            self.values[world.rank] = self.function(world)
        except BaseException as error:
            self.failures.append((time.monotonic_ns(), world.rank, error))
            self.settled.set()
            if not (self.collective and isinstance(error, Error) and self._meet(world)):
                self.fatal = True
                status = fail(CODES.get(getattr(error, "status", ""), CODES["EBUG"]), describe_error(error))
        with self._lock:
            self.running.discard(world.rank)
            if not self.running:
                self.finish()
        return status

    def finish(self) -> None:
        """Ends the wait for the command."""
        self.done.set()
        self.settled.set()

    def _meet(self, world: World) -> bool:
        """Returns True if all ranks failed alike, so their job can continue."""
        try:
            lib.barrier(world.group.pointer, b"end of a failed call")
        except Error:
            return False
        return True

    def find_first_failure(self) -> tuple[int, BaseException]:
        """Returns the rank that failed first, and its exception."""
        return min(self.failures, key=lambda one: one[:2])[1:]

    def take(self) -> list[Any]:
        """Returns the value of each rank, or raises the first failure."""
        if self.failures:
            rank, error = self.find_first_failure()
            if isinstance(error, DeadlineError):
                add_places(error, {r: f"was in {place}" for _, r, one in self.failures if (place := describe_failure(one))})
            raise blame_rank(error, rank, self.size)
        return self.values


class ThreadWorld:
    """A loopback world of `size` threads. close() ends it; a failed command does so, too."""

    def __init__(self, size: int, **options: Any) -> None:
        self.size = size
        self.interrupted = False  # read by callbacks of commands
        self.worlds: dict[int, World] = {}
        self.threads: dict[int, int] = {}
        self._inboxes: list[queue.SimpleQueue[Command | None]] = [queue.SimpleQueue() for _ in range(size)]
        self._error: BaseException | None = None
        self._command: Command | None = None
        self._turn = threading.Lock()  # all ranks get the commands of several threads in the same order
        self._closed = False
        self._pid = os.getpid()
        self._callback = _abi.RANK_FUNCTION(self._serve)
        _worlds.add(self)
        with use_options(**options):
            lib.version()  # loads the library here, where its errors can be raised
            self._thread = threading.Thread(target=self._host, name="tessera-world", daemon=True)
            self._thread.start()
            self.run(lambda world: None)

    def _host(self) -> None:
        try:
            lib.world_spawn(self.size, self._callback, None)
        except BaseException as error:
            self._error = error
        self._closed = True  # before the look at the command: run() does both in the other order
        command = self._command
        if command:
            command.finish()

    def _serve(self, pointer: int, arg: int) -> int:
        """The function of a rank, in its thread."""
        world = None
        try:
            world = World(pointer, False)
            self.worlds[world.rank] = world
            self.threads[world.rank] = threading.get_ident()
            set_thread_world(world)
            while command := self._inboxes[world.rank].get():
                status = command.run(world)
                del command
                if status:
                    return status
            return 0
        except BaseException as error:  # an asynchronous one, of stop()
            return fail(CODES["EABORTED"], describe_error(error))
        finally:
            set_thread_world(None)
            if world:
                self.threads.pop(world.rank, None)
                world.leave()

    def run(self, function: Callable[[World], Any], collective: bool = False, timeout: float | None = None) -> list[Any]:
        """Calls `function` with the world of each rank, in its thread, and returns the values in the order of ranks.

        Raises the first exception of a rank; the ranks have ended then, unless `collective` and all failed alike.
        """
        if self._pid != os.getpid():
            raise RuntimeError(f"the ranks are threads of process {self._pid}, and a forked process has none: load the model in it")
        with self._turn:
            return self._run(Command(self.size, function, collective), timeout)

    def _run(self, command: Command, timeout: float | None) -> list[Any]:
        self._command = command
        if self._closed:
            self._command = None
            raise self._error or RuntimeError("the ranks have ended")
        try:
            self._send(command)
            self._wait(command, timeout)
        except KeyboardInterrupt:
            if command.sent.empty():
                raise
            self.interrupted = True
            if not command.done.wait(_GRACE if command.collective else 0):
                self.stop(command, "interrupted by Ctrl-C (SIGINT)")
            self.interrupted = False
            raise
        finally:
            self._command = None
        if self._closed and not command.failures:
            self._thread.join(_GRACE)
            raise self._error or RuntimeError("the ranks have ended")
        if command.fatal:
            self.close()
        return command.take()

    def _send(self, command: Command) -> None:
        """Gives the command to all ranks or, at Ctrl-C, to none: no signal is handled during a call of C."""
        queues = [*self._inboxes, command.sent]
        deque(map(queue.SimpleQueue.put, queues, [command] * self.size + [None]), maxlen=0)

    def has_ended(self) -> bool:
        """Returns whether no command can run any more."""
        return self._closed

    def _wait(self, command: Command, timeout: float | None) -> None:
        """Waits until all ranks have returned. With a timeout, the ranks have little time after the first failure."""
        if timeout is None:
            command.done.wait()
        elif not command.settled.wait(timeout):
            self._give_up(command, timeout)
        elif not command.done.wait(_GRACE):
            places = self._find_places(command)
            _, error = command.find_first_failure()
            add_places(error, {r: f"has not returned: it is in {place}" for r, place in places.items() if place})
            self.stop(command, describe_error(error))

    def _find_places(self, command: Command) -> dict[int, str | None]:
        """Returns the place in the program of each rank that has not returned."""
        frames = sys._current_frames()
        return {r: describe_frame(frames[self.threads[r]]) for r in sorted(command.running) if self.threads.get(r) in frames}

    def _give_up(self, command: Command, timeout: float) -> None:
        stuck = self._find_places(command)
        text = "; ".join(f"rank {r} is in {place or 'no code of the program'}" for r, place in stuck.items())
        self.stop(command, f"no result within {timeout:g} s")
        raise DeadlineError(f"{len(stuck)} of {self.size} ranks have not returned within {timeout:g} s: {text}", "ETIMEOUT")

    def stop(self, command: Command, why: str) -> None:
        """Fails the job, and raises KeyboardInterrupt in ranks that run code of their own."""
        world = next(iter(self.worlds.values()), None)
        if world and not self._closed:
            lib.world_fail(world.pointer, CODES["EABORTED"], why.encode())
        if not command.done.wait(_GRACE / 10):
            for rank in command.running & self.threads.keys():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.threads[rank]), ctypes.py_object(KeyboardInterrupt))
        self.close()

    def release(self) -> None:
        """Requests the end of all ranks without waiting for it: the collector may call this in any thread."""
        for inbox in self._inboxes:
            inbox.put(None)

    def close(self) -> None:
        """Ends the ranks, and waits for them. Ranks that do not return are left behind."""
        if self._pid != os.getpid():
            return
        self.release()
        self._thread.join(10 * _GRACE if not self._command else _GRACE)
        if self._thread.is_alive() and self not in _left_behind:
            _left_behind.append(self)


@atexit.register
def _close_worlds() -> None:
    """Ends all ranks before the interpreter, which its threads must not outlive."""
    for world in list(_worlds):
        world.close()
