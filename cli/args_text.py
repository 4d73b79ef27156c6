"""All quant args of one layer in a phrase: ``int4 asymmetric, group 64 -> bf16``."""

from __future__ import annotations

from ..registry.args import QuantArgs

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def layer_text(
    weights: QuantArgs | None, inputs: QuantArgs | None, outputs: QuantArgs | None, dtype: str | None = None
) -> str:
    """``dtype``: of the layer's activations, e.g. ``"bfloat16"``. Empty for a layer that is not quantized."""
    if weights is None and inputs is None and outputs is None:
        return ""
    if weights is None and outputs is None and inputs is not None:  # a cache, or attention
        return inputs.describe()
    parts = [weights.describe() if weights is not None else "weights unquantized"]
    parts += [
        f"{side} {args.describe()}" for side, args in (("inputs", inputs), ("outputs", outputs)) if args is not None
    ]
    return "; ".join(parts) + (f" -> {_SHORT.get(dtype, dtype)}" if dtype else "")
