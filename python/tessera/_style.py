"""register_style(): a sharding strategy as data, named in plans like those of plugins."""
from __future__ import annotations

import ctypes
import os
import traceback
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence, Union

from . import _abi
from ._errors import CODES
from ._group import describe_error
from ._library import fail, is_own_file, lib
from ._placement import Placement, make_place

Places = Union[Sequence[Placement], Callable[["Site"], Sequence[Placement]]]
Params = Union[Mapping[str, Placement], Callable[["Site", "Param"], Union[Placement, None]]]
_styles: dict[str, _Style] = {}  # registered for the life of the process


@dataclass(frozen=True)
class Site:
    """A module that a style places."""

    module: str  # its name, "model.layers.0.mlp.up_proj"
    kind: str  # "linear", "embedding", "norm", ...
    ranks: int  # along the mesh dimension of the style
    training: bool
    config: str  # what follows the colon of the style in the plan


@dataclass(frozen=True)
class Param:
    """A parameter of a module."""

    name: str  # "weight"
    shape: tuple[int, ...]  # of all ranks, as stored
    out_dim: int | None  # the axis of the output features
    in_dim: int | None  # the axis of the input features


class _Style:
    """A style whose functions are callbacks, which look up the definition that is current."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: Places = []
        self.outputs: Places = []
        self.params: Params = {}
        self.takes_config = False
        self.c_style = _abi.Style(
            name=name.encode(), summary=b"registered from Python", layout=_abi.LAYOUT(self._layout),
            partition_param=_abi.PARTITION_PARAM(self._partition_param))
        self.c_list = (ctypes.POINTER(_abi.Style) * 2)(ctypes.pointer(self.c_style))  # ends with NULL
        self.c_plugin = _abi.Plugin(abi=_abi.CONSTANTS["TESS_ABI"], name=name.encode(), version=b"1", license=b"none", styles=self.c_list)

    def _layout(self, site: Any, out: Any) -> int:
        return _report(site, lambda s: self._place_values(s, out.contents))

    def _place_values(self, site: Site, io: _abi.Io) -> None:
        if site.config and not self.takes_config:
            raise ValueError(f"{self.name} takes no configuration, not {site.config!r}")
        for what, places, given in (("inputs", getattr(io, "in"), self.inputs), ("outputs", io.out, self.outputs)):
            placements = given(site) if callable(given) else given
            if len(placements) > len(places):
                raise ValueError(f"{self.name} places {len(placements)} {what}; a module has at most {len(places)}")
            for i, placement in enumerate(placements):
                if placement is not None:
                    places[i] = make_place(placement)

    def _partition_param(self, site: Any, param: Any, out: Any) -> int:
        return _report(site, lambda s: self._place_param(s, param.contents, out.contents))

    def _place_param(self, site: Site, p: _abi.Param, out: _abi.ParamPlace) -> None:
        name, shape = p.name.decode(), tuple(p.shape[:p.ndim])
        if callable(self.params):
            param = Param(name, shape, *(None if dim < 0 else dim for dim in (p.out_dim, p.in_dim)))
            placement: Placement | None = self.params(site, param)
        else:
            placement = self.params.get(name)
        place = _abi.Place(kind=_abi.CONSTANTS["TESS_REPLICATE"]) if placement is None else make_place(placement)
        if place.kind == _abi.CONSTANTS["TESS_SHARD"] and not -len(shape) <= place.dim < len(shape):
            raise ValueError(f"{self.name} cuts dimension {place.dim} of {name}, which has shape {list(shape)}")
        out.use = place


def _report(site: Any, place: Callable[[Site], None]) -> int:
    """Calls `place`; reports its exception as the failure of the style, with the module."""
    s = site.contents
    module = s.module.decode()
    try:
        place(Site(module, s.kind.decode(), s.nranks, bool(s.training), s.config.decode()))
        return 0
    except BaseException as error:
        return fail(CODES["EINVAL"], f"{module}: {describe_error(error)}{_find_line(error)}")


def _find_line(error: BaseException) -> str:
    """Returns where a function of a style raised: " (plan.py:12, in place_param)"; "": in this file."""
    calls = [one for one in traceback.extract_tb(error.__traceback__) if not is_own_file(one.filename)]
    return f" ({os.path.basename(calls[-1].filename)}:{calls[-1].lineno}, in {calls[-1].name})" if calls else ""


def register_style(name: str, *, inputs: Places = (), outputs: Places = (), params: Params | None = None) -> None:
    """Registers a style, which plans of this process name from then on.

    inputs, outputs: the placements of the inputs and outputs of a module; None: as they are. An output that its op does
    not compute in this placement is moved to it: Replicate() finishes a sum. params: the placement of each parameter, by
    its name in the module; others are replicated. Each may be a function of the Site (params: and the Param) that returns
    this; the style then takes a configuration. Its exceptions are errors of the plan that name the module.

    A name may be registered again while no model is open.
    """
    from ._model import open_models

    style = _styles.get(name) or _Style(name)
    given = (inputs, outputs, params or {})
    if name in _styles and given != (style.inputs, style.outputs, style.params) and len(open_models):
        raise ValueError(f"style {name} is registered with another definition, and models are open; close them first")
    for places in (inputs, outputs):
        for placement in () if callable(places) else places:
            if placement is not None:
                make_place(placement)
    for placement in params.values() if isinstance(params, Mapping) else ():
        make_place(placement)
    style.inputs, style.outputs, style.params = given
    style.takes_config = any(callable(one) for one in given)
    if name not in _styles:
        lib.registry_add(ctypes.byref(style.c_plugin))
        _styles[name] = style
