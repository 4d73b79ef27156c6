"""What engines make of a checkpoint where it is not what the checkpoint says: as checkpoints, each with a change that
turns it into what the engine computes in its place. A test that the engine's numbers would pass shows nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_models.every_kind import TARGETS, unfused_model
from demo_models.rtn import quantize_and_save
from demo_models.variants import Group, Variant
from safetensors.torch import load_file, save_file
from scheme_cases import IDS, PLUGIN, _fp8, _int, _mx, _nvfp4
from torch import Tensor

Args = dict[str, Any]
Stored = dict[str, Tensor]
Change = Callable[[Stored, Args], None]

ATTENTION = "model.layers.0.self_attn"
EXPERTS = "model.layers.0.mlp.experts"
QKV = tuple(f"{ATTENTION}.{part}_proj" for part in "qkv")
GATE_UP = tuple(f"{EXPERTS}.0.{part}_proj" for part in ("gate", "up"))
LINEAR, MOE, HEAD, EMBEDDING = (TARGETS[kind] for kind in ("linear", "moe", "lm_head", "embedding"))
PACKED, UNPACKED, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
NV, MX4, MX8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"
TOKEN_INT, TOKEN_FP8 = _int(8, "token", dynamic=True), _fp8("token", dynamic=True)
STATIC_INT, STATIC_FP8 = _int(8, "tensor"), _fp8("tensor")


@dataclass(frozen=True)
class Fault:
    """``wrong``: the engine's way, as a change of tensors and config; ``None`` where it fails, or loads other tensors.
    ``first``: what the checkpoint needs for it to show."""

    id: str
    groups: tuple[Group, ...]
    wrong: Change | None
    first: Change | None = None
    ignore: tuple[str, ...] = ()
    plugin: str | None = None
    rewrite: str | None = None


def _group(target: str, weights: Args, inputs: Args | None = None, form: str = PACKED, outputs: Any = None) -> Group:
    return Group(weights, inputs, targets=(target,), format=form, outputs=outputs)


# ------------------------------------------------------------------------------------------------ what engines do


def _args(side: str, **changes: Any) -> Change:
    def change(stored: Stored, block: Args) -> None:
        for group in block["config_groups"].values():
            if group[side] is not None:
                group[side].update(changes)

    return change


def _without(side: str) -> Change:
    def change(stored: Stored, block: Args) -> None:
        for group in block["config_groups"].values():
            group[side] = None

    return change


def _with_inputs(args: Args) -> Change:
    def change(stored: Stored, block: Args) -> None:
        for group in block["config_groups"].values():
            group["input_activations"] = dict(args)

    return change


def _symmetric(side: str, name: str) -> Change:
    """Zero points are not loaded."""

    def change(stored: Stored, block: Args) -> None:
        _args(side, symmetric=True)(stored, block)
        for key in [key for key in stored if key.endswith(f"{name}_zero_point")]:
            del stored[key]

    return change


def _largest(names: Iterable[str], tensor: str) -> Change:
    """One value, the largest, for all members of a fused layer."""

    def change(stored: Stored, block: Args) -> None:
        keys = [f"{name}.{tensor}" for name in names]
        most = torch.stack([stored[key].float().reshape(-1)[0] for key in keys]).amax()
        stored.update({key: torch.full_like(stored[key], float(most)) for key in keys})

    return change


def _first(names: Iterable[str], tensor: str) -> Change:
    """That of the first member for all."""

    def change(stored: Stored, block: Args) -> None:
        first, *others = names
        stored.update({f"{name}.{tensor}": stored[f"{first}.{tensor}"].clone() for name in others})

    return change


def _requantized(stored: Stored, block: Args) -> None:
    """The members' fp8 weights once more, by the largest of their scales."""
    before = {name: stored[f"{name}.weight"].float() * stored[f"{name}.weight_scale"].float() for name in QKV}
    _largest(QKV, "weight_scale")(stored, block)
    for name, weight in before.items():
        stored[f"{name}.weight"] = (weight / stored[f"{name}.weight_scale"].float()).to(torch.float8_e4m3fn)


def _through_fp8(stored: Stored, block: Args) -> None:
    for key in [key for key in stored if stored[key].dtype == torch.int8]:
        stored[key] = stored[key].float().to(torch.float8_e4m3fn).float().clamp(-128, 127).to(torch.int8)


def _powers_of_two(stored: Stored, block: Args) -> None:
    """Scales rounded up to powers of two, the weights quantized anew."""
    for key in [key for key in stored if key.endswith(".weight_scale")]:
        scale, weight = stored[key].float(), key.removesuffix("_scale")
        rounded = torch.exp2(torch.ceil(torch.log2(scale)))
        stored[weight] = (stored[weight].float() * _whole(scale / rounded, stored[weight])).to(torch.float8_e4m3fn)
        stored[key] = rounded.to(stored[key].dtype)


def _whole(blocks: Tensor, weight: Tensor) -> Tensor:
    """A value for each of the blocks of 48 times 40 as one for each weight."""
    return blocks.repeat_interleave(48, 0).repeat_interleave(40, 1)[: weight.shape[0], : weight.shape[1]]


def _scaled(name: str, tensor: str, factor: float) -> Change:
    def change(stored: Stored, block: Args) -> None:
        stored[f"{name}.{tensor}"] *= factor

    return change


def _untransposed(stored: Stored, block: Args) -> None:
    """Zero points of experts, words [N / 8, groups], read as [groups, N / 8] where the two are equal."""
    for key in [key for key in stored if key.endswith(("gate_proj.weight_zero_point", "up_proj.weight_zero_point"))]:
        assert stored[key].shape[0] == stored[key].shape[1]
        stored[key] = stored[key].T.contiguous()


def _scales_in_another_order(stored: Stored, block: Args) -> None:
    """Scales [N, groups] permuted as if there were one group, within each 64 of all values of a column."""
    order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    for key in [key for key in stored if key.endswith(("gate_proj.weight_scale", "up_proj.weight_scale"))]:
        stored[key] = stored[key].T.reshape(-1, 32)[:, order].reshape(stored[key].T.shape).T.contiguous()


def _without_order(stored: Stored, block: Args) -> None:
    for key in [key for key in stored if key.endswith(".weight_g_idx")]:
        del stored[key]


_MXFP4_INPUTS, _MXFP8_INPUTS = _mx(4, True), _mx(8, True)

FAULTS: tuple[Fault, ...] = (
    # -- members of a fused layer
    Fault(
        "members of a fused layer in two groups",
        (
            _group(rf"re:{ATTENTION}\.q_proj", _int(8, "channel")),
            _group(rf"re:{ATTENTION}\.[kv]_proj", _int(4, 32)),
        ),
        None,
    ),
    Fault(
        "a member by name beside Linear",
        (_group("Linear", _int(4, 32)), _group(QKV[2], _int(8, "channel"))),
        None,
        ignore=("lm_head", MOE),
    ),
    Fault(
        "a member ignored by a pattern that fits the fused name",
        (_group(LINEAR, _int(4, 32)),),
        None,
        ignore=("re:.*v_proj",),
    ),
    Fault("fp8 scales of members", (_group(LINEAR, _fp8("tensor"), TOKEN_FP8, FLOAT),), _requantized),
    Fault(
        "static input scales of members",
        (_group(LINEAR, _fp8("tensor"), STATIC_FP8, FLOAT),),
        _largest(QKV, "input_scale"),
        first=_scaled(QKV[0], "input_scale", 0.04),
    ),
    Fault("nvfp4 global scales of members", (_group(LINEAR, _nvfp4(), form=NV),), _largest(QKV, "weight_global_scale")),
    Fault(
        "nvfp4 global scales of inputs of members",
        (_group(LINEAR, _nvfp4(), _nvfp4("local"), NV),),
        _largest(QKV, "input_global_scale"),
        first=_scaled(QKV[0], "input_global_scale", 40.0),
    ),
    Fault(
        "nvfp4 global scales of gate and up",
        (_group(MOE, _nvfp4(), form=NV),),
        _first(GATE_UP, "weight_global_scale"),
        first=_scaled(GATE_UP[0], "weight_global_scale", 3.0),
    ),
    # -- activations
    Fault("int8 inputs of packed weights", (_group(LINEAR, _int(4, 32), TOKEN_INT),), _without("input_activations")),
    Fault(
        "int4 inputs of packed weights",
        (_group(LINEAR, _int(4, 32), _int(4, "token", dynamic=True)),),
        _without("input_activations"),
    ),
    Fault(
        "nvfp4 inputs below sm100", (_group(LINEAR, _nvfp4(), _nvfp4("local"), NV),), _without("input_activations")
    ),
    Fault(
        "fp8 inputs below sm89", (_group(LINEAR, _fp8("channel"), TOKEN_FP8, FLOAT),), _without("input_activations")
    ),
    Fault("inputs under mxfp4", (_group(LINEAR, _mx(4), _MXFP4_INPUTS, MX4),), _without("input_activations")),
    Fault("inputs under mxfp8", (_group(LINEAR, _mx(8), _MXFP8_INPUTS, MX8),), _without("input_activations")),
    Fault("mxfp4 weights alone", (_group(LINEAR, _mx(4), form=MX4),), _with_inputs(_MXFP4_INPUTS)),
    Fault("mxfp8 weights alone", (_group(LINEAR, _mx(8), form=MX8),), _with_inputs(_MXFP8_INPUTS)),
    Fault(
        "mxfp4 weights, mxfp8 inputs",
        (_group(LINEAR, _mx(4), _MXFP8_INPUTS, MX4),),
        _args("input_activations", strategy="token", group_size=None, scale_dtype=None),
    ),
    Fault(
        "one dynamic scale for fp8 inputs",
        (_group(LINEAR, _fp8("channel"), _fp8("tensor", True), FLOAT),),
        _args("input_activations", strategy="token"),
    ),
    Fault(
        "fp8 blocks, token inputs",
        (_group(LINEAR, _fp8((32, 64)), TOKEN_FP8, FLOAT),),
        _args("input_activations", strategy="group", group_size=32),
    ),
    Fault(
        "static int8 inputs",
        (_group(LINEAR, _int(8, "channel"), STATIC_INT, UNPACKED),),
        _args("input_activations", strategy="token", dynamic=True),
    ),
    Fault(
        "static asymmetric int8 inputs",
        (_group(LINEAR, _int(8, "channel"), _int(8, "tensor", False), UNPACKED),),
        _symmetric("input_activations", "input"),
    ),
    Fault(
        "dynamic asymmetric int8 inputs",
        (_group(LINEAR, _int(4, 32), _int(8, "token", False, True), UNPACKED),),
        _args("input_activations", symmetric=True),
    ),
    Fault(
        "int8 inputs of int4 experts",
        (_group(MOE, _int(4, 32), TOKEN_INT),),
        _args("input_activations", type="float"),
    ),
    # -- int8 inputs and outputs
    Fault(
        "zero points of weights beside int8 outputs",
        (_group(LINEAR, _int(4, 32, False), STATIC_INT, PACKED, STATIC_INT),),
        _symmetric("weights", "weight"),
    ),
    Fault(
        "zero points of inputs beside int8 outputs",
        (_group(LINEAR, _int(4, 32), _int(8, "tensor", False), PACKED, STATIC_INT),),
        _symmetric("input_activations", "input"),
    ),
    Fault(
        "zero points of outputs",
        (_group(LINEAR, _int(4, 32), STATIC_INT, PACKED, _int(8, "tensor", False)),),
        _symmetric("output_activations", "output"),
    ),
    Fault(
        "int8 outputs of one scale for weights",
        (_group(LINEAR, _int(8, "tensor"), STATIC_INT, UNPACKED, STATIC_INT),),
        _without("output_activations"),
    ),
    # -- weights
    Fault("int8 weights of one scale", (_group(LINEAR, _int(8, "tensor"), TOKEN_INT, UNPACKED),), _through_fp8),
    Fault("int8 weights stored as int8, alone", (_group(LINEAR, _int(8, "channel"), form=UNPACKED),), None),
    Fault("int8 zero points", (_group(LINEAR, _int(8, 32, False)),), _symmetric("weights", "weight")),
    Fault("int4 zero points a channel", (_group(LINEAR, _int(4, "channel", False)),), _symmetric("weights", "weight")),
    Fault("groups of 16", (_group(LINEAR, _int(4, 16)),), None),
    Fault("groups of 8 in odd bits", (_group(LINEAR, _int(5, 8, False)),), _symmetric("weights", "weight")),
    Fault("scales of fp8 blocks", (_group(LINEAR, _fp8((48, 40)), form=FLOAT),), _powers_of_two),
    Fault("fp8 blocks alone", (_group(LINEAR, _fp8((48, 40)), form=FLOAT),), None),
    Fault("int4 in groups of 32, fp8 inputs", (_group(LINEAR, _int(4, 32), TOKEN_FP8),), _without("input_activations")),
    Fault(
        "activation ordering with zero points",
        (_group(LINEAR, _int(4, 32, False)),),
        _without_order,
        rewrite="g_idx",
    ),
    # -- heads and embeddings
    Fault("a head found by its class", (_group("Linear", _int(4, 32)),), None, ignore=(LINEAR, MOE)),
    Fault("zero points of an embedding", (_group(EMBEDDING, _int(4, 32, False)),), _symmetric("weights", "weight")),
    Fault("an embedding found by name", (_group("re:.*embed_tokens", _int(8, "channel")),), None),
    Fault("an embedding stored as int8", (_group(EMBEDDING, _int(8, "channel"), form=UNPACKED),), None),
    # -- experts
    Fault(
        "experts in two groups",
        (
            _group(rf"re:{EXPERTS}\.[023]\.", _int(4, 32)),
            _group(rf"re:{EXPERTS}\.1\.", _int(8, "channel")),
        ),
        None,
    ),
    Fault("experts ignored beside mxfp4", (_group("Linear", _mx(4), form=MX4),), None, ignore=("lm_head", MOE)),
    Fault("one expert ignored", (_group(MOE, _int(4, 32)),), None, ignore=(rf"re:{EXPERTS}\.2\.",)),
    Fault(
        "experts of fp8 channels and one static input scale",
        (_group(MOE, _fp8("channel"), STATIC_FP8, FLOAT),),
        _without("input_activations"),
    ),
    Fault(
        "int8 experts", (_group(MOE, _int(8, "channel"), TOKEN_INT, UNPACKED),), _without("input_activations")
    ),
    Fault("fp8 experts alone", (_group(MOE, _fp8("channel"), form=FLOAT),), None),
    Fault(
        "fp8 experts in blocks, token inputs",
        (_group(MOE, _fp8((16, 16)), TOKEN_FP8, FLOAT),),
        _args("input_activations", strategy="group", group_size=16),
    ),
    Fault("int4 experts, a scale a channel", (_group(MOE, _int(4, "channel")),), None),
    Fault("experts as wide as their groups", (_group(MOE, _int(4, 32)),), _scales_in_another_order),
    Fault("activation ordering of experts", (_group(MOE, _int(4, 16)),), _without_order, rewrite="g_idx"),
    Fault(
        "int8 zero points of experts",
        (_group(MOE, _int(8, 32, False)),),
        _symmetric("weights", "weight"),
        plugin=PLUGIN,
    ),
    Fault("int4 zero points of experts", (_group(MOE, _int(4, 16, False)),), _untransposed, plugin=PLUGIN),
)  # fmt: skip


def write(fault: Fault, folder: Path) -> Path:
    quantize_and_save(unfused_model(), Variant(fault.groups, ignore=fault.ignore, rewrite=fault.rewrite), folder, IDS)
    return changed(folder, fault.first, folder) if fault.first is not None else folder


def changed(folder: Path, change: Change, to: Path) -> Path:
    """The checkpoint with ``change`` made, in ``to``."""
    raw, stored = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(stored, raw["quantization_config"])
    if to != folder:
        shutil.copytree(folder, to)
    (to / "config.json").write_text(json.dumps(raw))
    save_file(stored, to / "model.safetensors", metadata={"format": "pt"})
    return to
