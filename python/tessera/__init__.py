"""Tessera: sharded models, sharding strategies and collectives over any number of ranks, from Python.

Names load on their first use, so that `import tessera` and the command cost milliseconds. docs/python.md is a tour.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "2.0.0"

_at_load: list[Any] = []  # functions that get the library when it is loaded: the pytest plugin has one

_NAMES = {
    "_dtensor": ["DTensor", "DeviceMesh", "distribute_tensor", "init_device_mesh"],
    "_errors": ["Error", "ArgumentError", "DeadlineError", "MismatchError", "NotFoundError", "OutOfMemoryError", "PeerError",
                "RankError", "UnsupportedError"],
    "_group": ["Group", "init", "shutdown"],
    "_library": ["get_demo", "get_include"],
    "_model": ["Model", "load"],
    "_placement": ["Partial", "Placement", "Replicate", "Shard"],
    "_spawn": ["spawn"],
    "_style": ["register_style"],
    "_values": ["Values"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)

if TYPE_CHECKING:
    from ._dtensor import DTensor, DeviceMesh, distribute_tensor, init_device_mesh
    from ._errors import (ArgumentError, DeadlineError, Error, MismatchError, NotFoundError, OutOfMemoryError, PeerError, RankError,
                          UnsupportedError)
    from ._group import Group, init, shutdown
    from ._library import get_demo, get_include
    from ._model import Model, load
    from ._placement import Partial, Placement, Replicate, Shard
    from ._spawn import spawn
    from ._style import register_style
    from ._values import Values


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module(".testing", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
