"""Torch half: stored words to codes, scales and zero points as kernels take them, and back to the same bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quantdispatch import CheckpointError
from quantdispatch.numerics.packing import pack_int32, unpack_int32
from quantdispatch.registry.operands import Operands
from quantdispatch.registry.scheme import LayerShape
from quantdispatch.schemes.reference.integer import IntegerNumerics
from quantdispatch.schemes.reference.values import extras, stored_bias, take, take_scale

from .formats import GEMM_ORDER, GEMV, GPTQ, GPTQ_V2, GPTQ_WORDS, gemv_width

_KNOWN = frozenset({"qweight", "qzeros", "scales", "g_idx", "bias"})
#: nibbles of a word in the order of their columns
_GEMM_PLACES = tuple(GEMM_ORDER.index(column) for column in range(8))
#: a word with a 1 in each value
_ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


class _ForeignNumerics(IntegerNumerics, ABC):
    """``dequantize`` and ``forward`` are those of ``wNa16_int``."""

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        """Raises ``CheckpointError`` for scales that are not finite and above zero, zero points that differ from the
        middle where the config says that there are none, and a ``g_idx`` that does not share out the columns."""
        groups = self._grid(shape)[1]
        scale, zero_point = self._scales(tensors, shape, groups, name)
        if self.weights.symmetric and bool(zero_point.any()):
            raise CheckpointError(
                f"qzeros holds {int((zero_point != 0).sum())} zero points that are not the middle of the range, and "
                "the config says that weights are symmetric", layer=name, field="qzeros",
                observed=int(zero_point[zero_point != 0][0]) + self._half, required=self._half,
                remedy="correct the config: sym or zero_point, or the version of the format", code="QD658",
            )  # fmt: skip
        return Operands(
            codes=self._codes_of(take(tensors, "qweight", name), shape),
            scale=scale,
            zero_point=None if self.weights.symmetric else zero_point,
            g_idx=self._order(tensors, shape.k, groups, name),
            bias=tensors.get("bias"),
            extra=extras(tensors, _KNOWN),
        )

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        zero_point = operands.zero_point
        if zero_point is None:
            zero_point = torch.zeros(operands.scale.shape, dtype=torch.int8, device=operands.scale.device)
        tensors = {"qweight": self._words_of(operands.codes), **self._stored_scales(operands.scale, zero_point, shape)}
        return {**operands.extra, **tensors, **stored_bias(operands)}

    @property
    def _half(self) -> int:
        return 1 << (self.weights.num_bits - 1)

    def _scales(self, tensors: Mapping[str, Any], shape: LayerShape, groups: int, name: str) -> tuple[Tensor, Tensor]:
        """Scales and signed zero points, both [N, G]; stored [G, N]."""
        scale = take_scale(tensors, "scales", name, (groups, shape.n))
        zero_point = self._zeros_of(take(tensors, "qzeros", name), shape.n)
        return scale.t().contiguous(), zero_point.t().contiguous()

    def _stored_scales(self, scale: Tensor, zero_point: Tensor, shape: LayerShape) -> dict[str, Tensor]:
        return {"qzeros": self._zero_words(zero_point.t().contiguous()), "scales": scale.t().contiguous()}

    def _order(self, tensors: Mapping[str, Any], k: int, groups: int, name: str) -> Tensor | None:
        return None

    # -- words of one format: codes int8 [N, K], zero points int8 [G, N], both signed

    @abstractmethod
    def _codes_of(self, words: Tensor, shape: LayerShape) -> Tensor: ...

    @abstractmethod
    def _words_of(self, codes: Tensor) -> Tensor: ...

    @abstractmethod
    def _zeros_of(self, words: Tensor, n: int) -> Tensor: ...

    @abstractmethod
    def _zero_words(self, zeros: Tensor) -> Tensor: ...


class AWQNumerics(_ForeignNumerics):
    """Values are 0 to 15, zero points too. ``gemm`` packs along N in the order of :data:`.formats.GEMM_ORDER`, ``gemv``
    along K as they come."""

    def _codes_of(self, words: Tensor, shape: LayerShape) -> Tensor:
        if self.layer.format == GEMV:
            return unpack_int32(words, 4, shape.k)
        return _permuted(unpack_int32(words, 4, shape.n), _GEMM_PLACES).t().contiguous()

    def _words_of(self, codes: Tensor) -> Tensor:
        if self.layer.format == GEMV:
            return pack_int32(codes, 4)
        return pack_int32(_permuted(codes.t().contiguous(), GEMM_ORDER), 4)

    def _zeros_of(self, words: Tensor, n: int) -> Tensor:
        return _permuted(unpack_int32(words, 4, n), _GEMM_PLACES)

    def _zero_words(self, zeros: Tensor) -> Tensor:
        return pack_int32(_permuted(zeros, GEMM_ORDER), 4)

    def _scales(self, tensors: Mapping[str, Any], shape: LayerShape, groups: int, name: str) -> tuple[Tensor, Tensor]:
        if self.layer.format != GEMV:
            return super()._scales(tensors, shape, groups, name)
        # what fills the rows up is no scale
        used = {"scales": take(tensors, "scales", name)[:, :groups].contiguous()}
        scale = take_scale(used, "scales", name, (shape.n, groups))
        words = take(tensors, "qzeros", name)
        return scale, unpack_int32(words, 4, words.shape[1] * 8)[:, :groups].contiguous()

    def _stored_scales(self, scale: Tensor, zero_point: Tensor, shape: LayerShape) -> dict[str, Tensor]:
        if self.layer.format != GEMV:
            return super()._stored_scales(scale, zero_point, shape)
        width = gemv_width(scale.shape[1], self.weights.group_size or shape.k)
        scales = scale.new_zeros(shape.n, width * 8)
        zeros = torch.full_like(scales, -8, dtype=torch.int8)  # stored as 0
        scales[:, : scale.shape[1]], zeros[:, : scale.shape[1]] = scale, zero_point
        return {"qzeros": pack_int32(zeros, 4), "scales": scales}


class GPTQNumerics(_ForeignNumerics):
    """Values are packed along K, zero points along N, both densely: 3 bits straddle words."""

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        g_idx = operands.g_idx
        if g_idx is None:
            g_idx = self._in_order(shape.k, operands.scale.shape[1], operands.scale.device)
        return {**super().stored(operands, shape), "g_idx": g_idx.to(torch.int32)}

    def _codes_of(self, words: Tensor, shape: LayerShape) -> Tensor:
        return unpack_int32(words, self.weights.num_bits, shape.k, axis=0).t().contiguous()

    def _words_of(self, codes: Tensor) -> Tensor:
        return pack_int32(codes.t().contiguous(), self.weights.num_bits, axis=0)

    def _zeros_of(self, words: Tensor, n: int) -> Tensor:
        bits = self.weights.num_bits
        if self.layer.format == GPTQ_WORDS:
            words = words + _ONES[bits]  # int32 wraps round, as it did when they were subtracted
        zeros = unpack_int32(words, bits, n)
        return self._shifted(zeros, 1) if self.layer.format == GPTQ else zeros

    def _zero_words(self, zeros: Tensor) -> Tensor:
        bits = self.weights.num_bits
        if self.layer.format == GPTQ_WORDS:
            return pack_int32(zeros, bits) - _ONES[bits]
        return pack_int32(zeros if self.layer.format == GPTQ_V2 else self._shifted(zeros, -1), bits)

    def _shifted(self, zeros: Tensor, by: int) -> Tensor:
        """Zero points 0 to 2^b - 1, held signed, moved by one with the ends joined: 0 is stored as the largest."""
        values = zeros.to(torch.int16) + (self._half + by)
        return ((values & (2 * self._half - 1)) - self._half).to(torch.int8)

    def _in_order(self, k: int, groups: int, device: torch.device) -> Tensor:
        return torch.arange(k, device=device) // (k // groups)

    def _order(self, tensors: Mapping[str, Any], k: int, groups: int, name: str) -> Tensor | None:
        if "g_idx" not in tensors:
            return None
        g_idx = take(tensors, "g_idx", name).to(torch.int64)
        if torch.equal(g_idx, self._in_order(k, groups, g_idx.device)):
            return None
        inside = bool(((g_idx >= 0) & (g_idx < groups)).all())
        even = inside and bool((torch.bincount(g_idx, minlength=groups) == k // groups).all())
        if self.weights.actorder != "group" or not even:
            raise CheckpointError(
                "g_idx does not give every group its share of columns" if self.weights.actorder == "group"
                else "g_idx takes columns out of their order, and the config says that they are in order",
                layer=name, field="g_idx", observed=f"{int(g_idx.min())}..{int(g_idx.max())} over {k} columns",
                required=f"each of 0..{groups - 1} {k // groups} times" if self.weights.actorder == "group"
                else "column k in group k // group_size", remedy="correct the config: desc_act or group_size",
                code="QD658",
            )  # fmt: skip
        return g_idx.to(torch.int32)


def _permuted(values: Tensor, order: tuple[int, ...]) -> Tensor:
    """[R, C] with the columns of each run of eight in ``order``."""
    return values.view(values.shape[0], -1, 8)[:, :, list(order)].reshape(values.shape)
