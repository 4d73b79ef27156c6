"""What ``quantdispatch explain --json`` says, as rows: one for each distinct decision."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..registry.facts import KINDS, SIDES
from ..registry.registry import Registry, get_registry

_DOCUMENT = ("version", "layers", "environment", "device", "dtype", "tensor_parallel")
#: errors that follow from a layer's facts; the others speak of files, tensors or a whole config
_OF_FACTS = ("NoSchemeFound", "NoKernelFound")
_DECISION = ("kind", "format", "rule", "scheme", "kernel", "backend", "deviations", "equivalents", "differs")


@dataclass(frozen=True)
class Explained:
    """``rows``: keys of rows, in the order of the layers. ``defaults``: what all of them share. ``left_out``: layers
    whose outcome no facts can repeat, and why, for people."""

    rows: tuple[dict[str, Any], ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def rows_from_explain(document: Mapping[str, Any], registry: Registry | None = None) -> Explained:
    """The rows which hold where ``document`` was made. ``registry``: whose kernels decide which facts of the
    environment are worth stating; that of this process when left out.

    Layers alike in all but name and size are one row; one of them gives it its shape. Raises ``ValueError`` for what is
    not a document of ``explain --json``, version 1.
    """
    complete = all(key in document for key in _DOCUMENT)
    if not complete or document["version"] != 1 or not isinstance(document["layers"], list):
        raise ValueError("not a document of `quantdispatch explain --json` (version 1)")
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    left_out: dict[str, int] = {}
    for layer in document["layers"]:
        reason = _beyond_facts(layer)
        if reason is not None:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            kinds.setdefault(_decision(layer), []).append(layer)
    ids: dict[str, int] = {}
    rows = tuple(_row(alike, ids) for alike in kinds.values())
    defaults = _place(document, registry if registry is not None else get_registry())
    return Explained(rows, defaults, tuple(f"{count} layers: {reason}" for reason, count in left_out.items()))


def _beyond_facts(layer: Mapping[str, Any]) -> str | None:
    error = layer.get("error")
    if error is not None and error["type"] not in _OF_FACTS:
        return f"{error['type']} follows from more than a layer's facts"
    if error is not None and "transform_config" in error["message"]:
        return "the error follows from transform_config"
    if layer["kind"] not in KINDS or (error is None and layer["rule"] is None):
        return "not a layer that rules decide on"
    if layer["group"] is None:
        return "left dense by the config"
    return None


def _decision(layer: Mapping[str, Any]) -> str:
    error = layer["error"] and layer["error"]["type"]
    sides = [_args(layer, side) for side in SIDES]
    return json.dumps([*sides, *(layer[key] for key in _DECISION), error, layer["conditions"]], sort_keys=True)


def _args(layer: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    """Without how the writer calibrated, which decides nothing."""
    args = layer[side]
    return args and {key: value for key, value in args.items() if key not in ("observer", "observer_kwargs")}


def _row(alike: list[Mapping[str, Any]], ids: dict[str, int]) -> dict[str, Any]:
    layer = alike[0]
    row: dict[str, Any] = {"id": "", "note": _count(alike)}
    if layer["kind"] != "linear":
        row["kind"] = layer["kind"]
    if layer["format"] is not None and layer["kind"] != "kv_cache":
        row["format"] = layer["format"]
    row |= {side: args for side in SIDES if (args := _args(layer, side)) is not None}
    if layer["shape"] is not None:
        row["shape"] = [layer["shape"]["n"], layer["shape"]["k"]]
    row |= {key: layer[key] for key in ("rule", "scheme", "kernel", "backend") if layer[key] is not None}
    if layer["error"] is not None:
        row["error"] = layer["error"]["type"]
        near = [text.partition(":")[0] for text in layer["error"]["nearest"]]
        row |= {"near": near[:1]} if near else {}
    else:
        row["deviations"] = layer["deviations"]
    row |= {key: layer[key] for key in ("equivalents", "differs") if layer[key]}
    row["id"] = _unique(_title(layer), ids)
    return row


def _count(alike: list[Mapping[str, Any]]) -> str:
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    return f"{alike[0]['name']}{more}"


def _title(layer: Mapping[str, Any]) -> str:
    sides = [f"{side} {_words(layer[side])}" for side in SIDES if layer[side] is not None]
    return ", ".join([layer["kind"], *sides, *([layer["format"]] if layer["format"] else [])])


def _words(args: Mapping[str, Any]) -> str:
    letters = "fp" if args.get("type") == "float" else "int"
    scope = args.get("strategy", "")
    size = f" {args['group_size']}" if args.get("group_size") else ""
    way = " dynamic" if args.get("dynamic") else ""
    asymmetric = " asymmetric" if args.get("symmetric") is False else ""
    return f"{letters}{args.get('num_bits', 8)}{asymmetric}{way} {scope}{size}"


def _unique(title: str, ids: dict[str, int]) -> str:
    ids[title] = ids.get(title, 0) + 1
    return title if ids[title] == 1 else f"{title} ({ids[title]})"


def _place(document: Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    environment = document["environment"]
    place: dict[str, Any] = {"device": _device(document["device"], environment), "dtype": document["dtype"]}
    if document["tensor_parallel"] != 1:
        place["tensor_parallel"] = document["tensor_parallel"]
    facts = {}
    for name in sorted(set(_tested(registry)) & set(environment)):
        value = environment[name]
        # null is "not installed" of a package, and "nobody knows" of the processor: that cannot be stated
        if value is not None or name.startswith("package."):
            facts[name] = False if value is None else value
    return {**place, "environment": facts} if facts else place


def _device(device: str, environment: Mapping[str, Any]) -> str:
    """With its architecture: "the one present" is another one elsewhere."""
    kind = environment["device"]
    return device if kind == "cpu" or re.search(r":[a-z]", device) else f"{kind}:{environment['arch']}"


def _tested(registry: Registry) -> Iterator[str]:
    """Facts of the environment that some kernel asks for."""
    boxes: Iterable[Any] = (box for kernel in registry.kernels for box in kernel.predicate.boxes)
    for box in boxes:
        yield from (name for name, _ in box.fields if name.startswith(("isa.", "package.")) or name == "threads")
