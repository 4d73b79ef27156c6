"""What the tests of plans share: safetensors files written without any library, configs, and kernels of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from quantdispatch.registry.kernels import Absent, Args, Kernel, Needs
from quantdispatch.registry.registry import Registry
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.registry.table import RuleTable

BITS = {"F32": 32, "I32": 32, "I64": 64, "BF16": 16, "F16": 16, "I8": 8, "U8": 8, "F8_E4M3": 8}
Tensors = Mapping[str, tuple[str, list[int]]]


def header(tensors: Tensors) -> tuple[dict[str, Any], int]:
    """The JSON header of tensors laid end to end, and the number of data bytes."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return entries, end


def save(path: Path, tensors: Tensors, data: Mapping[str, bytes] | None = None) -> Path:
    """A valid file, zeros but for ``data``."""
    entries, size = header(tensors)
    text = json.dumps(entries).encode()
    body = bytearray(size)
    for name, content in (data or {}).items():
        start, end = entries[name]["data_offsets"]
        assert len(content) == end - start
        body[start:end] = content
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def folder(path: Path, config: Any, tensors: Tensors, data: Mapping[str, bytes] | None = None) -> Path:
    """A checkpoint folder with one file."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save(path / "model.safetensors", tensors, data)
    return path


def sharded(
    path: Path, config: Any, shards: Mapping[str, Tensors], weight_map: Mapping[str, str] | None = None
) -> Path:
    """A checkpoint folder with an index and several files."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save(path / name, tensors)
    whole = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {}, "weight_map": dict(whole if weight_map is None else weight_map)}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


# ------------------------------------------------------------------------------------------------ layers as stored


def int4(name: str, n: int = 64, k: int = 64, group: int = 32, *, bits: int = 4, symmetric: bool = True) -> Tensors:
    """A pack-quantized layer."""
    columns = 1 if group < 0 else k // group
    tensors = {
        f"{name}.weight_packed": ("I32", [n, -(-k * bits // 32)]),
        f"{name}.weight_scale": ("BF16", [n, columns]),
        f"{name}.weight_shape": ("I64", [2]),
    }
    if not symmetric:
        tensors[f"{name}.weight_zero_point"] = ("I32", [-(-n * bits // 32), columns])
    return tensors


def shape_bytes(n: int = 64, k: int = 64) -> bytes:
    return n.to_bytes(8, "little") + k.to_bytes(8, "little")


def shapes(tensors: Tensors, n: int = 64, k: int = 64) -> dict[str, bytes]:
    """The content of every ``weight_shape``."""
    return {name: shape_bytes(n, k) for name in tensors if name.endswith("weight_shape")}


def fp8(name: str, n: int = 64, k: int = 64) -> Tensors:
    """A float-quantized layer with a scale for each channel."""
    return {f"{name}.weight": ("F8_E4M3", [n, k]), f"{name}.weight_scale": ("BF16", [n, 1])}


def int8(name: str, n: int = 64, k: int = 64) -> Tensors:
    """An int-quantized layer with a scale for each channel."""
    return {f"{name}.weight": ("I8", [n, k]), f"{name}.weight_scale": ("BF16", [n, 1])}


def dense(name: str, n: int = 64, k: int = 64) -> Tensors:
    return {f"{name}.weight": ("BF16", [n, k])}


# --------------------------------------------------------------------------------------------------------- configs

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
INT8_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}


def group(weights: Any = INT4, inputs: Any = None, targets: Any = ("Linear",), **more: Any) -> dict[str, Any]:
    return {"targets": list(targets), "weights": weights, "input_activations": inputs, **more}


def config(
    *groups: dict[str, Any],
    fmt: str | None = "pack-quantized",
    ignore: Any = ("lm_head",),
    model: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """A whole config.json."""
    block = {
        "quant_method": "compressed-tensors",
        "version": "0.19.0",
        "config_groups": {f"group_{i}": g for i, g in enumerate(groups or (group(),))},
        "ignore": list(ignore),
        **more,
    }
    if fmt is not None:
        block["format"] = fmt
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **(model or {}),
        "quantization_config": block,
    }


def layers(*names: str, make: Any = int4, **options: Any) -> dict[str, Any]:
    """The tensors of several layers alike."""
    return {key: value for name in names for key, value in make(name, **options).items()}


def checkpoint(path: Path, config: Any, tensors: Any, n: int = 64, k: int = 64) -> Path:
    """A folder whose every ``weight_shape`` says [n, k]."""
    return folder(path / "c", config, tensors, shapes(tensors, n, k))


# The tests' own, so that what is tested here does not depend on what a backend can do.
KERNELS = (
    Kernel("cpu/int4", "linear", Needs({"k%32": 0, "n%16": 0}, device="cpu", weights=Args(type="int", num_bits={4}),
                                       inputs=Absent, outputs=Absent), "a:B", rank=5),
    Kernel("cpu/int8", "linear", Needs({"k%32": 0}, device="cpu", weights=Args(type="int", num_bits={8})), "a:B",
           deviations=("inputs stay unquantized",)),
    Kernel("reference", "linear", Needs(device={"cpu", "cuda"}, weights=Args(num_bits={2, 3, 4, 5, 6, 7, 8})), "a:B",
           slow=True),
    Kernel("reference/embedding", "embedding", Needs(), "a:B", slow=True),
    Kernel("reference/kv_cache", "kv_cache", Needs(), "a:B", slow=True),
)  # fmt: skip


@cache
def registry() -> Registry:
    """Frozen, so made once; that the built-in rules do not overlap is the tests of the table's business."""
    return Registry(RuleTable(builtin_rules()), KERNELS)
