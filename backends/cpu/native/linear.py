"""``cpu/native``: weights of any format times activations of 16 or 32 bits, by the kernels in C++.

Inputs that the scheme quantizes are quantized by torch first, as for the other kernels; what they multiply are codes,
exact in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ....numerics.activations import quantize_outputs
from ....numerics.microscaling import fake_quantize, is_mx, is_nvfp4
from ....registry.facts import KernelSpec
from ....registry.operands import Operands
from ..activations import seen_inputs
from ..dequant import nan_rows
from ..linear import EXTRA, CpuLinear
from ..tracing import recording
from . import moe, pages, product, tiles
from .weights import Layout, pack_codes, sorted_columns, unpack_codes, unpack_rows

_MXFP8 = ("w8a8_mxfp8", "w8a16_mxfp8")


class NativeLinear(CpuLinear):
    """State: ``packed`` int32 [N up to a multiple of 16, R] (opaque), ``scale`` and ``zero`` flat, by tiles, e4m3
    scales as uint8; ``addend`` fp32 [N], what is added to the product: the bias, and NaN where fp8 weights hold one;
    ``global_scale``; ``g_idx`` and ``columns`` with activation ordering."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        args = self.weights
        self.layout = Layout.of(spec)
        small = args.type == "float" and (args.num_bits < 8 or is_mx(args) or spec.scheme in _MXFP8)
        self.nv = is_nvfp4(args)
        #: inputs in small groups that the scheme quantizes, all others in numerics' terms
        self.small_inputs = None
        inputs = self.inputs
        if small and inputs is not None and (is_nvfp4(inputs) or is_mx(inputs) or args.num_bits != 4):
            self.small_inputs = inputs
        self.direct = self.inputs is None and self.outputs is None
        #: of layers without activation ordering, by the dtype of scales: what the product is told about the layout
        self._numbers: dict[torch.dtype, tuple[int, ...]] = {}

    # --- state ---

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands)
        if operands.global_scale is not None:
            state["global_scale"] = operands.global_scale
        columns, layout = None, self.layout
        if operands.g_idx is not None:
            columns, width = sorted_columns(operands.g_idx, operands.scale.shape[1])
            layout = replace(layout, group=width)
            state |= {"g_idx": operands.g_idx, "columns": columns}
        codes = operands.codes.contiguous()
        state["packed"], nan = pack_codes(codes, layout, columns)
        scale = operands.scale.view(torch.uint8) if self.nv else operands.scale
        state["scale"] = pages.moved(tiles.to_tiles(self._outputs(scale)))
        if operands.zero_point is not None:
            state["zero"] = pages.moved(self._pack_zeros(operands.zero_point))
        addend = operands.bias
        if nan:
            addend = nan_rows(codes.view(torch.int8))["nan_rows"] + (0 if addend is None else addend.float())
        if addend is not None:
            # a copy even of an fp32 bias: the state's tensors are written one by one when weights are loaded
            state["addend"] = addend.to(torch.float32, copy=True)
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        columns = state.get("columns")
        layout = self._layout(columns)
        scale = tiles.from_tiles(state["scale"], self.n, layout.groups)
        zero = state.get("zero")
        return self._operands(
            unpack_codes(state["packed"], layout, columns),
            self._stored(scale),
            None if zero is None else self._stored(self._zeros(zero)),
            state,
        )

    def rows(self, index: Tensor, state: Mapping[str, Tensor]) -> Operands:
        """The layer with only the rows ``index`` [R] of its N, for an embedding that shares the weight; to be read with
        :func:`...numerics.rows.row_args`."""
        columns = state.get("columns")
        layout = self._layout(columns)
        scale = tiles.rows_of_tiles(state["scale"], self.n, layout.groups, index)
        zero = state.get("zero")
        if zero is not None:
            flat = self._flat_zeros(zero)
            zero = self._signed(tiles.rows_of_tiles(flat, self.n, layout.groups, index))
        if self.weights.strategy == "tensor":
            scale, zero = scale[:1], None if zero is None else zero[:1]
        return self._operands(unpack_rows(state["packed"], layout, columns, index), scale, zero, state)

    def stack(
        self, layers: Sequence[tuple[NativeLinear, Mapping[str, Tensor]]]
    ) -> tuple[NativeLinear, dict[str, Tensor], list[dict[str, Tensor]]] | None:
        """Layers of one input, given with their states, as one above the other: a kernel for all of their rows, its
        state, and each layer's own state as views of that one. ``None`` where they cannot be one product."""
        first = layers[0][1]
        kept = _product_names(first)
        alike = all(
            impl.k == self.k
            and (impl.weights, impl.inputs, impl.outputs, impl.dtype) == (self.weights, self.inputs, None, self.dtype)
            and _product_names(state) == kept
            and _width(impl, state) == _width(layers[0][0], first)
            for impl, state in layers
        )
        # what belongs to one layer alone; and a tile must not hold outputs of two
        if not alike or kept - {"packed", "scale", "zero"} or any(impl.n % tiles.TILE for impl, _ in layers[:-1]):
            return None
        named: list[dict[str, Tensor]] = [{name: state[name] for name in kept} for _, state in layers]
        # outside of inference mode, so that these can be used in and out of it
        with torch.inference_mode(False), torch.no_grad():
            if any("addend" in state for _, state in layers):
                for (impl, state), own in zip(layers, named, strict=True):
                    nothing = torch.zeros(impl.n, dtype=torch.float32, device="cpu")
                    own["addend"] = state.get("addend", nothing)
            whole = {name: torch.cat([own[name] for own in named]) for name in named[0]}
            for name, tensor in whole.items():
                start = 0
                for own in named:
                    stop = start + own[name].shape[0]
                    own[name], start = tensor[start:stop], stop
        views = [{**state, **own} for (_, state), own in zip(layers, named, strict=True)]
        return NativeLinear(replace(self.spec, n=sum(impl.n for impl, _ in layers))), whole, views

    #: of layers that are a layer's experts
    fuse = staticmethod(moe.fuse)

    def _layout(self, columns: Tensor | None) -> Layout:
        layout = self.layout
        return layout if columns is None else replace(layout, group=columns.numel() // layout.groups)

    def _outputs(self, values: Tensor) -> Tensor:
        """Scales or zero points as stored to [N, G]."""
        if self.weights.strategy == "block" and self.weights.block_structure is not None:
            return values.repeat_interleave(self.weights.block_structure[0], dim=0)[: self.n]
        return values.expand(self.n, -1)

    def _stored(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`_outputs`."""
        if self.weights.strategy == "tensor":
            return values[:1].clone()
        if self.weights.strategy == "block" and self.weights.block_structure is not None:
            return values[:: self.weights.block_structure[0]].clone()
        return values

    def _pack_zeros(self, zero_point: Tensor) -> Tensor:
        bits = self.layout.slot_bits
        shifted = zero_point.to(torch.int16) + (1 << (bits - 1))
        flat = tiles.to_tiles(self._outputs(shifted.to(torch.uint8)))
        if bits > 4 or int(shifted.max()) > 15:
            return flat
        return tiles.join_nibbles(flat, self.n, self.layout.groups)

    def _flat_zeros(self, zero: Tensor) -> Tensor:
        groups = self.layout.groups
        whole = zero.numel() == tiles.padded(self.n) * groups
        return zero if whole else tiles.split_nibbles(zero, self.n, groups)

    def _zeros(self, zero: Tensor) -> Tensor:
        return self._signed(tiles.from_tiles(self._flat_zeros(zero), self.n, self.layout.groups))

    def _signed(self, shifted: Tensor) -> Tensor:
        return shifted.sub_(1 << (self.layout.slot_bits - 1)).view(torch.int8)

    def _operands(
        self, codes: Tensor, scale: Tensor, zero_point: Tensor | None, state: Mapping[str, Tensor]
    ) -> Operands:
        if self.nv:
            scale = scale.view(torch.float8_e4m3fn)
        more = {name: state.get(name) for name in ("g_idx", "global_scale")}
        return self.restore(state, codes=codes, scale=scale, zero_point=zero_point, **more)

    # --- product ---

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """x [..., K] to [..., N] in x's dtype, bias added and outputs quantized.

        For inference: raises ``QuantDispatchError`` where a gradient would have to flow through, and for a dtype,
        device or K that this kernel was not bound for.
        """
        self.check(x)
        if self.direct:
            return self._multiply(x, state, state.get("addend"), False)
        y = self._quantized(x if x.ndim == 2 else x.reshape(-1, self.k), state)
        if self.outputs is not None and y.numel():
            y = quantize_outputs(y, self.outputs, state.get("output_scale"), state.get("output_zero_point"))
        y = y.to(x.dtype)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], self.n)

    def _quantized(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """fp32 [M, N] of inputs as the scheme sees them, bias added."""
        if rows.shape[0] == 0:
            return rows.new_empty((0, self.n), dtype=torch.float32)
        addend = state.get("addend")
        if self.small_inputs is not None:
            mx = not is_nvfp4(self.small_inputs)
            rows = fake_quantize(rows, self.small_inputs, state.get("input_global_scale"), mx=mx)
            return self._multiply(rows, state, addend, True)
        rows, scale = seen_inputs(rows, self.inputs, state.get("input_scale"), state.get("input_zero_point"))
        if scale is None:
            return self._multiply(rows, state, addend, True)
        y = self._multiply(rows.bfloat16(), state, None, True) * scale
        return y if addend is None else y + addend

    def _multiply(self, x: Tensor, state: Mapping[str, Tensor], addend: Tensor | None, wide: bool) -> Tensor:
        scale, columns = state["scale"], state.get("columns")
        numbers = self._numbers.get(scale.dtype)
        if numbers is None or columns is not None:
            layout = self._layout(columns)
            dtype = product.E4M3 if self.nv else product.SCALES[scale.dtype]
            numbers = (self.n, self.k, layout.group, layout.groups, layout.format, layout.slot_bits, dtype)
            if columns is None:
                self._numbers[scale.dtype] = numbers
        function = product.native_mm if recording() else product.multiply
        y: Tensor = function(
            x, state["packed"], scale, state.get("zero"), columns, addend, state.get("global_scale"), numbers, 1.0, wide
        )
        return y


def _product_names(state: Mapping[str, Tensor]) -> set[str]:
    """Of the tensors that the product takes, what is added to it aside."""
    return {name for name in state if name not in ("addend", "bias") and not name.startswith(EXTRA)}


def _width(impl: NativeLinear, state: Mapping[str, Tensor]) -> int:
    """Bits of a stored zero point, or 0."""
    zero = state.get("zero")
    return 0 if zero is None else 8 * zero.numel() // (tiles.padded(impl.n) * impl.layout.groups)
