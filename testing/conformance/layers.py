"""A layer to try a scheme or a kernel with: its quant args, sizes and dtypes, and what is particular about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...registry.args import QuantArgs
from ...registry.facts import LayerFacts

#: what a layer may ask beyond symmetric integer weights and plain inputs; declared by name, tried where it is declared
LAYER_CAPABILITIES = {
    "zero-points": "asymmetric weights: codes less a zero point",
    "g-idx": "columns that belong to groups through a stored index",
    "blocks": "one scale for a block of rows and columns",
    "float-weights": "weights of fp8, fp6 or fp4 codes",
    "dynamic-inputs": "inputs quantized by scales made at run time",
    "static-inputs": "inputs quantized by a stored scale",
    "quantized-outputs": "outputs quantized by a stored scale",
    "dense": "weights that are not quantized",
    "experts": "projections of routed experts",
    "embedding": "rows looked up by index",
    "cache": "keys and values of a quantized cache",
    "bias": "a bias, added to the result",
    "odd-shapes": "an N or a K that 16 does not divide",
    "bfloat16": "activations in bfloat16",
    "float16": "activations in float16",
    "float32": "activations in float32",
}
#: what a kernel promises beside the layers that it takes
KERNEL_CAPABILITIES = {
    "repeatable": "the same input gives the same bits",
    "threads": "several threads may call one kernel at once",
    "packed": "the state takes no more memory than what is stored",
    "compile": "torch.compile traces it without a break",
    "fused-experts": "all routed experts of a layer in one call, by the function `fuse` of its class",
}
CAPABILITIES = {**LAYER_CAPABILITIES, **KERNEL_CAPABILITIES}
#: of a scheme these decide nothing: it computes for every shape and dtype, with and without a bias
OF_KERNELS = frozenset({"bias", "odd-shapes", "bfloat16", "float16", "float32", *KERNEL_CAPABILITIES})


@dataclass(frozen=True)
class Layer:
    """One layer. ``n`` outputs and ``k`` inputs (of a cache: heads and their width); ``dtype`` of activations and
    ``scale_dtype`` of plain float scales by torch's names; ``format`` ``None``: any that has a rule for it."""

    weights: QuantArgs | None
    inputs: QuantArgs | None = None
    outputs: QuantArgs | None = None
    kind: str = "linear"
    format: str | None = None
    n: int = 64
    k: int = 128
    dtype: str = "bfloat16"
    scale_dtype: str = "bfloat16"
    bias: bool = False
    seed: int = 0

    @property
    def facts(self) -> LayerFacts:
        """What rules see of it."""
        return LayerFacts(self.kind, self.format, self.weights, self.inputs, self.outputs)

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of :data:`LAYER_CAPABILITIES` that it takes to compute this layer."""
        weights, inputs = self.weights, self.inputs
        cache = self.kind in ("kv_cache", "attention")
        found = {
            "zero-points": weights is not None and not weights.symmetric,
            "g-idx": weights is not None and weights.actorder == "group",
            "blocks": weights is not None and weights.strategy == "block",
            "float-weights": weights is not None and weights.type == "float",
            "dynamic-inputs": not cache and inputs is not None and bool(inputs.dynamic),
            "static-inputs": not cache and inputs is not None and not inputs.dynamic,
            "quantized-outputs": self.outputs is not None,
            "dense": weights is None and not cache,
            "experts": self.kind == "moe",
            "embedding": self.kind == "embedding",
            "cache": cache,
            "bias": self.bias,
            "odd-shapes": not cache and bool(self.n % 16 or self.k % 16),
            self.dtype: True,
        }
        return frozenset(name for name, holds in found.items() if holds)

    def with_(self, **changes: Any) -> Layer:
        """The same layer but for ``changes``."""
        return replace(self, **changes)

    def __str__(self) -> str:
        sides = [side.describe() for side in (self.weights, self.inputs) if side is not None] or ["dense"]
        text = " x ".join(sides)
        if self.outputs is not None:
            text += f" to {self.outputs.describe()}"
        words = [text, f"{self.n}x{self.k}", self.dtype]
        words += [self.kind] if self.kind != "linear" else []
        words += [self.format] if self.format else []
        words += ["bias"] if self.bias else []
        return "; ".join(words)


def layer(
    weights: QuantArgs | Mapping[str, Any] | None,
    inputs: QuantArgs | Mapping[str, Any] | None = None,
    outputs: QuantArgs | Mapping[str, Any] | None = None,
    *,
    shape: tuple[int, int] = (64, 128),
    **fields: Any,
) -> Layer:
    """A :class:`Layer` from quant args as compressed-tensors spells them: ``layer({"num_bits": 4, "group_size": 32},
    shape=(64, 128), format="my-format", bias=True)``. ``shape`` is [N, K]. Raises pydantic's ``ValidationError`` for
    args that contradict each other, and ``TypeError`` for a field that a layer does not have."""
    n, k = shape
    return Layer(_args(weights), _args(inputs), _args(outputs), n=n, k=k, **fields)


def _args(given: QuantArgs | Mapping[str, Any] | None) -> QuantArgs | None:
    return QuantArgs(**given) if isinstance(given, Mapping) else given
