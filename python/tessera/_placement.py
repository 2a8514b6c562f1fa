"""Placements of a tensor along one mesh dimension, with the words of torch.distributed.tensor."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _abi

C = _abi.CONSTANTS


class Placement:
    """A placement along one mesh dimension: Shard, Replicate or Partial."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Returns True for Shard, or for Shard(dim)."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Returns True for Replicate."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Returns True for Partial, or for Partial(reduce_op)."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank has a part of dimension `dim`; a negative number counts from the end. Parts may be uneven."""

    dim: int


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has all elements."""


@dataclass(frozen=True)
class Partial(Placement):
    """The value is the reduction of the values of the ranks: sum, prod, min or max."""

    reduce_op: str = "sum"


def make_place(placement: Any) -> _abi.Place:
    """Returns a placement of the library; accepts those of torch, too."""
    kind = type(placement).__name__
    if kind == "Shard":
        return _abi.Place(kind=C["TESS_SHARD"], dim=int(placement.dim))
    if kind == "Replicate":
        return _abi.Place(kind=C["TESS_REPLICATE"])
    if kind == "Partial":
        op = str(placement.reduce_op).replace("product", "prod")
        if op not in ("sum", "prod", "min", "max"):
            raise ValueError(f"Partial({op!r}): use sum, prod, min or max")
        return _abi.Place(kind=C["TESS_PARTIAL"], op=C["TESS_" + op.upper()])
    raise TypeError(f"{placement!r} is no placement: use Shard(dim), Replicate() or Partial()")


def read_place(place: _abi.Place) -> Placement:
    """Returns the placement of a place of the library."""
    if place.kind == C["TESS_SHARD"]:
        return Shard(place.dim)
    if place.kind == C["TESS_PARTIAL"]:
        return Partial({C["TESS_" + op.upper()]: op for op in ("sum", "prod", "min", "max")}.get(place.op, "sum"))
    return Replicate()
