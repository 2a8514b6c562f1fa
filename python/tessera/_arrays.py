"""Arrays of the caller as memory of the library: NumPy arrays, other buffers, and tensors by DLPack, without a copy."""
from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

from . import _abi

NUMBERS = {
    "float32": _abi.CONSTANTS["TESS_F32"], "float64": _abi.CONSTANTS["TESS_F64"], "bfloat16": _abi.CONSTANTS["TESS_BF16"],
    "float16": _abi.CONSTANTS["TESS_F16"], "int64": _abi.CONSTANTS["TESS_I64"], "int32": _abi.CONSTANTS["TESS_I32"],
    "int8": _abi.CONSTANTS["TESS_I8"], "uint8": _abi.CONSTANTS["TESS_U8"],
}
NAMES = {number: name for name, number in NUMBERS.items()}
WIDTHS = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1}


class Memory(NamedTuple):
    """Contiguous elements in host memory. `owner` keeps them alive."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def number(self) -> int:
        return NUMBERS[self.dtype]


# ---- DLPack: https://dmlc.github.io/dlpack/latest/c_api.html

class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_HOSTS = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


def _read_dlpack(x: Any) -> Memory:
    device = x.__dlpack_device__()[0]
    if device not in _HOSTS:
        raise ValueError(f"the tensor is on device type {int(device)} of DLPack; only host memory is moved: use x.cpu()")
    capsule = x.__dlpack__()  # frees the tensor when it is collected, as nobody has renamed it
    t = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    shape = tuple(t.shape[:t.ndim])
    if t.strides and not _is_contiguous(shape, tuple(t.strides[:t.ndim])) and 0 not in shape:
        raise ValueError(f"the tensor of shape {list(shape)} is not contiguous: use x.contiguous()")
    return Memory((t.data or 0) + t.byte_offset, shape, f"{_KINDS.get(t.code, 'dtype')}{t.bits}", (capsule, x))


def _read_array(x: np.ndarray, writes: bool) -> Memory:
    if not x.flags.c_contiguous or not x.flags.aligned:
        raise ValueError(f"the array of shape {list(x.shape)} is not contiguous: use numpy.ascontiguousarray(x)")
    if writes and not x.flags.writeable:
        raise ValueError("the array is read-only, and the call writes it")
    if x.dtype.byteorder == ">":
        raise ValueError("the array is big-endian: use x.astype(x.dtype.newbyteorder('='))")
    return Memory(x.ctypes.data, x.shape, x.dtype.name, x)


def read_memory(x: Any, writes: bool) -> Memory:
    """Returns the memory of `x`, which the caller must keep while it is used. ValueError, TypeError: it has none."""
    if isinstance(x, np.ndarray):
        found = _read_array(x, writes)
    elif hasattr(x, "__dlpack__"):
        found = _read_dlpack(x)
    else:
        try:
            view = memoryview(x)
        except TypeError:
            raise TypeError(f"{type(x).__name__}: give a NumPy array, a tensor with __dlpack__, or a buffer") from None
        found = _read_array(np.asarray(view), writes)
    if found.dtype not in NUMBERS:
        raise TypeError(f"elements of {found.dtype} are not moved; use {', '.join(NUMBERS)}")
    return found


def make_array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Allocates a NumPy array. TypeError: NumPy has no bfloat16 (pip install ml_dtypes)."""
    if dtype != "bfloat16":
        return np.empty(shape, dtype)
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise TypeError("NumPy has no bfloat16: give out=, or install ml_dtypes") from None
    return np.empty(shape, ml_dtypes.bfloat16)
