"""Layers whose inputs are quantized: one class for all, each scheme's own in terms of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...numerics.microscaling import is_nvfp4
from ...registry.args import QuantArgs
from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from . import ops
from .activations import fake_quantized, quantize
from .activations_linear import Product, multiply
from .activations_weights import (
    code_sums,
    pack_codes,
    pack_grid,
    product_of,
    small_inputs,
    unpack_codes,
    unpack_grid,
    with_scale,
)
from .linear import TritonLinear


class QuantizedLinear(TritonLinear):
    """State: ``packed`` [N, K] or [N, K' / 2] and ``scale``, ``zero`` [G, SR] in the layout of
    :mod:`.activations_weights`, e4m3 scales as uint8; ``sums`` [N] beside asymmetric inputs; ``global_scale``; and the
    stored parameters of inputs and outputs."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.product = product_of(spec)
        self.small_inputs = small_inputs(spec)
        self.how = args_key(self.inputs)
        # as texts, made here: torch.compile looks into forward
        plain, exponents = (
            with_scale(self.product, spec, torch.empty(0, dtype=dtype)) for dtype in (torch.float32, torch.uint8)
        )
        self._keys = plain.key(), exponents.key()

    # --- state ---

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands)
        stored = operands.scale.view(torch.uint8) if self._nv else operands.scale
        state |= {"packed": pack_codes(operands.codes, self.product), "scale": pack_grid(stored)}
        if operands.zero_point is not None:
            state["zero"] = pack_grid(operands.zero_point)
        if operands.global_scale is not None:
            state["global_scale"] = operands.global_scale
        if self.product.inputs == "int8" and self.inputs is not None and not self.inputs.symmetric:
            state["sums"] = code_sums(operands.codes, operands.scale, operands.zero_point, self.product)
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        scale, zero = unpack_grid(state["scale"]), state.get("zero")
        return self.restore(
            state,
            codes=unpack_codes(state["packed"], self.product, self.k),
            scale=scale.view(torch.float8_e4m3fn) if self._nv else scale,
            zero_point=None if zero is None else unpack_grid(zero),
            global_scale=state.get("global_scale"),
        )

    @property
    def _nv(self) -> bool:
        return is_nvfp4(self.weights)

    # --- product ---

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        scale = state["scale"]
        y: Tensor = quantized_linear(
            rows, state["packed"], scale, state.get("zero"), state.get("sums"), state.get("input_scale"),
            state.get("input_zero_point"), state.get("global_scale"), state.get("input_global_scale"),
            state.get("bias"), self.n, self._keys[scale.dtype == torch.uint8], self.how,
            self.small_inputs is not None, self.outputs is not None,
        )  # fmt: skip
        return y


def _quantized_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, sums: Tensor | None, input_scale: Tensor | None,
    input_zero_point: Tensor | None, global_scale: Tensor | None, input_global_scale: Tensor | None,
    bias: Tensor | None, n: int, product: str, inputs: str, small: bool, wide: bool,
) -> Tensor:  # fmt: skip
    """x [M, K] to [M, N] in x's dtype, or in fp32 if ``wide``. ``inputs``: args as JSON, empty for inputs that are left
    alone; ``small``: are they fake-quantized in small groups?"""
    out = torch.float32 if wide else x.dtype
    of = Product.of(product)
    seen, x_scale, x_zero = x, None, None
    args = args_of(inputs)
    if args is not None and small:
        seen = fake_quantized(x, args, input_global_scale)
    elif args is not None:
        seen, x_scale, x_zero = quantize(x, args, input_scale, input_zero_point)
    return multiply(of, seen, packed, scale, zero, sums, x_scale, x_zero, global_scale, bias, n, x.dtype, out)


def _fake(x: Tensor, *args: Any) -> Tensor:
    n, wide = args[9], args[-1]
    return x.new_empty((x.shape[0], n), dtype=torch.float32 if wide else x.dtype)


quantized_linear = ops.define(
    "quantized_linear(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? sums, Tensor? input_scale,"
    " Tensor? input_zero_point, Tensor? global_scale, Tensor? input_global_scale, Tensor? bias, SymInt n,"
    " str product, str inputs, bool small, bool wide) -> Tensor",
    _quantized_linear,
    _fake,
)


def args_key(args: QuantArgs | None) -> str:
    """Args as text, for operators."""
    return "" if args is None else json.dumps(args.to_json(), separators=(",", ":"))


@cache
def args_of(key: str) -> QuantArgs | None:
    return QuantArgs(**json.loads(key)) if key else None
