"""The one form in which schemes hand a layer's weights to kernels.

Schemes turn whatever the file stores into :class:`Operands`; kernels turn those into their own layout and back. This
file only names the parts: it is pure Python, the values are torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Operands:
    """A quantized layer's tensors, unpacked. N is the number of outputs, K of inputs, G of groups along K.

    ``codes``: int8 [N, K], the signed integer codes q (offset-binary already removed), or float8_e4m3fn [N, K], which
        holds fp8 codes and, exactly, the values of fp4 (e2m1) and fp6 (e2m3) codes.
    ``scale``: in the dtype of the file; uint8 is an exponent of two with bias 127. tensor [1, 1]; channel [N, 1];
        group [N, G]; block [ceil(N/bn), ceil(K/bk)].
    ``zero_point``: int8 of the shape of ``scale``, signed like ``codes``, or ``None`` when symmetric.
        The weight is ``(codes - zero_point) * scale``.
    ``g_idx``: int32 [K], group of each input column, or ``None`` when column k is in group k // group_size.
    ``global_scale``: fp32 [1] or ``None``: what all of ``scale`` is divided by (NVFP4).
    ``input_scale``: [1] and ``input_zero_point``: int8 [1] or ``None``, for static input quantization.
    ``input_global_scale``: fp32 [1] or ``None``: what the inputs' group scales are divided by (NVFP4).
    ``output_scale``, ``output_zero_point``: as for inputs, for static output quantization.
    ``k_scale``, ``v_scale``, ``q_scale``: [1] or [heads, 1, 1], of a quantized cache and of attention, which have no
        ``codes`` and no ``scale``.
    ``bias``: [N] or ``None``.
    ``extra``: further stored tensors by local name, kept so that saving writes them back.
    """

    codes: Any
    scale: Any
    zero_point: Any | None = None
    g_idx: Any | None = None
    input_scale: Any | None = None
    input_zero_point: Any | None = None
    bias: Any | None = None
    global_scale: Any | None = None
    input_global_scale: Any | None = None
    output_scale: Any | None = None
    output_zero_point: Any | None = None
    k_scale: Any | None = None
    v_scale: Any | None = None
    q_scale: Any | None = None
    extra: dict[str, Any] = field(default_factory=dict)
