"""What a checkpoint of ``demo_models.every_kind`` computes, without any of our code: weights as compressed-tensors
decompresses them, activations by the formulas of the design where there are any, else by compressed-tensors' own
fake-quantize. All in fp32."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from demo_models.every_kind import unfused_model
from safetensors.torch import load_file
from torch import Tensor

F8 = torch.float8_e4m3fn
Args = dict[str, Any]


@torch.no_grad()
def expected_logits(folder: Path, ids: Tensor, *, activations: bool = True) -> Tensor:
    """Logits [batch, tokens, vocabulary] of the quantized layers of ``folder``; ``activations=False``: with 16-bit
    activations, whatever the config says."""
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    model = _decompressed(folder, block)
    if activations:
        stored = load_file(folder / "model.safetensors")
        for name, group in _quantized(stored, block).items():
            _fake_quantize(model.get_submodule(name), group, _tensors(stored, name))
        _fake_quantize_states(model, block, stored)
    logits: Tensor = model(ids, use_cache=False).logits
    return logits


def _decompressed(folder: Path, block: dict[str, Any]) -> Any:
    stored = load_file(folder / "model.safetensors")
    quantized = _quantized(stored, block)
    dense = {
        # a look-up gives exactly what decompression stores; layers that multiply keep the scale out of the weight
        f"{name}.weight": decompressed(_tensors(stored, name), group, widen=not name.endswith("embed_tokens"))
        for name, group in quantized.items()
    }
    model = unfused_model(torch.float32)
    own = {k: stored[k].float() for k in model.state_dict() if k not in dense}
    model.load_state_dict(own | dense)
    return model


def _tensors(stored: dict[str, Tensor], module: str) -> dict[str, Tensor]:
    return {key.rpartition(".")[2]: tensor for key, tensor in stored.items() if key.rpartition(".")[0] == module}


def _quantized(stored: dict[str, Tensor], block: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Module -> its config group."""
    groups = [g for g in block["config_groups"].values() if g["weights"] is not None]
    groups = [{**g, "format": g.get("format") or block["format"]} for g in groups]
    names = sorted({key.removesuffix(".weight_scale") for key in stored if key.endswith(".weight_scale")})
    return {name: groups[0] if len(groups) == 1 else _group_of(name, groups) for name in names}


def _group_of(name: str, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """By exact names, then by regular expressions in alphabetical order, then by the class."""
    of = {target: group for group in groups for target in group["targets"]}
    regexes = sorted(target for target in of if target.startswith("re:") and re.match(target[3:], name))
    return of[next(target for target in (name, *regexes, "Linear") if target in of)]


def decompressed(tensors: dict[str, Tensor], group: dict[str, Any], *, widen: bool) -> Tensor:
    """The weight [N, K] as fp32. ``widen``: scales first, so that compressed-tensors does not round what it makes."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    if widen and "weight_global_scale" in tensors:  # decompression always gives bfloat16 here
        packed, scale = tensors["weight_packed"], tensors["weight_scale"].float() / tensors["weight_global_scale"]
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
        return (codes.unflatten(-1, (-1, 16)) * scale.unsqueeze(-1)).flatten(1)
    state = dict(tensors)
    if widen and state["weight_scale"].dtype.is_floating_point:
        state["weight_scale"] = state["weight_scale"].float()
    args = {key: value for key, value in group["weights"].items() if key != "actorder"}  # the stored order counts
    order = state.pop("weight_g_idx", None)
    if order is not None:  # it no longer reads them: as groups of one column
        args["group_size"] = 1
        for key in state.keys() & {"weight_scale", "weight_zero_point"}:
            state[key] = state[key][:, order]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    compressor: Any = BaseCompressor.get_value_from_registry(group["format"])
    weight: Tensor = compressor.decompress(state, scheme)["weight"]
    return weight.float()


def _fake_quantize(layer: torch.nn.Module, group: dict[str, Any], stored: dict[str, Tensor]) -> None:
    inputs, outputs = group["input_activations"], group["output_activations"]
    if inputs is not None:
        layer.register_forward_pre_hook(lambda _, given: fake_quantized(given[0], inputs, stored, "input"))
    if outputs is not None:
        layer.register_forward_hook(lambda _, given, result: fake_quantized(result, outputs, stored, "output"))


def fake_quantized(x: Tensor, args: Args, stored: dict[str, Tensor], side: str) -> Tensor:
    """The values that the codes of x [..., K] stand for."""
    if args["type"] == "int":
        return _integers(x, args, stored.get(f"{side}_scale"), stored.get(f"{side}_zero_point"))
    if args["num_bits"] == 4 or args.get("scale_dtype") == "torch.uint8":
        return _small_floats(x, args, stored.get(f"{side}_global_scale"))
    rows = _rows(x, args)
    scale = rows.abs().amax(-1, keepdim=True) / 448 if args["dynamic"] else stored[f"{side}_scale"].float()
    return ((rows / scale).clamp(-448, 448).to(F8).float() * scale).reshape(x.shape)


def _integers(x: Tensor, args: Args, scale: Tensor | None, zero: Tensor | None) -> Tensor:
    rows = _rows(x, args)
    top = 2 ** (args["num_bits"] - 1) - 1
    low = -top - 1
    if args["dynamic"]:
        if args["symmetric"]:
            scale = rows.abs().amax(-1, keepdim=True) / top
        else:
            least, most = rows.amin(-1, keepdim=True).clamp(max=0), rows.amax(-1, keepdim=True).clamp(min=0)
            scale = (most - least) / (top - low)
            zero = torch.round(low - least / scale)
    assert scale is not None
    offset = torch.zeros(1) if zero is None or args["symmetric"] else zero.float()
    codes = torch.round(rows / scale.float() + offset).clamp(low, top)
    return ((codes - offset) * scale.float()).reshape(x.shape)


def _rows(x: Tensor, args: Args) -> Tensor:
    """x, reshaped so that what shares a scale is a row."""
    if args["strategy"] == "tensor":
        return x.reshape(1, -1)
    return x.unflatten(-1, (-1, args["group_size"])) if args["strategy"] == "group" else x


def _small_floats(x: Tensor, args: Args, overall: Tensor | None) -> Tensor:
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    parsed, batch = QuantizationArgs(**args), x.reshape(1, -1, x.shape[-1])
    scale, zero = compute_dynamic_scales_and_zp(batch, parsed, torch.nn.Linear(1, 1), global_scale=overall)
    result: Tensor = fake_quantize(batch, scale, zero, parsed, global_scale=overall)
    return result.reshape(x.shape)


class _Rounding:
    """Takes the place of the cache of one attention module: rounds keys and values, stores nothing."""

    def __init__(self, scales: dict[str, Tensor]) -> None:
        self.scales = scales

    def round(self, part: str, states: Tensor) -> Tensor:
        scale = self.scales[f"{part}_scale"].float()
        return (states / scale).clamp(-448, 448).to(F8).float() * scale

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.round("k", keys), self.round("v", values)


def _fake_quantize_states(model: Any, block: dict[str, Any], stored: dict[str, Tensor]) -> None:
    for name, module in model.named_modules():
        scales = _tensors(stored, name)
        if "k_scale" in scales:
            module.register_forward_pre_hook(_with_cache(_Rounding(scales)), with_kwargs=True)
        if "q_scale" in scales:
            _round_queries(model, _Rounding(scales))


def _with_cache(cache: _Rounding) -> Callable[..., Any]:
    # transformers has had two names for this argument
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeAttention

    known = inspect.signature(Qwen3MoeAttention.forward).parameters
    key = "past_key_values" if "past_key_values" in known else "cache"
    return lambda module, given, named: (given, {**named, key: cache})


def _round_queries(model: Any, rounding: _Rounding) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original, name = ALL_ATTENTION_FUNCTIONS["sdpa"], "expected_logits_with_rounded_queries"

    def attend(module: Any, query: Tensor, *rest: Any, **more: Any) -> Any:
        return original(module, rounding.round("q", query), *rest, **more)

    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model.set_attn_implementation(name)
