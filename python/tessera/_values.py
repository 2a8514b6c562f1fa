"""Values of modules that a model keeps, and where those of two runs differ: tessera/values.h."""
from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _abi
from ._arrays import NAMES, make_array, read_memory
from ._library import lib

C = _abi.CONSTANTS
_STATES = {C["TESS_VALUE_" + name.upper()]: name for name in ("equal", "different", "reshaped", "only_first", "only_second")}


@dataclass(frozen=True)
class ValueComparison:
    """How a value differs between two runs. The element is the first that differs; -1: there is none."""

    name: str
    state: str  # "equal", "different", "reshaped", "only_first" or "only_second"
    rank: int  # that holds the element in the first run; -1: unknown, or every rank
    row: int
    column: int
    a: float  # the element in the first run
    b: float
    ulps: int  # steps from a to b among the numbers of float32; -1: one is NaN
    ndifferent: int  # elements
    largest: float  # difference
    styles: str | None  # of the module in the first run, with their files


@dataclass(frozen=True)
class Comparison:
    """A comparison of two lists of values."""

    values: tuple[ValueComparison, ...]
    ncompared: int  # values of both
    ndifferent: int
    first: ValueComparison | None  # the first that differs
    tolerance: float  # 0: of bits


class Values(Mapping[str, np.ndarray]):
    """Named arrays: the outputs of modules in the order in which they end. A mapping, whose arrays are copies.

    They can be pickled, saved as safetensors and compared.
    """

    def __init__(self, pointer: ctypes.c_void_p | None = None) -> None:
        if pointer is None:
            pointer = ctypes.c_void_p()
            lib.values_new(ctypes.byref(pointer))
        self.pointer = pointer
        weakref.finalize(self, lib.values_free, pointer)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Values:
        """Reads all tensors of a safetensors file."""
        pointer = ctypes.c_void_p()
        lib.values_load(os.fsencode(path), ctypes.byref(pointer))
        return cls(pointer)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a safetensors file, as `tessera generate --values` does."""
        lib.values_save(self.pointer, os.fsencode(path))

    def add(self, name: str, array: Any) -> None:
        """Appends a copy of an array."""
        m = read_memory(array, False)
        value = _abi.Value(name=name.encode(), dtype=m.number, ndim=len(m.shape), data=m.address)
        value.shape[:len(m.shape)] = m.shape
        lib.values_add(self.pointer, ctypes.byref(value))

    def _get(self, i: int) -> _abi.Value:
        value = _abi.Value()
        lib.values_get(self.pointer, i, ctypes.byref(value))
        return value

    def __len__(self) -> int:
        return int(lib.values_count(self.pointer))

    def __iter__(self) -> Iterator[str]:
        return (self._get(i).name.decode() for i in range(len(self)))

    def __getitem__(self, name: str) -> np.ndarray:
        i = lib.values_find(self.pointer, name.encode())
        if i < 0:
            raise KeyError(name)
        value = self._get(i)
        found = make_array(tuple(value.shape[:value.ndim]), NAMES[value.dtype])
        ctypes.memmove(found.ctypes.data, value.data, found.nbytes)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
            path = os.path.join(folder, "values")
            self.save(path)
            with open(path, "rb") as file:
                return _unpack, (file.read(),)

    def compare(self, other: Values, tolerance: float | None = None) -> Comparison:
        """Compares values by name, those of this run first.

        tolerance: the difference allowed to elements of a value, as a fraction of its largest one; 0: compares bits; None:
        compares bits if both runs had the same exact arithmetic, and else allows 1e-5.
        """
        found = ctypes.POINTER(_abi.Comparison)()
        lib.values_compare(self.pointer, other.pointer, C["TESS_TOLERANCE_AUTO"] if tolerance is None else tolerance, ctypes.byref(found))
        try:
            c = found.contents
            values = tuple(_read(c.values[i].contents) for i in range(c.nvalues))
            return Comparison(values, c.ncompared, c.ndifferent, values[c.first] if c.first >= 0 else None, c.tolerance)
        finally:
            lib.comparison_free(found)


def _unpack(data: bytes) -> Values:
    with tempfile.NamedTemporaryFile(prefix="tessera-") as file:
        file.write(data)
        file.flush()
        return Values.load(file.name)


def _read(v: _abi.ValueComparison) -> ValueComparison:
    return ValueComparison(v.name.decode(), _STATES[v.state], v.rank, v.row, v.column, v.a, v.b,
                           -1 if v.ulps == 2**64 - 1 else v.ulps, v.ndifferent, v.largest, v.styles and v.styles.decode())
