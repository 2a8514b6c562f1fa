"""Finds libtessera, loads it, and calls it: a failed call is an exception with the library's message."""
from __future__ import annotations

import ctypes
import glob
import os
import threading
from typing import Any, Sequence

from . import _abi, _at_load
from ._errors import make_error

SONAME = "libtessera.so.2"
VERSION = "2.0"  # the versions 2.0.x have these structs and functions

_HERE = os.path.dirname(os.path.abspath(__file__))
_lock = threading.Lock()
_found: ctypes.CDLL | None = None


def is_own_file(path: str) -> bool:
    """Returns whether a source file belongs to this module, not to the program that uses it."""
    return os.path.dirname(path) == _HERE


def list_candidates() -> list[str]:
    """Lists where the library may be, in the order of the search: TESSERA_LIBRARY alone if it is set.

    Then the place in a wheel; the build trees of the sources that this module belongs to; or the lib folders of the
    prefix that this module is installed in, and what the system's loader finds.
    """
    named = os.environ.get("TESSERA_LIBRARY")
    if named:
        return [named]
    found = [os.path.join(_HERE, "_native", "lib", SONAME)]
    source = os.path.dirname(os.path.dirname(_HERE))
    if os.path.exists(os.path.join(source, "meson.build")):
        return found + [os.path.join(source, "build", "release", SONAME)] + sorted(glob.glob(os.path.join(source, "build", "*", SONAME)))
    prefix = _HERE
    while prefix != os.path.dirname(prefix):
        prefix = os.path.dirname(prefix)
        found += sorted(glob.glob(os.path.join(prefix, "lib*", SONAME)) + glob.glob(os.path.join(prefix, "lib*", "*", SONAME)))
    return found + [SONAME]


def find_library() -> str:
    """Returns the path of the library, or its name for the system's loader."""
    candidates = list_candidates()
    for path in candidates[:-1]:
        if os.path.exists(path):
            return path
    return candidates[-1]


def _find_installed(what: str, candidates: Sequence[str]) -> str:
    """Returns the first existing path of `candidates`, which are relative to the folder of the library."""
    library = os.path.realpath(load_library()._name)
    for path in candidates:
        found = os.path.normpath(os.path.join(os.path.dirname(library), path))
        if os.path.exists(found):
            return found
    raise FileNotFoundError(f"no {what} belongs to {library}")


def find_command() -> str:
    """Returns the path of the command `tessera` of the installation or build tree of the library."""
    return _find_installed("command tessera", ["tools/tessera", "../bin/tessera", "../../bin/tessera"])


def get_include() -> str:
    """Returns the folder of the headers tessera/*.h, for plugins and programs in C."""
    header = _find_installed("header", [f"{folder}/include/tessera/tessera.h" for folder in ("..", "../..")])
    return os.path.dirname(os.path.dirname(header))


def get_demo() -> str:
    """Returns the directory of a small checkpoint that comes with Tessera: stories260K, 1 MB."""
    config = _find_installed("checkpoint", ["../data/config.json", "../share/tessera/data/config.json",
                                            "../../share/tessera/data/config.json", "../../data/config.json"])
    return os.path.dirname(config)


def _check_status(status: int, function: Any, arguments: Any) -> int:
    if status < 0:
        assert _found is not None
        raise make_error(status, _found.tess_error().decode(errors="replace"))
    return status


def _open_library() -> ctypes.CDLL:
    path = find_library()
    try:
        found = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"libtessera is not loaded: {error}; searched: {', '.join(list_candidates())}; "
            "set TESSERA_LIBRARY to the path of libtessera.so.2") from None
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(found, name)
        except AttributeError:
            raise ImportError(f"{path}: the library has no {name}; it is older or newer than this module") from None
        function.restype, function.argtypes = ctypes.c_int32 if result is _abi.STATUS else result, arguments
        if result is _abi.STATUS:
            function.errcheck = _check_status
    version = found.tess_version().decode()
    if version.split(".")[:2] != VERSION.split("."):
        raise ImportError(f"{path}: version {version} of the library does not belong to version {VERSION} of the module")
    return found


def load_library() -> ctypes.CDLL:
    """Returns the library, which the first call loads."""
    global _found
    with _lock:
        if _found is None:
            _found = _open_library()
            for use in _at_load:
                use(_found)
        return _found


class _Library:
    """The functions of the library, by their names without tess_."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(load_library(), "tess_" + name)
        setattr(self, name, function)
        return function


lib = _Library()


def fail(status: int, message: str) -> int:
    """Sets the error message of this thread and returns `status`, for a callback that fails."""
    return int(load_library().tess_fail(status, b"%s", ctypes.c_char_p(message.encode())))


def set_options(**options: Any) -> dict[str, str]:
    """Sets options as TESSERA_<NAME> in the environment would; None: unchanged. Returns the values before."""
    before = {}
    for name, value in options.items():
        if value is not None:
            before[name] = lib.option_get(name.encode()).decode()
            lib.option_set(name.encode(), (f"{value:g}" if isinstance(value, float) else str(value)).encode())
    return before


_free = ctypes.CDLL(None).free
_free.restype, _free.argtypes = None, [ctypes.c_void_p]


def take_bytes(text: ctypes.c_void_p, size: int = -1) -> bytes:
    """Copies and frees memory that the library has allocated for the caller; -1: up to its 0."""
    found = ctypes.string_at(text, size)
    _free(text)
    return found


def list_strings(strings: Sequence[str] | None) -> Any:
    """Returns a list of strings that ends with NULL; None: NULL."""
    if strings is None:
        return None
    return (ctypes.c_char_p * (len(strings) + 1))(*[s.encode() for s in strings], None)
