"""The checkpoints by which every scheme is tried for every kind of layer, and what comes out of it as rows."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from demo_models.every_kind import TARGETS, unfused_model, write
from demo_models.variants import Group

Args = dict[str, Any]
#: with this set, each case that passes appends its row to the file, a JSON object a line
RESULTS = "QUANTDISPATCH_SCHEME_RESULTS"
IDS = torch.arange(2 * 24).reshape(2, 24) * 37 % 96
#: asymmetric experts: what the plugin ``quantdispatch-asym-moe`` brings
PLUGIN = "quantdispatch-asym-moe"


@dataclass(frozen=True)
class Case:
    """One way in which the layers of ``kind`` are quantized. ``label`` says how, in words."""

    scheme: str
    kind: str
    label: str
    group: Group
    plugin: str | None = None

    @property
    def id(self) -> str:
        return f"{self.scheme} {self.kind}: {self.label}"


@dataclass(frozen=True)
class Row:
    """What one case gave, by column: ``errors``, relative norms of differences of logits, and ``kernels``. ``effect``
    is the error of leaving activations unquantized, 0.0 where they are."""

    scheme: str
    kind: str
    label: str
    plugin: str | None
    writer: str
    errors: dict[str, float]
    kernels: dict[str, str]
    effect: float

    def record(self) -> None:
        path = os.environ.get(RESULTS)
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self)) + "\n")


def _way(strategy: Any) -> Args:
    if isinstance(strategy, int):
        return {"strategy": "group", "group_size": strategy}
    if isinstance(strategy, tuple):
        return {"strategy": "block", "block_structure": list(strategy)}
    return {"strategy": strategy}


def _int(bits: int, strategy: Any, symmetric: bool = True, dynamic: bool = False) -> Args:
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": dynamic, **_way(strategy)}


def _fp8(strategy: Any, dynamic: bool = False) -> Args:
    return {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": dynamic, **_way(strategy)}


def _nvfp4(dynamic: Any = False) -> Args:
    return {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": dynamic, "strategy": "tensor_group",
            "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}  # fmt: skip


def _mx(bits: int, dynamic: bool = False) -> Args:
    return {**_fp8(32, dynamic), "num_bits": bits, "scale_dtype": "torch.uint8"}


_TOKEN_INT, _TOKEN_FP8 = _int(8, "token", dynamic=True), _fp8("token", dynamic=True)
_STATIC_INT = _int(8, "tensor")
_BLOCK = (48, 40)  # divides no side of any layer
_PACKED, _UNPACKED, _FLOAT, _NAIVE = "pack-quantized", "int-quantized", "float-quantized", "naive-quantized"
_NV, _MX4, _MX6, _MX8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"

#: scheme, in words, weights, inputs, format, outputs
WAYS: tuple[tuple[str, str, Args, Args | None, str, Args | None], ...] = (
    ("wNa16_int", "int4 g32", _int(4, 32), None, _PACKED, None),
    ("wNa16_int", "int4 g32 asymmetric", _int(4, 32, False), None, _PACKED, None),
    ("wNa16_int", "int4 channel asymmetric", _int(4, "channel", False), None, _PACKED, None),
    ("wNa16_int", "int8 channel", _int(8, "channel"), None, _PACKED, None),
    ("wNa16_int", "int8 g32 asymmetric", _int(8, 32, False), None, _PACKED, None),
    ("wNa16_int", "int8 channel asymmetric", _int(8, "channel", False), None, _PACKED, None),
    ("wNa16_int", "int3 g32", _int(3, 32), None, _PACKED, None),
    ("wNa16_int", "int6 tensor", _int(6, "tensor"), None, _PACKED, None),
    ("wNa16_int", "int8 channel, stored as int8", _int(8, "channel"), None, _UNPACKED, None),
    ("wNa16_int", "int5 g32 asymmetric, stored as int8", _int(5, 32, False), None, _UNPACKED, None),
    ("wNa8_int", "int8 channel, token inputs", _int(8, "channel"), _TOKEN_INT, _UNPACKED, None),
    ("wNa8_int", "int8 channel, asymmetric token inputs", _int(8, "channel"), _int(8, "token", False, True), _UNPACKED,
     None),
    ("wNa8_int", "int8 channel asymmetric, token inputs", _int(8, "channel", False), _TOKEN_INT, _UNPACKED, None),
    ("wNa8_int", "int8 tensor, static inputs", _int(8, "tensor"), _STATIC_INT, _UNPACKED, None),
    ("wNa8_int", "int8 channel, static asymmetric inputs", _int(8, "channel"), _int(8, "tensor", False), _UNPACKED,
     None),
    ("wNa8_int", "int4 g32, token inputs", _int(4, 32), _TOKEN_INT, _PACKED, None),
    ("wNa8_int", "int4 g32 asymmetric, inputs of groups of 32", _int(4, 32, False), _int(8, 32, True, True), _PACKED,
     None),
    ("wNa4_int", "int4 channel, token inputs", _int(4, "channel"), _int(4, "token", True, True), _PACKED, None),
    ("wNa4_int", "int8 g32, asymmetric token inputs", _int(8, 32), _int(4, "token", False, True), _UNPACKED, None),
    ("wNa8o8_int", "int8 channel, static inputs and outputs", _int(8, "channel"), _STATIC_INT, _UNPACKED, _STATIC_INT),
    ("wNa8o8_int", "int4 g32, static asymmetric inputs and outputs", _int(4, 32), _int(8, "tensor", False), _PACKED,
     _int(8, "tensor", False)),
    ("w8a8_fp8", "fp8 channel, token inputs", _fp8("channel"), _TOKEN_FP8, _FLOAT, None),
    ("w8a8_fp8", "fp8 tensor, static inputs", _fp8("tensor"), _fp8("tensor"), _FLOAT, None),
    ("w8a8_fp8", "fp8 tensor, inputs of one dynamic scale", _fp8("tensor"), _fp8("tensor", True), _NAIVE, None),
    ("w8a8_fp8", "fp8 blocks, token inputs", _fp8(_BLOCK), _TOKEN_FP8, _FLOAT, None),
    ("w8a8_fp8", "fp8 g32, inputs of groups of 32", _fp8(32), _fp8(32, True), _FLOAT, None),
    ("w8a16_fp8", "fp8 channel", _fp8("channel"), None, _FLOAT, None),
    ("w8a16_fp8", "fp8 tensor, naive format", _fp8("tensor"), None, _NAIVE, None),
    ("w8a16_fp8", "fp8 blocks", _fp8(_BLOCK), None, _FLOAT, None),
    ("w4a8_fp8", "int4 g32, token inputs", _int(4, 32), _TOKEN_FP8, _PACKED, None),
    ("w4a8_fp8", "int4 channel, static inputs", _int(4, "channel"), _fp8("tensor"), _PACKED, None),
    ("w4a4_nvfp4", "nvfp4, nvfp4 inputs", _nvfp4(), _nvfp4("local"), _NV, None),
    ("w4a16_nvfp4", "nvfp4", _nvfp4(), None, _NV, None),
    ("w4a4_mxfp4", "mxfp4, mxfp4 inputs", _mx(4), _mx(4, True), _MX4, None),
    ("w4a8_mxfp4", "mxfp4, fp8 token inputs", _mx(4), _TOKEN_FP8, _MX4, None),
    ("w4a8_mxfp4", "mxfp4, mxfp8 inputs", _mx(4), _mx(8, True), _MX4, None),
    ("w4a16_mxfp4", "mxfp4", _mx(4), None, _MX4, None),
    ("w8a8_mxfp8", "mxfp8, mxfp8 inputs", _mx(8), _mx(8, True), _MX8, None),
    ("w8a16_mxfp8", "mxfp8", _mx(8), None, _MX8, None),
    ("w6a8_mxfp6", "mxfp6, mxfp8 inputs", _mx(6), _mx(8, True), _MX6, None),
    ("w6a16_mxfp6", "mxfp6", _mx(6), None, _MX6, None),
)  # fmt: skip


def _cases() -> list[Case]:
    cases = []
    for scheme, label, weights, inputs, form, outputs in WAYS:
        for kind, target in TARGETS.items():
            if kind == "embedding" and inputs is not None:
                continue  # its inputs are indices: there is no rule for quantized ones
            plugin = None
            if kind == "moe" and not weights["symmetric"]:
                if scheme != "wNa16_int" or form != _PACKED:
                    continue  # no rule, and none by the plugin
                plugin = PLUGIN
            group = Group(weights, inputs, targets=(target,), format=form, outputs=outputs)
            cases.append(Case(scheme, kind, label, group, plugin))
    for kind in TARGETS:
        other = TARGETS["linear" if kind != "linear" else "moe"]
        group = Group(_int(4, 32), targets=(other,), format=_PACKED)
        cases.append(Case("dense", kind, "left out of int4 g32", group))
    for kind in ("kv_cache", "attention"):
        for strategy, words in (("tensor", "one scale"), ("attn_head", "a scale a head")):
            group = Group({}, _fp8(strategy), targets=("Qwen3MoeAttention",))
            cases.append(Case("kv_fp8", kind, f"fp8, {words}", group))
    return cases


CASES = _cases()


def write_case(case: Case, folder: Path) -> Path:
    if case.scheme == "kv_fp8":
        _write_states(case, folder)
    else:
        write(folder, (case.group,), IDS)
    return folder


@torch.no_grad()
def _write_states(case: Case, folder: Path) -> None:
    """compressed-tensors' config block and its scales of the states seen, beside a dense model."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import load_file, save_file

    model, args = unfused_model(), QuantizationArgs(**case.group.inputs or {})
    model.save_pretrained(folder)
    groups = {"group_0": {"targets": list(case.group.targets), "input_activations": args}}
    block = QuantizationConfig(config_groups=groups if case.kind == "attention" else {}, kv_cache_scheme=args)
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] = {
        **block.model_dump(mode="json"),
        "format": "dense",
        "quant_method": "compressed-tensors",
    }
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = load_file(folder / "model.safetensors")
    for part, states in _states(model).items():
        rows = states.transpose(0, 1).flatten(1)  # [heads, ...]
        rows = rows.reshape(1, -1) if case.group.inputs["strategy"] == "tensor" else rows  # type: ignore[index]
        # less than what fits: some states saturate
        scale, _ = calculate_qparams(rows.amin(-1) * 0.7, rows.amax(-1) * 0.7, args)
        if part != "q" or case.kind == "attention":
            shape = (1,) if len(scale) == 1 else (-1, 1, 1)
            tensors[f"model.layers.0.self_attn.{part}_scale"] = scale.reshape(shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _states(model: Any) -> dict[str, torch.Tensor]:
    """Queries, keys and values [batch, heads, tokens, d] of ``IDS``, before positions turn them."""
    attention, seen = model.model.layers[0].self_attn, {}
    for part in "qkv":
        layer = getattr(attention, f"{part}_norm", None) or getattr(attention, f"{part}_proj")
        layer.register_forward_hook(lambda _, given, result, part=part: seen.update({part: result.float()}))
    model(IDS)
    return {part: x.reshape(*x.shape[:2], -1, 16).transpose(1, 2) for part, x in seen.items()}
