"""Assertions and ranks for tests of sharded models, strategies and backends. docs/testing.md has complete tests.

The pytest plugin of this package gives the fixtures tessera_ranks and tessera_model. Ranks are those of the option "backend"
(TESSERA_BACKEND, --tessera-backend): threads over loopback, and processes over shm and gloo. A call waits as long as its
deadline (TESSERA_TIMEOUT, --tessera-timeout); ranks that do not return fail the test 2 s later.
"""
from __future__ import annotations

import ctypes
import functools
import os
import re
import types
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from . import _abi
from ._library import is_own_file, lib
from ._model import Model, Plan, Settings, count_ranks, load
from ._spawn import is_threaded, spawn
from ._values import Comparison, Values

__all__ = ["Ranks", "assert_collectives", "assert_matches_transformers", "assert_same_bits", "open_model"]
_IDS = 8  # of a prompt that is not given
A = ParamSpec("A")
R = TypeVar("R")


def _find_backend(backend: str | None) -> str:
    return backend or lib.option_get(b"backend").decode()


def _find_deadline() -> float:
    """Returns the seconds in which ranks must return: later than the deadline of a call, whose error names the module."""
    return 1.1 * float(lib.option_get(b"timeout").decode()) + 2


def _hide_frames(function: Callable[A, R]) -> Callable[A, R]:
    """Removes the frames of this package from the tracebacks of a function, which end in the code of a rank then."""
    @functools.wraps(function)
    def call(*args: A.args, **kwargs: A.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            frames, at = [], error.__traceback__
            while at:
                if not is_own_file(at.tb_frame.f_code.co_filename):
                    frames.append(at)
                at = at.tb_next
            trace: types.TracebackType | None = None
            for one in reversed(frames):
                trace = types.TracebackType(trace, one.tb_frame, one.tb_lasti, one.tb_lineno)
            raise error.with_traceback(trace)
    return call


class Ranks:
    """A world of `size` ranks, which calls functions: `with Ranks(3) as world: world.run(lambda g: g.rank)`."""

    def __init__(self, size: int = 2, backend: str | None = None, timeout: float | None = None) -> None:
        self.size = size
        self.backend = _find_backend(backend)
        self.timeout = timeout

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    @_hide_frames
    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Calls function(group, *args) on new ranks, and returns the results in their order.

        The first exception of a rank is raised, with its rank and its traceback. A rank that does not return by the deadline
        raises DeadlineError, whose message says where each rank is.
        """
        from ._group import init

        timeout = _find_deadline() if self.timeout is None else self.timeout
        return spawn(lambda: function(init(), *args, **kwargs), ranks=self.size, backend=self.backend, timeout=timeout)


# ---- models ----------------------------------------------------------------------------------------------------------

class _SpawnedModel:
    """A model whose calls run on new processes: load() would need a backend of threads."""

    def __init__(self, backend: str, arguments: dict[str, Any]) -> None:
        self._ranks = Ranks(arguments.pop("ranks"), backend)
        self._arguments = arguments

    def __enter__(self) -> _SpawnedModel:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def close(self) -> None:
        """Does nothing: the processes have ended."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(Model, name)  # AttributeError: there is no such method
        if isinstance(found, property):
            return self._call(lambda model: getattr(model, name))
        return lambda *args, **kwargs: self._call(lambda model: getattr(model, name)(*args, **kwargs))

    def _call(self, call: Callable[[Any], Any]) -> Any:
        def work(group: Any) -> Any:
            with load(**self._arguments) as model:
                value = call(model)
            return value if group.rank == 0 else None
        return self._ranks.run(work)[0]


def open_model(directory: str | os.PathLike[str], ranks: int | None = None, mesh: str | None = None, plan: Plan = None,
               backend: str | None = None, **options: Any) -> Any:
    """Opens a model as load() does, over any backend. Over processes each call starts them anew, and loads the model."""
    backend = _find_backend(backend)
    ranks = ranks or (count_ranks(mesh.encode()) if mesh else 1)
    if is_threaded(backend):
        return load(directory, ranks, mesh, plan, backend, **options)
    return _SpawnedModel(backend, dict(directory=directory, ranks=ranks, mesh=mesh, plan=plan, **options))


def _describe_plan(plan: Plan) -> str:
    if isinstance(plan, Mapping):
        return "plan {" + ", ".join(f"{pattern}: {style}" for pattern, style in plan.items()) + "}"
    return f"plan {'auto' if plan is None else os.fspath(plan)}"


def _describe_layout(ranks: int, mesh: str | None) -> str:
    return f"{ranks} rank{'s' if ranks != 1 else ''}" + (f", mesh {mesh}," if mesh else "")


# ---- bits ------------------------------------------------------------------------------------------------------------

def _make_ids(vocabulary: int, positions: int, sequence: int = 0) -> list[int]:
    """Makes a prompt, another one for each number of a sequence."""
    n = min(_IDS, positions or _IDS)
    return [1 + (7919 * (i + n * sequence) + 11 * i * i) % (vocabulary - 1) for i in range(n)] if vocabulary > 1 else [0] * n


def _collect(model: Any, batch: Sequence[Sequence[int]], train: bool) -> list[tuple[str, Values]]:
    """Runs a model; returns its values in inference, and in training, with the loss and gradients."""
    model.logits(list(batch[0]))
    found = [("", model.take_values())]
    if train:
        loss, gradients = model.grad([list(one) for one in batch])
        values = model.take_values(train=True)
        if values is not None:
            values.add("loss", np.array([loss]))
            for name in reversed(list(gradients)):
                values.add(name + ".grad", gradients[name])
        found.append((" in training", values))
    return found


def _run(arguments: dict[str, Any], ranks: int, mesh: str | None, backend: str, batch: Any, train: bool) -> list[tuple[str, Values]]:
    """Returns the values of a run, on ranks that are threads or processes."""
    arguments = dict(arguments, values="*", mesh=mesh)
    if is_threaded(backend):
        with load(ranks=ranks, backend=backend, **arguments) as model:
            return _collect(model, batch, train)
    found: list[tuple[str, Values]] = _SpawnedModel(backend, dict(arguments, ranks=ranks))._call(lambda model: _collect(model, batch, train))
    return found


def _sign_files(directory: str) -> tuple[Any, ...]:
    """Returns what changes if a file of a checkpoint does."""
    if not os.path.isdir(directory):
        return ()
    return tuple(sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in os.scandir(directory) if e.is_file()))


@functools.lru_cache(maxsize=4)
def _run_reference(directory: str, signature: Any, ids: tuple[int, ...] | None, sequences: int, train: bool,
                   options: tuple[Any, ...]) -> tuple[list[list[int]], list[tuple[str, Values]]]:
    """Runs the checkpoint on one rank without a plan; returns its batch and its values. Kept for the next assertions."""
    with load(directory, ranks=1, plan="none", backend="loopback", values="*", **dict(options)) as model:
        batch = [list(ids)] * sequences if ids else [_make_ids(model.vocabulary, model.positions, i) for i in range(sequences)]
        return batch, _collect(model, batch, train)


def _show(x: float) -> str:
    """Returns the shortest text that reads as the same float32."""
    return str(np.float32(x)) if float(np.float32(x)) == x or x != x else repr(x)


def _describe_difference(c: Comparison, what: str = "modules") -> str:
    """Returns "first at lm_head (row 2, column 17: 0.5 and 0.25, 31 ulps); 2 of 40 modules differ"."""
    f = c.first
    assert f is not None
    if f.state == "reshaped":
        place = "another shape"
    else:
        on = f" on rank {f.rank}" if f.rank >= 0 else ""
        distance = f", {f.ulps} ulp{'s' if f.ulps != 1 else ''}" if f.ulps >= 0 else ""
        place = f"row {f.row}, column {f.column}{on}: {_show(f.a)} and {_show(f.b)}{distance}"
    style = f", style {f.styles}" if f.styles else ""
    return f"first at {f.name} ({place}){style}; {c.ndifferent} of {c.ncompared} {what} differ"


# ---- collectives -----------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=16)
def _match_module(pattern: str) -> re.Pattern[str]:
    """Returns what matches the names of a pattern and of the modules inside of them; "*" matches one part of a name."""
    text = "[^.]*".join(re.escape(part) for part in pattern.split("*"))
    return re.compile(rf"({text})(\..*)?" if pattern else "().*", re.S)


def _list_modules(explained: Mapping[str, Any]) -> set[str]:
    """Lists the modules that compute, move or have parameters, and those around them."""
    names = {one["module"] for key in ("collectives", "program") for one in explained[key]}
    names |= {one["name"].rpartition(".")[0] for one in explained["parameters"]}
    return {".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2)}


def _describe_collectives(found: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['kind']} of {one['bytes']} bytes at {one['module']}" for one in found) or "none"


def _check_module(name: str, found: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]) -> str | None:
    """Compares the collectives of a module with {kind: count or (count, bytes)}; returns what differs."""
    for kind in sorted({one["kind"] for one in found} | set(expected)):
        want = expected.get(kind, 0)
        count, size = want if isinstance(want, tuple) else (want, None)
        of_kind = [one for one in found if one["kind"] == kind]
        moved = sum(one["bytes"] for one in of_kind)
        if len(of_kind) != count or size not in (None, moved):
            wanted = f"{count} of {size} bytes" if size is not None else str(count)
            return f"{name} makes {len(of_kind)} {kind} of {moved} bytes, not {wanted}; its collectives: {_describe_collectives(found)}"
    return None


@_hide_frames
def assert_collectives(directory: str | os.PathLike[str], plan: Plan, expected: Mapping[str, Mapping[str, int | tuple[int, int]]],
                       ranks: int | None = None, mesh: str | None = None, *, tokens: int = 1, train: bool = False, **options: Any) -> None:
    """Asserts which collectives a step makes, by the explanation of the plan: {module: {kind: count}}; ranks: 2 by default.

    A module ("model.layers.0.mlp"; "": the model) counts the modules inside of it, and "*" stands for one part of a name:
    each match must have the counts. Kinds that are not given must not occur. A count may be (count, bytes), with the sum
    of the bytes of the values over all ranks. tokens: of the step; train: a step of training with `tokens` ids.
    """
    ranks = ranks or (count_ranks(mesh.encode()) if mesh else 2)
    settings = Settings(directory, ranks, mesh, plan, **options)
    explained = settings.explain(True, form="program", tokens=tokens, train=train, batch=1, sequence=tokens)
    names = _list_modules(explained)
    for pattern, counts in expected.items():
        matches = {m[1] for name in names if (m := _match_module(pattern).fullmatch(name))}
        if not matches:
            raise AssertionError(f"{os.fspath(directory)} has no module {pattern}; its modules: {', '.join(sorted(names)[:12])}, ...")
        for name in sorted(matches):
            found = [one for one in explained["collectives"] if not name or f"{one['module']}.".startswith(name + ".")]
            wrong = _check_module(name or "the model", found, counts)
            if wrong:
                raise AssertionError(f"{_describe_plan(plan)} on {_describe_layout(ranks, mesh)}: {wrong}")


@_hide_frames
def assert_same_bits(directory: str | os.PathLike[str], plan: Plan = None, ranks: int | Iterable[int] = (), meshes: Iterable[str] = (),
                     train: bool = False, *, ids: Sequence[int] | None = None, backend: str | None = None, **options: Any) -> None:
    """Asserts that each module has the bits of one rank: with a plan on numbers of ranks, and on meshes ("dp=2,tp=2").

    The bits are those of the modules' outputs for a prompt, and with `train` of a step of training: of outputs, the loss and
    gradients. ids: the prompt; default: 8 ids. options: others of load(), for both runs, except `overrides`, which belong to
    the plan. Without ranks and meshes: 2 ranks.
    """
    runs: list[tuple[int, str | None]] = [(n, None) for n in ([ranks] if isinstance(ranks, int) else ranks)]
    runs += [(count_ranks(mesh.encode()), mesh) for mesh in meshes]
    runs = runs or [(2, None)]
    replicas = [int(n) for _, mesh in runs if mesh for n in re.findall(r"\bdp=(\d+)", mesh)]
    planned = {"directory": directory, "plan": plan, **options}
    options.pop("overrides", None)
    path = os.fspath(directory)
    batch, expected = _run_reference(path, _sign_files(path), tuple(ids) if ids else None, max([1, *replicas]), train,
                                     tuple(sorted(options.items())))
    for n, mesh in runs:
        for (mode, ours), (_, theirs) in zip(_run(planned, n, mesh, _find_backend(backend), batch, train), expected):
            c = ours.compare(theirs, 0)
            if c.first:
                raise AssertionError(f"{_describe_plan(plan)} on {_describe_layout(n, mesh)} differs from one rank{mode} "
                                     f"{_describe_difference(c)}")


# ---- Transformers ----------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=4)
def _record_transformers(directory: str, signature: Any, ids: tuple[int, ...], train: bool) -> Values:
    """Runs a checkpoint with Transformers. Kept for the next assertions."""
    from . import record

    if train:
        import torch  # type: ignore[import-not-found,unused-ignore]

        found = record.record_training(directory, torch.tensor([ids]), torch.tensor([ids]))
    else:
        found = record.record_values(directory, ids)
    values = Values()
    for name, value in found.items():
        values.add(name, value.numpy())
    return values


@_hide_frames
def assert_matches_transformers(directory: str | os.PathLike[str], plan: Plan = None, ranks: int | None = None, mesh: str | None = None,
                                *, train: bool = False, ids: Sequence[int] | None = None, tolerance: float | None = None,
                                backend: str | None = None, **options: Any) -> None:
    """Asserts that the outputs of modules are those of Transformers in float32; ranks: 1 by default.

    train: also the loss and the gradients of a step of training. An element may differ by `tolerance` (1e-5) of the largest
    one of its value. ids: the prompt; default: 8 ids. Skips the test where torch or transformers is not installed.
    """
    from . import record

    try:
        record.import_transformers()
    except record.MissingTransformers as missing:
        raise unittest.SkipTest(f"assert_matches_transformers {missing}") from None
    ranks = ranks or (count_ranks(mesh.encode()) if mesh else 1)
    path = os.fspath(directory)
    if ids is None:
        info = _abi.SessionInfo()
        lib.session_check(os.fsencode(path), b"tp", 1, None, ctypes.byref(info))
        ids = _make_ids(info.vocabulary, info.positions)
    prompt = tuple(ids)
    ours = _run({"directory": directory, "plan": plan, **options}, ranks, mesh, _find_backend(backend), [list(prompt)], train)
    theirs = _record_transformers(path, _sign_files(path), prompt, train)
    c = ours[-1][1].compare(theirs, tolerance)
    if c.first:
        raise AssertionError(f"{_describe_plan(plan)} on {_describe_layout(ranks, mesh)} differs from Transformers{ours[-1][0]} "
                             f"{_describe_difference(c, 'values')}")
