"""The table of checkpoint variants: one line each, in the vocabulary of a compressed-tensors config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Args = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """One config group: what it targets, its quant args, and the storage format where it must not be inferred."""

    weights: Args
    inputs: Args | None = None
    targets: tuple[str, ...] = ("Linear",)
    format: str | None = None
    outputs: Args | None = None


@dataclass(frozen=True)
class Variant:
    """How to quantize a model.

    `rewrite` names a step of `legacy` that turns the written checkpoint into what an older writer produced: today's
    compressed-tensors no longer writes activation ordering by group, nor padded packing.
    """

    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = ("lm_head",)
    rewrite: str | None = None
    tiny: dict[str, int] = field(default_factory=dict)

    @property
    def quantizes_lm_head(self) -> bool:
        return "lm_head" not in self.ignore

    @property
    def needs_calibration(self) -> bool:
        """Is anything stored for inputs or outputs? Local scales stand below a stored global one."""
        sides = [side for group in self.groups for side in (group.inputs, group.outputs) if side is not None]
        return any(side["dynamic"] is not True for side in sides)


def _int(bits: int, group_size: int | None = 64, symmetric: bool = True, **more: Any) -> Args:
    """Integer weights: by group, or by channel where `group_size` is None."""
    shape = {"strategy": "channel"} if group_size is None else {"strategy": "group", "group_size": group_size}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, **shape, **more}


def _fp8(strategy: str, **more: Any) -> Args:
    return {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": strategy, **more}


def _token(kind: str, bits: int = 8, symmetric: bool = True) -> Args:
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "dynamic": True, "strategy": "token"}


def _static(kind: str, symmetric: bool = True) -> Args:
    return {"num_bits": 8, "type": kind, "symmetric": symmetric, "dynamic": False, "strategy": "tensor"}


def _nvfp4(dynamic: Any = False) -> Args:
    return {
        "num_bits": 4, "type": "float", "symmetric": True, "dynamic": dynamic, "strategy": "tensor_group",
        "group_size": 16, "scale_dtype": "torch.float8_e4m3fn",
    }  # fmt: skip


def _mx(bits: int, dynamic: bool = False) -> Args:
    return {
        "num_bits": bits, "type": "float", "symmetric": True, "dynamic": dynamic, "strategy": "group",
        "group_size": 32, "scale_dtype": "torch.uint8",
    }  # fmt: skip


def _one(weights: Args, inputs: Args | None = None, *, format: str | None = None, **more: Any) -> Variant:
    return Variant((Group(weights, inputs, format=format),), **more)


_INT8_TENSOR: Args = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "strategy": "tensor"}
_GROUP_128_INPUTS: Args = {
    "num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "group", "group_size": 128,
}  # fmt: skip
_BLOCK = _fp8("block", block_structure=[128, 128])
# Blocks and groups of 128 need columns that they divide.
_WIDE = {"intermediate_size": 256}

VARIANTS: dict[str, Variant] = {
    # The four of the demo.
    "w4a16-asym": _one(_int(4, symmetric=False)),
    "w4a16-sym": _one(_int(4)),
    "w8a8-int8": _one(_int(8, None), _token("int")),
    "fp8-dynamic": _one(_fp8("channel"), _token("float")),
    # Integer weights only.
    "w4a16-channel": _one(_int(4, None)),
    "w4a16-asym-channel": _one(_int(4, None, symmetric=False)),
    "w4a16-asym-g32": _one(_int(4, 32, symmetric=False)),
    "w4a16-g16": _one(_int(4, 16)),
    "w4a16-g128": _one(_int(4, 128), tiny=_WIDE),
    "w4a16-actorder": _one(_int(4, actorder="static")),
    "w4a16-asym-g_idx": _one(_int(4, symmetric=False), rewrite="g_idx"),
    "w4a16-lm_head": _one(_int(4), ignore=()),
    "w2a16": _one(_int(2, 32)),
    "w3a16": _one(_int(3)),
    "w3a16-asym": _one(_int(3, symmetric=False)),
    "w3a16-asym-padded": _one(_int(3, symmetric=False), rewrite="padded"),
    "w5a16-asym": _one(_int(5, symmetric=False)),
    "w6a16": _one(_int(6)),
    "w7a16": _one(_int(7)),
    "w8a16": _one(_int(8, None)),
    "w8a16-asym-g64": _one(_int(8, symmetric=False)),
    "w4a16-tensor-asym": _one({**_INT8_TENSOR, "num_bits": 4, "symmetric": False}),
    "w8a16-int": _one(_int(8, None), format="int-quantized"),
    # Integer weights and inputs.
    "w8a8-int8-asym-inputs": _one(_int(8, None), _token("int", symmetric=False)),
    "w8a8-int8-asym-weights": _one(_int(8, None, symmetric=False), _token("int")),
    "w8a8-int8-static": _one(_int(8, None), _static("int")),
    "w8a8-int8-static-asym": _one(_int(8, None), _static("int", symmetric=False)),
    "w8a8-int8-tensor": _one(_INT8_TENSOR, _static("int")),
    "w8a8-int8-packed": _one(_int(8, None), _token("int"), format="pack-quantized"),
    "w4a8": _one(_int(4), _token("int"), format="pack-quantized"),
    "w4a8-channel-int": _one(_int(4, None), _token("int"), format="int-quantized"),
    # 8-bit floats.
    "fp8-static": _one(_fp8("tensor"), _static("float")),
    "fp8-channel-static": _one(_fp8("channel"), _static("float")),
    "fp8-tensor-dynamic": _one(_fp8("tensor"), _token("float")),
    "fp8-block": _one(_BLOCK, _token("float"), tiny=_WIDE),
    "fp8-block-g128": _one(_BLOCK, _GROUP_128_INPUTS, tiny=_WIDE),
    "fp8-w8a16": _one(_fp8("channel"), format="float-quantized"),
    "fp8-w8a16-naive": _one(_fp8("tensor"), format="naive-quantized"),
    "fp8-w8a16-block": _one(_BLOCK, format="float-quantized", tiny=_WIDE),
    # Small floats in small groups.
    "nvfp4": _one(_nvfp4(), _nvfp4("local")),
    "nvfp4a16": _one(_nvfp4()),
    "nvfp4a16-lm_head": _one(_nvfp4(), ignore=()),
    "mxfp4": _one(_mx(4), _mx(4, True)),
    "mxfp4a16": _one(_mx(4)),
    "mxfp4-fp8": _one(_mx(4), _token("float")),
    "mxfp4-fp8-g64": _one(_mx(4), {**_GROUP_128_INPUTS, "group_size": 64}),
    "mxfp4-mxfp8": _one(_mx(4), _mx(8, True)),
    "mxfp6a8": _one(_mx(6), _mx(8, True)),
    "mxfp6a16": _one(_mx(6)),
    "mxfp8": _one(_mx(8), _mx(8, True)),
    "mxfp8a16": _one(_mx(8)),
    "mxfp8-lm_head": _one(_mx(8), _mx(8, True), ignore=()),
    # Several groups at once.
    "mixed": Variant(
        (
            Group(_int(4, symmetric=False), targets=(r"re:.*mlp\..*_proj$",)),
            Group(_int(8, None), _token("int"), targets=(r"re:.*self_attn\.[qkvo]_proj$",)),
        )
    ),
}
