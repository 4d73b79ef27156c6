"""The scheme: what ``wNa16_int`` is for a linear layer, for one projection of one expert.

Stored: ``weight_packed`` int32 [N, ceil(K b / 32)], ``weight_scale`` [N, G], ``weight_zero_point`` int32
[ceil(N b / 32), G], both offset-binary, packed along N, and ``weight_shape`` (compressed-tensors,
``compressors/pack_quantized``). Computed: ``x @ ((q - z) * s).T``, by whichever kernel takes these args for ``moe``.
"""

from __future__ import annotations

from quantdispatch.schemes.wna16_int import WNA16Int


class AsymmetricMoE(WNA16Int):
    """``w4a16`` and ``w8a16`` with zero points."""
