"""oneDNN's u8 x s8 product, kept exact and fast.

s8 activations run a reference path that is a hundred times slower, so codes go in as u8 with zero point 128. The op
takes one activation scale and ignores weight zero points without a word: both are applied outside.

Without VNNI the product adds pairs of u8 x s8 in 16 bits and saturates there, without a word too: right for weights of
up to 7 bits (2 * 255 * 64 < 2^15), wrong for 8. The probes ask the op itself.
"""

from __future__ import annotations

import threading
from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

#: weights whose reordered copy is kept, in bytes over all layers; beyond it the copy is made again in each call
PREPACK_LIMIT = 1 << 30

_packed: MutableMapping[Tensor, tuple[int | None, Tensor]] = WeakIdKeyDictionary()
_lock = threading.Lock()


def u8s8_mm(x: Tensor, codes: Tensor) -> Tensor:
    """Integer-valued x [M, K] in -128..127 (any float dtype) times codes int8 [N, K] transposed: exact sums, rounded to
    fp32 [M, N]."""
    unsigned = (x + 128).to(torch.uint8)
    n = codes.shape[0]
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned,
        1.0,
        128,
        _prepacked(codes),
        torch.ones(n, dtype=torch.float32, device="cpu"),
        torch.zeros(n, dtype=torch.int64, device="cpu"),
        None,
        1.0,
        0,
        torch.float32,
        "none",
        [],
        "",
    )
    return product


def _prepacked(codes: Tensor) -> Tensor:
    """The weight in oneDNN's own layout. Such a tensor can be neither copied nor pickled, so it is no part of the
    state; it is kept beside the codes for as long as they live."""
    version = None if codes.is_inference() else codes._version
    with _lock:
        found = _packed.get(codes)
    if found is not None and found[0] == version:
        return found[1]
    packed: Tensor = torch.ops.onednn.qlinear_prepack(codes, None)
    with _lock:
        if sum(p.numel() for _, p in _packed.values()) + codes.numel() <= PREPACK_LIMIT:
            _packed[codes] = (version, packed)
    return packed


def exact(weight_extreme: int) -> str | None:
    """``None`` if the op sums the largest products right on this processor, else the reason."""
    for k, n, m in ((576, 64, 1), (64, 16, 9), (37, 5, 3)):
        for code in (127, -128):
            x = torch.full((m, k), float(code), dtype=torch.float32, device="cpu")
            weight = torch.full((n, k), weight_extreme, dtype=torch.int8, device="cpu")
            wrong = (u8s8_mm(x, weight) - code * weight_extreme * k).abs().max().item()
            if wrong > 1e-6 * 128 * 128 * k:
                return (
                    f"the u8 x s8 product saturates in 16 bits on a processor without VNNI (off by {wrong:.0f}, K={k})"
                )
    return None
