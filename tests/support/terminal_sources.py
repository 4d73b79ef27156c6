"""Checkpoints that are hard to show: names of every kind, many errors, many layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny_plans as tiny

NAMES = (
    *("a.b\x1b[31m.up", "a.\u202eb.up", "a.\u2066x.up", "a.\ud800.up", "a.\x9b31m.up", "a.\x00.up"),
    *("tab\tname.up", "line\nend.up", "zero\u200bwidth.up", "no\u00a0break.up"),
    *("层.漢字.😀.up", "ｆｕｌｌ.up", "cafe\u0301.up", "x" * 300, "long." + ".".join(["part_of_it"] * 28)),
)


def hostile_names(path: Path) -> str:
    """Names that do to a terminal what names can."""
    config = tiny.config(ignore=["lm_head", "line\nend.up", "gone\x1b[2J"])
    tensors = tiny.layers(*NAMES, *[f"model.layers.{i}.mlp.{x}_proj" for i in range(3) for x in ("up", "down")])
    return str(tiny.folder(path, config, tensors, tiny.shapes(tensors)))


def many_errors(path: Path) -> str:
    """Layers that fail in many ways, tensors that no layer has a use for, entries that match nothing."""
    tensors: dict[str, Any] = {}
    for i in range(120):
        name = f"model.layers.{i}.mlp.up_proj"
        stored = dict(tiny.int4(name, n=16 * (i % 40 + 1)))
        if i % 3 == 0:
            stored.pop(f"{name}.weight_scale")
        if i % 5 == 0:
            stored[f"{name}.weight_zero_point"] = ("I32", [i + 1, 2])
        tensors.update(tiny.dense(name) if i % 7 == 0 else stored)
    tensors.update(tiny.layers(*[f"odd.{i}.thing" for i in range(30)], bits=3))
    tensors.update({f"nobody.{i}.owns_this": ("BF16", [4]) for i in range(300)})
    nine = tiny.group({**tiny.INT4, "num_bits": 9}, targets=["re:.*[13]\\.mlp.*"])
    config = tiny.config(tiny.group(), nine, ignore=[f"re:nothing{i}" for i in range(200)])
    return str(tiny.folder(path, config, tensors, tiny.shapes(tensors)))


def sparse(path: Path, config: Any, tensors: tiny.Tensors) -> str:
    """A checkpoint whose file has a header, every ``weight_shape``, and holes for the rest."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    entries, size = tiny.header(tensors)
    text = json.dumps(entries).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for name, (_, shape) in tensors.items():
            if name.endswith(".weight_packed"):
                at = entries[name.replace("weight_packed", "weight_shape")]["data_offsets"][0]
                file.seek(start + at)
                file.write(tiny.shape_bytes(shape[0], shape[1] * 8))
        file.truncate(start + size)
    return str(path)


def mixture(layers: int, experts: int) -> dict[str, Any]:
    """Tensors of a model with ``layers * (3 * experts + 4)`` quantized layers, and a dense router in each block."""
    tensors: dict[str, Any] = {}
    for i in range(layers):
        parts = [f"mlp.experts.{e}.{x}_proj" for e in range(experts) for x in ("gate", "up", "down")]
        parts += [f"self_attn.{x}_proj" for x in "qkvo"]
        for part in parts:
            tensors.update(tiny.int4(f"model.layers.{i}.{part}"))
        tensors.update(tiny.dense(f"model.layers.{i}.mlp.gate"))
    return tensors
