"""Quant args with one field changed, and legal again: what hangs on that field follows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..registry.args import QuantArgs

#: values that one format or another writes
VALUES: dict[str, tuple[Any, ...]] = {
    "type": ("int", "float"),
    "num_bits": (4, 8, 16, 1, 2, 3, 5, 6, 7),
    "strategy": ("block", "token", "group", "channel", "tensor", "tensor_group", "attn_head"),
    "symmetric": (True, False),
    "dynamic": (True, False, "local"),
    "group_size": (32, 128, 16, 64, 256, 48),
    "block_structure": ((128, 128), (64, 64)),
    "actorder": ("group", None, "static", "weight"),
    "scale_dtype": ("uint8", None, "float8_e4m3fn", "bfloat16"),
    "zp_dtype": ("int8", "uint8", "float8_e4m3fn"),
}
_GROUPED = ("group", "tensor_group")
_STATIC_ONLY = ("channel", "block", "attn_head")
_INT8 = {"num_bits": 8, "type": "int"}
_FP8 = {"num_bits": 8, "type": "float"}
_TOKEN = {"strategy": "token", "dynamic": True}
#: what a side that is absent could be
SIDES: dict[str, tuple[dict[str, Any], ...]] = {
    "weights": ({"num_bits": 4, "group_size": 128}, {**_FP8, "strategy": "channel"}, {**_INT8, "strategy": "channel"}),
    "inputs": ({**_INT8, **_TOKEN}, {**_FP8, **_TOKEN}, {"num_bits": 4, **_TOKEN}, {**_INT8, "strategy": "tensor"}),
    "outputs": ({**_INT8, "strategy": "tensor"}, {**_FP8, "strategy": "tensor"}),
}


def args_changes(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The field, its other value, and the args with it: legal ones for legal args, any for others."""
    args = read(raw)
    if args is None:
        yield from _any_changes(raw)
        return
    for name, values in VALUES.items():
        if name == "zp_dtype" and args.symmetric:  # of zero points that there are none of
            continue
        for value in values:
            if value != getattr(args, name) or type(value) is not type(getattr(args, name)):
                changed = _changed(args, name, value)
                if changed is not None:
                    yield name, value, changed


def read(raw: Mapping[str, Any]) -> QuantArgs | None:
    """The args, or ``None`` where they are not legal."""
    try:
        return QuantArgs.model_validate(dict(raw))
    except (ValueError, TypeError, OverflowError):  # pydantic's error is a ValueError
        return None


def _changed(args: QuantArgs, name: str, value: Any) -> dict[str, Any] | None:
    fields = args.to_json()
    # how the writer calibrated decides nothing
    fields = {key: item for key, item in fields.items() if key not in ("observer", "observer_kwargs")}
    fields[name] = value
    if name == "strategy":
        _follow_strategy(fields, value)
    elif name == "group_size" and args.strategy not in _GROUPED:
        return None
    elif name in ("type", "num_bits"):
        fields.pop("zp_dtype", None)
    fields = {key: item for key, item in fields.items() if item is not None}
    legal = read(fields)
    return fields if legal is not None and getattr(legal, name) == value else None


def _follow_strategy(fields: dict[str, Any], strategy: str) -> None:
    size = fields.pop("group_size", None)
    fields.pop("block_structure", None)
    if strategy in _GROUPED:
        fields["group_size"] = size if size and size > 0 else 16 if strategy == "tensor_group" else 128
    else:
        if fields.get("actorder") == "group":
            fields.pop("actorder")
    if strategy == "block":
        fields["block_structure"] = [128, 128]
    if strategy == "token" or (fields.get("dynamic") == "local" and strategy != "tensor_group"):
        fields["dynamic"] = True
    if strategy in _STATIC_ONLY:
        fields["dynamic"] = False


def _any_changes(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name in raw:
        yield str(name), "(left out)", {key: item for key, item in raw.items() if key != name}
    for name, values in VALUES.items():
        for value in values:
            if raw.get(name) != value:
                yield name, value, {**raw, name: value}
