"""Configs of AutoAWQ and GPTQ as config groups.

Sources: AutoAWQ ``models/_config.py``; transformers ``utils/quantization_config.py`` (``AwqConfig``, ``GPTQConfig``);
GPTQModel ``quantization/config.py`` (``QuantizeConfig``, ``dynamic_get``). Keys of calibration (``damp_percent``,
``dataset``, ``true_sequential`` ...) and of kernels (``exllama_config``, ``use_exllama`` ...) say nothing about what is
stored, and are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from .formats import AWQ_BITS, GEMM, GEMV, GPTQ, GPTQ_BITS, GPTQ_V2, GPTQ_WORDS
from .reading import Block, flag, group_size, integer, names, word, wrong

HEAD = "lm_head"
_LAYOUTS = {"gemm": GEMM, "gemv": GEMV}
#: keys of a ``dynamic`` rule that change what is stored, and those under which another layout is named
_OVERRIDES = ("bits", "group_size", "sym", "desc_act")
_LAYOUT_KEYS = ("method", "quant_method", "format", "checkpoint_format", "pack_dtype")


def translate_awq(block: Block) -> dict[str, Any]:
    """Raises ``ConfigError`` naming the key of what no AutoAWQ checkpoint says, or of a layout that is not read."""
    bits, size = integer(block, "bits", "w_bit", default=4), group_size(block, "group_size", "q_group_size")
    key, layout = word(block, "version", "format", "checkpoint_format", default="gemm")
    if layout not in _LAYOUTS:
        raise wrong(key, layout, " or ".join(map(repr, _LAYOUTS)), "other layouts are those of one kernel")
    if bits != AWQ_BITS:
        raise wrong("bits", bits, str(AWQ_BITS))
    if _LAYOUTS[layout] == GEMV and size not in (-1, 32, 64) and size < 128:
        raise wrong("group_size", size, "32, 64, 128 or more with version 'gemv'")
    weights = _args(bits, size, symmetric=not flag(block, "zero_point", True), ordered=False)
    # AutoAWQ looks for each entry anywhere in a module's name
    ignored = [f"re:.*{re.escape(name)}" for name in names(block, "modules_to_not_convert")]
    groups = {"awq": _group(["Linear"], weights, _LAYOUTS[layout])}
    return _config(groups, [HEAD, *ignored], _LAYOUTS[layout])


def translate_gptq(block: Block) -> dict[str, Any]:
    """Raises ``ConfigError`` naming the key of what no GPTQ checkpoint says, or of a layout that is not read."""
    key, layout = word(block, "checkpoint_format", "format", default="gptq")
    if layout not in ("gptq", "gptq_v2") or flag(block, "is_marlin_format", False):
        raise wrong(key, block.get(key, "marlin"), "'gptq' or 'gptq_v2'", "other layouts are those of one kernel")
    words = word(block, "pack_dtype", default="int32")[1].removeprefix("torch.")
    if words != "int32":
        raise wrong("pack_dtype", words, "'int32'")
    overrides, skipped = _dynamic(block)
    version_2 = layout == "gptq_v2"
    targets = _in_order([*(pattern for pattern, _ in overrides), *_in_blocks(block)])
    groups: dict[str, Any] = {}
    for number, (_, changes) in enumerate(overrides):
        target = [targets[number]]
        if changes is None:
            groups[f"dynamic_{number}"] = {"targets": target, "format": "dense"}
        else:
            groups[f"dynamic_{number}"] = _gptq_group(target, {**block, **changes}, version_2)
    groups["gptq"] = _gptq_group(targets[len(overrides) :] or ["Linear"], block, version_2)
    ignored = skipped if flag(block, HEAD, False) else [HEAD, *skipped]
    return _config(groups, ignored, groups["gptq"]["format"])


def _gptq_group(targets: list[str], block: Block, version_2: bool) -> dict[str, Any]:
    bits, size = integer(block, "bits"), group_size(block, "group_size")
    if bits not in GPTQ_BITS:
        raise wrong("bits", bits, ", ".join(map(str, sorted(GPTQ_BITS))))
    symmetric = flag(block, "sym", True)
    layout = GPTQ_V2 if version_2 else GPTQ
    if layout == GPTQ and not symmetric and bits != 3 and _by_gptqmodel(block):
        layout = GPTQ_WORDS
    return _group(targets, _args(bits, size, symmetric=symmetric, ordered=flag(block, "desc_act", False)), layout)


def _by_gptqmodel(block: Block) -> bool:
    meta = block.get("meta")
    writers = meta.get("quantizer") if isinstance(meta, Mapping) else None
    listed = writers if isinstance(writers, (list, tuple)) else [writers]
    return any(isinstance(writer, str) and writer.lower().startswith("gptqmodel") for writer in listed)


def _dynamic(block: Block) -> tuple[list[tuple[str, dict[str, Any] | None]], list[str]]:
    """GPTQModel's rules: patterns with what they change (``None``: left dense), in order, and ignore entries.

    The first that matches counts. What is left dense before any other rule is plainly ignored; later it is a group.
    """
    raw = block.get("dynamic")
    if raw is None or raw is False:
        return [], []
    if not isinstance(raw, Mapping):
        raise wrong("dynamic", raw, "an object of patterns")
    rules: list[tuple[str, dict[str, Any] | None]] = []
    ignored: list[str] = []
    for key, value in raw.items():
        where = f"dynamic.{key}"
        if key.startswith("-:"):
            if rules:
                rules.append((key[2:], None))
            else:
                ignored.append(f"re:{key[2:]}")
            continue
        if not isinstance(value, Mapping):
            raise wrong(where, value, "an object")
        foreign = [k for k in _LAYOUT_KEYS if value.get(k) is not None and value[k] != block.get(k)]
        if foreign:
            raise wrong(f"{where}.{foreign[0]}", value[foreign[0]], "one layout for the whole checkpoint")
        rules.append((key.removeprefix("+:"), {k: value[k] for k in _OVERRIDES if value.get(k) is not None}))
    return rules, ignored


def _in_blocks(block: Block) -> list[str]:
    """Patterns for optimum's ``modules_in_block_to_quantize``: names within a block of layers, in lists of those done
    together."""
    raw = block.get("modules_in_block_to_quantize")
    if raw is None:
        return []
    patterns = [rf".*\.{re.escape(name)}$" for name in sorted(set(_flat(raw)))]
    return [*patterns, f"{HEAD}$"] if patterns and flag(block, HEAD, False) else patterns


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        raise wrong("modules_in_block_to_quantize", value, "lists of names")


def _in_order(patterns: list[str]) -> list[str]:
    """Targets of which the first that matches counts. They are sorted by their text: where that is another order, each
    is put under a text that sorts by its number, for what is repeated no times matches the empty string."""
    if all(one < next_ for one, next_ in pairwise(patterns)):
        return [f"re:{pattern}" for pattern in patterns]
    return [f"re:(?:{number:05d}){{0}}(?:{pattern})" for number, pattern in enumerate(patterns)]


def _args(bits: int, size: int, *, symmetric: bool, ordered: bool) -> dict[str, Any]:
    args: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False}
    if size == -1:  # one group has no order
        return {**args, "strategy": "channel"}
    return {**args, "strategy": "group", "group_size": size, **({"actorder": "group"} if ordered else {})}


def _group(targets: list[str], weights: dict[str, Any], layout: str) -> dict[str, Any]:
    return {"targets": targets, "weights": weights, "format": layout}


def _config(groups: dict[str, Any], ignore: list[str], layout: str) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": groups,
        "ignore": ignore,
        "quantization_status": "compressed",
    }
