"""Distributed tensors: arrays of which each rank of a mesh holds a part, with the words of torch.distributed.tensor."""
from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence, Union

import numpy as np

from . import _abi
from ._arrays import NUMBERS, WIDTHS, Memory, make_array, read_memory
from ._group import Group, World, find_world, init
from ._library import lib
from ._placement import Placement, Replicate, make_place, read_place

Parts = Mapping[int, Sequence[Union[int, tuple[int, int]]]]


class DeviceMesh:
    """The ranks of the job, laid out in named dimensions, of which the last varies fastest. Opening it is collective.

    DeviceMesh((2, 4), ("dp", "tp")), or as in torch DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp")), where `ranks`
    is the array of ranks in their order.
    """

    def __init__(self, *arguments: Any, mesh_dim_names: Sequence[str] | None = None) -> None:
        if arguments and isinstance(arguments[0], str):
            arguments = (_get_shape(arguments[1]), *arguments[2:])
        if not 1 <= len(arguments) <= 2:
            raise TypeError("DeviceMesh: give a shape and the names of its dimensions")
        self.shape = tuple(int(n) for n in arguments[0])
        names = arguments[1] if len(arguments) > 1 else mesh_dim_names
        self.mesh_dim_names = tuple(names) if names else tuple(f"dim{i}" for i in range(len(self.shape)))
        if len(self.mesh_dim_names) != len(self.shape):
            raise ValueError(f"DeviceMesh: {len(self.shape)} dimensions, but names {self.mesh_dim_names}")
        init()
        world = find_world()
        assert world
        self.world: World = world
        self.pointer: Any = ctypes.c_void_p()
        world.call(lib.mesh_open, world.pointer, str(self).encode(), ctypes.byref(self.pointer))
        world.at_leave.append(self.close)

    def __str__(self) -> str:
        return ",".join(f"{name}={n}" for name, n in zip(self.mesh_dim_names, self.shape))

    def __repr__(self) -> str:
        return f"DeviceMesh({self.shape}, {self.mesh_dim_names})"

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> int:
        """Returns the number of ranks along a dimension, or of all."""
        return int(np.prod(self.shape)) if dim is None else self.shape[dim]

    def get_group(self, dim: int | str = 0) -> Group:
        """Returns the group of this rank along a dimension."""
        return Group(self.world, lib.mesh_group(self._get_open(), self._get_name(dim).encode()))

    def get_local_rank(self, dim: int | str = 0) -> int:
        """Returns this rank along a dimension."""
        return int(lib.mesh_rank(self._get_open(), self._get_name(dim).encode()))

    def get_coordinate(self) -> list[int]:
        """Returns this rank along each dimension."""
        return [self.get_local_rank(dim) for dim in range(self.ndim)]

    def close(self) -> None:
        """Closes the mesh; without this, the job does."""
        lib.mesh_close(self.pointer)
        self.pointer = None
        if self.close in self.world.at_leave:
            self.world.at_leave.remove(self.close)

    def _get_name(self, dim: int | str) -> str:
        name = dim if isinstance(dim, str) else self.mesh_dim_names[dim]
        if name not in self.mesh_dim_names:
            raise KeyError(f"the mesh {self} has no dimension {name!r}")
        return name

    def _get_open(self) -> Any:
        if not self.pointer:
            raise RuntimeError(f"the mesh {self} is closed")
        return self.pointer


def _get_shape(ranks: Any) -> tuple[int, ...]:
    """Returns the shape of an array of all ranks in their order."""
    ranks = np.asarray(ranks)
    if not np.array_equal(ranks.ravel(), np.arange(ranks.size)):
        raise ValueError("DeviceMesh: the ranks of a mesh are 0, 1, ... in order; use Group.split for other groups")
    return tuple(ranks.shape)


def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None) -> DeviceMesh:
    """Opens a mesh, as torch.distributed.device_mesh.init_device_mesh. device_type: "cpu"."""
    if device_type != "cpu":
        raise ValueError(f"init_device_mesh: device_type={device_type!r}: elements are in host memory: use \"cpu\"")
    return DeviceMesh(tuple(mesh_shape), mesh_dim_names)


class DTensor:
    """A distributed tensor. `local` is the part of this rank, as a NumPy array that the program may write.

    A Shard is cut by the split rule: of n elements, rank r of m has those from ceil(n*r/m) to ceil(n*(r+1)/m).
    `distribute_tensor` and `DTensor.from_local` make one; methods that move elements are collective over the mesh.
    """

    def __init__(self, mesh: DeviceMesh, shape: tuple[int, ...], placements: tuple[Placement, ...], local: np.ndarray, dtype: str,
                 parts: Parts | None) -> None:
        self.device_mesh = mesh
        self.shape = shape
        self.placements = placements
        self.local = local
        self._dtype = dtype
        self._parts = parts

    def __repr__(self) -> str:
        return f"DTensor(shape={self.shape}, {self._dtype}, {self.device_mesh}, {self.placements}, local={self.local.shape})"

    @classmethod
    def from_local(cls, local: Any, device_mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int] | None = None,
                   parts: Parts | None = None) -> DTensor:
        """Makes a tensor of the parts that the ranks have. Without `shape`, sizes are added over the ranks that cut them."""
        m = read_memory(local, False)
        if shape is None:
            sizes = np.array(m.shape, np.int64)
            for i, placement in enumerate(placements):
                if type(placement).__name__ == "Shard":
                    sizes[placement.dim] = device_mesh.get_group(i).all_reduce(sizes[[placement.dim]])[0]  # type: ignore[attr-defined]
            shape = sizes.tolist()
        spec = _make_spec(device_mesh, tuple(shape), m.dtype, placements, parts)
        with _hold(lib.dtensor_from_local, device_mesh, ctypes.byref(spec), None) as t:
            expected = _get_local_shape(t, len(shape))
            if expected != m.shape:
                raise ValueError(f"DTensor.from_local: this rank has shape {list(m.shape)}, but of shape {list(shape)} with "
                                 f"{tuple(placements)} on {device_mesh} it holds {list(expected)}")
            ctypes.memmove(lib.dtensor_local(t), m.address, m.size * WIDTHS[m.dtype])
            return _take(t, device_mesh, m.dtype, parts)

    def redistribute(self, placements: Sequence[Placement]) -> DTensor:
        """Returns a copy of the tensor with other placements. It makes the same moves as a plan."""
        places = _make_places(self.device_mesh, placements)
        with self._hold_self() as t, _hold_result(lib.dtensor_redistribute, self.device_mesh, t, places) as moved:
            return _take(moved, self.device_mesh, self._dtype, self._parts)

    def full(self) -> np.ndarray:
        """Returns all elements, on every rank."""
        out = make_array(self.shape, self._dtype)
        with self._hold_self() as t:
            self.device_mesh.world.call(lib.dtensor_full, t, ctypes.c_void_p(out.ctypes.data))
        return out

    full_tensor = full

    def to_local(self) -> np.ndarray:
        """Returns `local`."""
        return self.local

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        return self.local.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def ranges(self, dim: int, rank: int = -1) -> list[tuple[int, int]]:
        """Returns the global ranges [begin, end) of a dimension that a rank holds (-1: this rank), one for each part."""
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"ranges({dim}): the tensor has {self.ndim} dimensions")
        with self._hold_self() as t:
            n = lib.dtensor_list_ranges(t, rank, dim % self.ndim, None, 0)
            found = (ctypes.c_int64 * (2 * max(1, n)))()
            lib.dtensor_list_ranges(t, rank, dim % self.ndim, ctypes.byref(found), n)
        return [(found[2 * i], found[2 * i + 1]) for i in range(n)]

    @contextmanager
    def _hold_self(self) -> Iterator[Any]:
        spec = _make_spec(self.device_mesh, self.shape, self._dtype, self.placements, self._parts)
        local = np.ascontiguousarray(self.local)
        with _hold(lib.dtensor_from_local, self.device_mesh, ctypes.byref(spec), ctypes.c_void_p(local.ctypes.data)) as t:
            yield t


def distribute_tensor(tensor: Any, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None,
                      src_data_rank: int | None = 0, parts: Parts | None = None) -> DTensor:
    """Distributes an array that every rank passes: the elements of rank `src_data_rank`; None: each rank takes its own.

    placements: one per mesh dimension; default: Replicate. parts: sizes of the parts that are fused in a dimension,
    {0: [64, 32, 32]}, each of which is cut by itself; (size, units) cuts it in units, such as heads.
    """
    m: Memory = read_memory(tensor, False)
    placements = [Replicate()] * device_mesh.ndim if placements is None else placements
    spec = _make_spec(device_mesh, m.shape, m.dtype, placements, parts)
    root = -1 if src_data_rank is None else src_data_rank
    with _hold(lib.dtensor_distribute, device_mesh, ctypes.byref(spec), root, ctypes.c_void_p(m.address)) as t:
        return _take(t, device_mesh, m.dtype, parts)


# ---- the tensors of the library, which live for one call -------------------------------------------------------------

def _make_places(mesh: DeviceMesh, placements: Sequence[Placement]) -> Any:
    if len(placements) != mesh.ndim:
        raise ValueError(f"{len(placements)} placements for the {mesh.ndim} dimensions of {mesh}")
    return (_abi.Place * mesh.ndim)(*[make_place(one) for one in placements])


def _make_spec(mesh: DeviceMesh, shape: tuple[int, ...], dtype: str, placements: Sequence[Placement], parts: Parts | None) -> _abi.DtensorSpec:
    flat = [(axis % max(1, len(shape)), *(part if isinstance(part, tuple) else (part, 0)))
            for axis, list_of_parts in sorted((parts or {}).items()) for part in list_of_parts]
    return _abi.DtensorSpec(
        dtype=NUMBERS[dtype], ndim=len(shape), nparts=len(flat),
        shape=(ctypes.c_int64 * max(1, len(shape)))(*shape), places=_make_places(mesh, placements),
        parts=(_abi.DtensorPart * max(1, len(flat)))(*[_abi.DtensorPart(axis=a, size=n, units=units) for a, n, units in flat]))


@contextmanager
def _hold(make: Any, mesh: DeviceMesh, *arguments: Any) -> Iterator[Any]:
    """Makes a tensor of the library, and frees it."""
    with _hold_result(make, mesh, mesh._get_open(), *arguments) as t:
        yield t


@contextmanager
def _hold_result(make: Any, mesh: DeviceMesh, *arguments: Any) -> Iterator[Any]:
    t = ctypes.c_void_p()
    mesh.world.call(make, *arguments, ctypes.byref(t))
    try:
        yield t
    finally:
        lib.dtensor_free(t)


def _get_local_shape(t: Any, ndim: int) -> tuple[int, ...]:
    shape = (ctypes.c_int64 * max(1, ndim))()
    lib.dtensor_get_local_shape(t, -1, shape)
    return tuple(shape[:ndim])


def _take(t: Any, mesh: DeviceMesh, dtype: str, parts: Parts | None) -> DTensor:
    """Copies a tensor of the library."""
    spec = lib.dtensor_get_spec(t).contents
    local = make_array(_get_local_shape(t, spec.ndim), dtype)
    ctypes.memmove(local.ctypes.data, lib.dtensor_local(t), local.nbytes)
    placements = tuple(read_place(spec.places[i]) for i in range(mesh.ndim))
    return DTensor(mesh, tuple(spec.shape[:spec.ndim]), placements, local, dtype, parts)
