"""A row that asks about one other thing: another kind, format, quant arg, config entry, device, dtype or shape."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from ..registry.config import METHOD
from ..registry.config_groups import KNOWN_FORMATS
from ..registry.config_locate import all_quantization_configs
from ..registry.config_models import MIXED_PRECISION
from ..registry.errors import QuantDispatchError
from ..registry.facts import KINDS
from ..registry.facts import SIDES as SIDE_NAMES
from ..registry.plan import DTYPES
from ..registry.presets import preset
from .args_changes import SIDES, args_changes
from .observing import config_of, given_sides
from .rows import Row

Change = tuple[str, str, Row]
_FORMATS = sorted(KNOWN_FORMATS - {MIXED_PRECISION})
_DEVICES = ("cpu", "cuda:sm75", "cuda:sm90", "cuda:sm100", "rocm:gfx942")
#: expectations that hang on where a layer runs
_OF_KERNELS = ("kernel", "backend", "deviations", "conditions")
_SIDE_KEYS = {"weights": "weights", "input_activations": "inputs", "output_activations": "outputs"}


def fact_changes(row: Row, groups: frozenset[str] = frozenset()) -> Iterator[Change]:
    """The fact's name, its other value, and the row with it. ``groups``: config groups to change; empty: every one.

    For a checkpoint, whose tensors go with its config, only where it runs is changed.
    """
    if row.form == "layer":
        yield from _layer_changes(row)
    elif row.form == "config":
        yield from _config_changes(row, groups)
    if any(key in row.expects for key in _OF_KERNELS) or row.expects.get("error") == "NoKernelFound":
        yield from _place_changes(row)


# --------------------------------------------------------------------------------------------------- a layer's facts


def _layer_changes(row: Row) -> Iterator[Change]:
    cache = row.asks.get("kind") == "kv_cache"  # which is a scheme of its own in the config, with nothing but its args
    for format_ in () if cache else _FORMATS:
        if format_ != row.asks.get("format"):
            yield "format", format_, row.asking(format=format_)
    sides = given_sides(row)
    for side in ("inputs",) if cache else SIDE_NAMES:
        for fact, value, changed in _side_changes(side, sides.get(side)):
            others = {**sides, side: changed}
            yield fact, value, row.asking(preset=None, **{name: others.get(name) for name in SIDE_NAMES})
    for kind in KINDS:
        if kind != row.asks.get("kind", "linear"):
            yield "kind", kind, row.asking(kind=kind)


def _side_changes(side: str, args: Mapping[str, Any] | None) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    if args is None:
        for other in SIDES[side]:
            yield side, _args_text(other), dict(other)
        return
    yield side, "absent", None
    for name, value, changed in args_changes(args):
        yield f"{side}.{name}", str(value), changed


def _args_text(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in args.items())


# --------------------------------------------------------------------------------------------------- a config's entries


def _config_changes(row: Row, groups: frozenset[str]) -> Iterator[Change]:
    try:
        raw = config_of(row)
        block, path = next(all_quantization_configs(raw), (None, ""))
    except QuantDispatchError:  # a file that cannot be read has no entries to change
        return
    if not isinstance(block, Mapping):
        return
    for fact, value, changed in _block_changes(block, row.asks.get("layer"), groups):
        yield fact, value, row.asking(config=_put(raw, path, changed))
    for name in row.asks.get("modules", {}):
        yield f"modules.{name}", "Conv2d", row.asking(modules={**row.asks["modules"], name: "Conv2d"})


def _put(raw: Mapping[str, Any], path: str, block: dict[str, Any]) -> dict[str, Any]:
    if not path:
        return block
    whole = copy.deepcopy(dict(raw))
    *parents, last = path.split(".")
    place: Any = whole
    for key in parents:
        place = place[key]
    place[last] = block
    return whole


def _block_changes(
    block: Mapping[str, Any], layer: str | None, only: frozenset[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    def with_(key: str, value: Any) -> dict[str, Any]:
        return {**block, key: value}

    for key in block:
        if key not in ("config_groups", "quant_method"):
            yield key, "(left out)", {name: item for name, item in block.items() if name != key}
    if block.get("quant_method", METHOD) != METHOD:
        yield "quant_method", METHOD, with_("quant_method", METHOD)
    for format_ in _FORMATS:
        if format_ != block.get("format"):
            yield "format", format_, with_("format", format_)
    if layer is not None:
        ignore = block.get("ignore")
        yield "ignore", f"and {layer}", with_("ignore", [*(ignore if isinstance(ignore, list) else ()), layer])
    groups = block.get("config_groups")
    groups = dict(groups) if isinstance(groups, Mapping) else {}
    for name, group in groups.items():
        if not only or name in only:
            for fact, value, changed in _group_changes(group, str(name)):
                yield f"{name}.{fact}", value, with_("config_groups", {**groups, name: changed})
    cache = block.get("kv_cache_scheme")
    if isinstance(cache, Mapping):
        for field, value, changed in args_changes(cache):
            yield f"kv_cache_scheme.{field}", str(value), with_("kv_cache_scheme", changed)


def _group_changes(group: Any, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if isinstance(group, list):
        group = {"targets": group, **(preset(name) or {})}
    if not isinstance(group, Mapping):
        return
    yield "targets", "none", {**group, "targets": []}
    for format_ in _FORMATS if group.get("format") else ():
        if format_ != group["format"]:
            yield "format", format_, {**group, "format": format_}
    for key, side in _SIDE_KEYS.items():
        args = group.get(key)
        if args is None or isinstance(args, Mapping):
            for fact, value, changed in _side_changes(side, args):
                yield fact, value, {**group, key: changed}


# --------------------------------------------------------------------------------------------------- where it runs


def _place_changes(row: Row) -> Iterator[Change]:
    asks = row.asks
    for device in _DEVICES:
        if device != asks.get("device", "cpu"):
            yield "device", device, row.asking(device=device)
    for dtype in DTYPES:
        if dtype != asks.get("dtype", "bfloat16"):
            yield "dtype", dtype, row.asking(dtype=dtype)
    if "shape" in asks:
        n, k = asks["shape"]
        yield "shape", "unknown", row.asking(shape=None)
        yield "shape", f"{n + 1}, {k}", row.asking(shape=[n + 1, k])
        yield "shape", f"{n}, {k + 1}", row.asking(shape=[n, k + 1])
    if "force_backend" in asks:
        yield "force_backend", "(left out)", row.asking(force_backend=None)
    environment = asks.get("environment", {})
    for fact, value in environment.items():
        other = not value if isinstance(value, bool) else False
        yield f"environment.{fact}", str(other), row.asking(environment={**environment, fact: other})
