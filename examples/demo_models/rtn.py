"""Data-free round-to-nearest quantization, with compressed-tensors doing all that decides how tensors are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .legacy import column_order, rewrite_checkpoint
from .quiet import quiet
from .variants import Variant

Range = tuple[Tensor, Tensor]
#: projections that engines compute as one, and that therefore share a scale of the whole tensor
FUSED = (("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"))


def quantize_and_save(
    model: nn.Module,
    variant: Variant,
    folder: Path,
    calibration: Tensor | None = None,
    *,
    like_llmcompressor: bool = False,
    **save: Any,
) -> None:
    """Quantize `model` in place and write a compressed-tensors checkpoint into `folder`.

    `calibration` holds token ids [batch, tokens]; only static scales of inputs and outputs are taken from it.
    `like_llmcompressor`: observe weights as its observers do, in the model's dtype and with one global scale for
    `FUSED` projections; otherwise in fp32, each by itself. `save` goes to `save_pretrained` (for example
    `max_shard_size`).
    """
    # Heavy, and its import sets up logging: only who makes a checkpoint pays for it.
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config

    ranges = _activation_ranges(model, calibration) if variant.needs_calibration else {}
    groups = {
        f"group_{index}": {
            "targets": list(group.targets),
            "weights": group.weights,
            "input_activations": group.inputs,
            **({"output_activations": group.outputs} if group.outputs else {}),
            **({"format": group.format} if group.format else {}),
        }
        for index, group in enumerate(variant.groups)
    }
    with quiet():
        config = QuantizationConfig(
            config_groups=groups,
            ignore=list(variant.ignore),
            quantization_status=QuantizationStatus.INITIALIZED,
        )
        apply_quantization_config(model, config)
        shared = _shared_ranges(model) if like_llmcompressor else {}
        for name, module in model.named_modules():
            if getattr(module, "quantization_scheme", None) is not None:
                if variant.rewrite == "g_idx":
                    module.weight.data = module.weight.data[:, column_order(module.weight.shape[1])].contiguous()
                observed = module.weight.detach()
                observed = observed if like_llmcompressor else observed.float()
                _set_qparams(module, observed, shared.get(name), ranges.get(name))
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(folder, **save)  # type: ignore[operator]
        compressor.update_config(str(folder))
    if variant.rewrite:
        rewrite_checkpoint(folder, variant.rewrite)


def _shared_ranges(model: nn.Module) -> dict[str, Range]:
    """Module -> least and greatest value of all weights that share its global scale."""
    ranges = {}
    for name, parent in model.named_modules():
        for group in FUSED:
            members = [child for child in group if hasattr(getattr(parent, child, None), "quantization_scheme")]
            weights = [parent.get_submodule(child).weight.detach() for child in members]
            if weights:
                whole = min(w.amin() for w in weights), max(w.amax() for w in weights)  # type: ignore[operator]
                ranges.update({f"{name}.{child}": whole for child in members})
    return ranges  # type: ignore[return-value]


def _set_qparams(module: nn.Module, weight: Tensor, whole: Range | None, ranges: dict[str, Range] | None) -> None:
    """`whole`: the range that a global scale covers, where it is not that of the weight."""
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = module.quantization_scheme
    low, high = _weight_range(weight, scheme.weights)  # type: ignore[union-attr]
    overall = _set_global_scale(module, "weight", *(whole or (low.amin(), high.amax())))
    _store(module, "weight", *calculate_qparams(low, high, scheme.weights, global_scale=overall))  # type: ignore[union-attr]
    for side in ("input", "output"):
        args = getattr(scheme, f"{side}_activations")
        if args is None or args.dynamic is True:
            continue
        if ranges is None:
            raise ValueError("static scales need a calibration text")
        if args.dynamic is False:
            _store(module, side, *calculate_qparams(*ranges[side], args))
        _set_global_scale(module, side, *ranges[side])


def _set_global_scale(module: nn.Module, name: str, low: Tensor, high: Tensor) -> Tensor | None:
    """NVFP4's scale of the whole tensor, where the module has one."""
    from compressed_tensors.quantization.utils import generate_gparam

    parameter = getattr(module, f"{name}_global_scale", None)
    if parameter is None:
        return None
    parameter.data.copy_(generate_gparam(low, high))
    return parameter.data  # type: ignore[no-any-return]


def _store(module: nn.Module, name: str, scale: Tensor, zero_point: Tensor) -> None:
    for suffix, value in (("scale", scale), ("zero_point", zero_point)):
        parameter = getattr(module, f"{name}_{suffix}", None)
        if parameter is not None:
            parameter.data.copy_(value.reshape(parameter.shape))


def _weight_range(weight: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    """Least and greatest value of each part of `weight` [N, K] that shares a scale, in the shape of the scale."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        parts = weight.reshape(1, -1)
    elif strategy == "channel":
        parts = weight.unsqueeze(1)
    elif strategy in ("group", "tensor_group"):
        parts = weight.unflatten(-1, (-1, args.group_size))
    elif strategy == "block":
        rows, columns = args.block_structure
        padding = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
        padded = nn.functional.pad(weight, padding)
        parts = padded.unflatten(0, (-1, rows)).unflatten(-1, (-1, columns)).transpose(1, 2).flatten(2)
    else:
        raise ValueError(f"no round-to-nearest for the weight strategy {strategy!r}")
    return parts.amin(-1), parts.amax(-1)


def _activation_ranges(model: nn.Module, calibration: Tensor | None) -> dict[str, dict[str, Range]]:
    """Least and greatest "input" and "output" of each linear layer over the calibration tokens."""
    if calibration is None:
        raise ValueError("static scales need a calibration text")
    ranges: dict[str, dict[str, Range]] = {}

    def watch(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            sides = {"input": args[0], "output": output}
            ranges[name] = {side: (x.float().amin(), x.float().amax()) for side, x in sides.items()}

        return hook

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            model(calibration)
    finally:
        for handle in handles:
            handle.remove()
    return ranges
