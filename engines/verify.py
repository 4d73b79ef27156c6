"""Every layer's kernel against compressed-tensors' own decompression: the engine behind ``quantdispatch verify``.

For each quantized layer, one at a time, so that memory stays at one layer: read its tensors, compare our weight with
the one that compressed-tensors decompresses (exactly), then compare the kernel's output on random input with a
float64 product of that weight and of the input as the scheme quantizes it.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..numerics.activations import FP8_MAX, quantize_outputs, seen_inputs
from ..numerics.microscaling import mx_scale
from ..registry.args import QuantArgs
from ..registry.config_groups import KNOWN_FORMATS
from ..registry.facts import KernelSpec
from ..registry.lazy import load_target
from ..registry.operands import Operands
from ..registry.plan import Resolution, plan
from .cache import QuantCache
from .embedding import QuantEmbedding
from .loading import local_folder, require_tensors, torch_device
from .modules import QuantLinear
from .packed import PackedLayer
from .progress import on_terminal, track
from .tensors import dtype_name, read_tensor
from .transform_loading import own_tensors

#: rows of random input: enough for every path a kernel may take at small M, and for a mean
ROWS = 16


@dataclass(frozen=True)
class Row:
    """One layer's verdict. ``error``: norm of the difference over norm of the truth; ``largest``: the largest single
    difference over the largest output. ``weights_equal``: bit for bit, ``None`` where compressed-tensors cannot say
    (``note`` tells why). ``exact``: the kernel computes what the scheme says, without deviations."""

    name: str
    scheme: str
    kernel: str
    error: float
    largest: float
    weights_equal: bool | None
    exact: bool
    note: str = ""


def verify(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    backend: str | None = None,
    allow: str | Iterable[str] = (),
    seed: int = 0,
) -> list[Row]:
    """Check every quantized layer of a checkpoint, worst error first.

    Raises what :func:`quantdispatch.load` raises for the plan, the tensors and the kernels.
    """
    target, folder = torch_device(device), local_folder(path)
    resolved = plan(folder, device=target.type, dtype=dtype_name(dtype), backend=backend, allow=allow, strict=True)
    require_tensors(resolved, folder)
    layers = [r for r in resolved.layers.values() if r.scheme_object is not None and r.scheme != "dense"]
    generator = torch.Generator().manual_seed(seed)
    shown = track(layers, "Verifying layers", show=on_terminal())
    rows = [_row(layer, target, dtype, backend, generator) for layer in shown]
    return sorted(rows, key=lambda row: (row.weights_equal is not False, -row.error, row.name))


@torch.no_grad()
def _row(
    layer: Resolution, device: torch.device, dtype: torch.dtype, backend: str | None, generator: torch.Generator
) -> Row:
    assert layer.scheme_object is not None and layer.spec is not None
    stored = {local: read_tensor(entry) for local, entry in own_tensors(layer).items()}
    spec = layer.scheme_object.kernel_spec(layer.shape, dtype_name(dtype), tensors=frozenset(stored))
    spec = replace(spec, allow=layer.spec.allow)
    if layer.spec.op == "kv_cache":
        return _cache_row(layer, stored, spec, device, generator, backend)
    assert layer.shape is not None
    if layer.spec.op == "embedding":
        return _table_row(layer, stored, spec, device, generator, backend)
    module = QuantLinear(layer.name, layer.scheme_object, layer.shape, spec, backend=backend)
    module.load_stored(stored, device)
    assert module.kernel is not None
    operands = module.operands()
    weight, equal, note = _reference_weight(layer, stored, module)
    x = torch.randn(ROWS, layer.shape.k, generator=generator).to(device, dtype)
    seen = x.double() if _ignores_inputs(module.kernel.deviations) else quantized_inputs(x, layer, operands)
    truth = seen @ weight.to(device).double().T
    if operands.bias is not None:
        truth += operands.bias.double()
    if layer.outputs is not None:
        truth = quantize_outputs(truth, layer.outputs, operands.output_scale, operands.output_zero_point)
    return _verdict(layer, module, module(x), truth, equal, note)


def _table_row(
    layer: Resolution,
    stored: Mapping[str, torch.Tensor],
    spec: KernelSpec,
    device: torch.device,
    generator: torch.Generator,
    backend: str | None,
) -> Row:
    """An embedding: rows of the weight, looked up."""
    assert layer.scheme_object is not None and layer.shape is not None
    module = QuantEmbedding(layer.name, layer.scheme_object, layer.shape, spec, backend=backend)
    module.load_stored(stored, device)
    weight, equal, note = _reference_weight(layer, stored, module)
    index = torch.randint(layer.shape.n, (ROWS,), generator=generator).to(device)
    truth = weight.to(device).double()[index]
    return _verdict(layer, module, module(index), truth, equal, note)


def _verdict(
    layer: Resolution, module: PackedLayer, found: torch.Tensor, truth: torch.Tensor, equal: bool | None, note: str
) -> Row:
    """``found`` by the layer's kernel against ``truth``, float64."""
    assert module.kernel is not None
    difference = found.double() - truth
    return Row(
        name=layer.name,
        scheme=str(layer.scheme),
        kernel=module.kernel.name,
        error=_ratio(difference.norm(), truth.norm()),
        largest=_ratio(difference.abs().max(), truth.abs().max()),
        weights_equal=equal,
        exact=not module.kernel.deviations,
        note=note,
    )


def _cache_row(
    layer: Resolution,
    stored: Mapping[str, torch.Tensor],
    spec: KernelSpec,
    device: torch.device,
    generator: torch.Generator,
    backend: str | None,
) -> Row:
    """A cache has no weight to compare: keys, values and queries that fill the range of their scales go through it and
    back, and through float8 by the definition, in float64."""
    assert layer.scheme_object is not None
    module = QuantCache(layer.name, layer.scheme_object, spec, backend=backend)
    module.load_stored(stored, device)
    operands = module.operands()
    found, truth = [], []
    for part in module.parts:
        scale: torch.Tensor = getattr(operands, f"{part}_scale")
        wide = scale.double()
        heads = scale.shape[0] if scale.ndim == 3 else 2
        states = torch.randn(1, heads, ROWS, 32, generator=generator).to(device) * 200 * wide
        states = states.to(module.dtype)
        codes = (states.double() / wide).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        # each part by its own measure: scales differ by orders of magnitude
        truth.append((codes.double() * wide / wide.max()).flatten())
        found.append((module.round(part, states).double() / wide.max()).flatten())
    note = "a cache: keys, values and queries through float8 and back"
    note = note if "q" in module.parts else note.replace(", values and queries", " and values")
    return _verdict(layer, module, torch.cat(found), torch.cat(truth), None, note)


def quantized_inputs(x: torch.Tensor, layer: Resolution, operands: Operands) -> torch.Tensor:
    """x as the scheme quantizes and dequantizes it, in float64; x itself where inputs stay unquantized.

    A scheme whose inputs are no plain integers or fp8 says so itself: its numerics have ``quantized_inputs``.
    """
    assert layer.scheme_object is not None
    numerics = load_target(layer.scheme_object.numerics)(layer.scheme_object.layer)
    if hasattr(numerics, "quantized_inputs"):
        own: torch.Tensor = numerics.quantized_inputs(x, operands)
        return own.double()
    seen, factor = seen_inputs(x, layer.inputs, operands.input_scale, operands.input_zero_point, torch.float64)
    return seen if factor is None else seen * factor.double()


def _reference_weight(
    layer: Resolution, stored: Mapping[str, torch.Tensor], module: QuantLinear | QuantEmbedding
) -> tuple[torch.Tensor, bool | None, str]:
    """compressed-tensors' weight where it can decompress the layer, else ours; are they equal; and why not known."""
    ours = module.dense_weight()
    theirs, note = decompress(layer, stored)
    if theirs is None:
        return ours, None, note
    theirs = theirs.to(ours.device)
    return theirs, bool(ours.dtype == theirs.dtype and torch.equal(ours, theirs)), note


def decompress(layer: Resolution, stored: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor | None, str]:
    """What the installed compressed-tensors decompresses from a layer's stored tensors, or why it cannot."""
    try:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    except ImportError:
        return None, "compressed-tensors is not installed"
    if layer.format is not None and layer.format not in KNOWN_FORMATS:
        return None, f"{layer.format} is no format of compressed-tensors: the weight is the one that its scheme decodes"
    if layer.shape is not None and layer.shape.packing == "padded" and not _reads_padded():
        return None, "compressed-tensors reads padded words only up to 0.17, newer ones take them for dense"
    try:
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=_foreign(QuantizationArgs, layer.weights),
            input_activations=_foreign(QuantizationArgs, layer.inputs),
        )
        compressor = BaseCompressor.get_value_from_registry(layer.format)
        weight: torch.Tensor = compressor.decompress(_as_written(layer, stored), scheme)["weight"]
    except Exception as error:  # it refuses in many ways what it no longer reads; the row says so
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        return None, f"compressed-tensors cannot decompress it: {reason}"
    return weight, ""


def _as_written(layer: Resolution, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same bytes under the dtypes that compressed-tensors itself writes: it reads values where others have bits."""
    tensors = dict(stored)
    scale = tensors.get("weight_scale")
    if scale is not None and scale.dtype == torch.float8_e8m0fnu:
        scale = scale.view(torch.uint8)
    if scale is not None and scale.dtype == torch.uint8:
        if layer.format == "nvfp4-pack-quantized":
            scale = scale.view(torch.float8_e4m3fn)
        elif layer.format in ("float-quantized", "naive-quantized"):
            # these formats know no exponents: its product would be one of bytes
            scale = mx_scale(scale, torch.bfloat16)
    if scale is not None:
        tensors["weight_scale"] = scale
    if "weight_global_scale" in tensors:
        tensors["weight_global_scale"] = tensors["weight_global_scale"].reshape(1)
    return tensors


def _reads_padded() -> bool:
    major, minor = importlib.metadata.version("compressed-tensors").split(".")[:2]
    return (int(major), int(minor)) < (0, 18)


def _foreign(cls: Any, args: QuantArgs | None) -> Any:
    if args is None:
        return None
    return cls(**{name: value for name, value in args.model_dump().items() if value is not None})


def _ignores_inputs(deviations: tuple[str, ...]) -> bool:
    return any("inputs stay unquantized" in deviation for deviation in deviations)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> float:
    """A NaN or an infinity is an error without bound, and sorts first."""
    value = float(part) / float(whole) if float(whole) else float(part)
    return value if value == value else float("inf")
