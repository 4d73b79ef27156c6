"""Does an op do here what its kernel needs? ``None`` if so, else the reason. Run once, when a layer is bound."""

from __future__ import annotations

import torch

from . import int4_layout, u8s8


def int4() -> str | None:
    """The int4 op is there, gives back its codes, and means (u - 8) * scale + zero."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (48, 64), generator=generator, dtype=torch.uint8, device="cpu")
    packed = int4_layout.pack(values)
    if not (torch.equal(int4_layout.unpack(packed), values) and torch.equal(int4_layout.unpack_by_op(packed), values)):
        return "torch's int4 op does not give back the codes it was given"
    pairs = torch.tensor([0.5, -1.0], dtype=torch.bfloat16, device="cpu").expand(2, 48, 2).contiguous()
    x = torch.ones(3, 64, dtype=torch.bfloat16, device="cpu")
    expected = ((values.to(torch.float32) - 8) * 0.5 - 1).sum(-1)
    error = (torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, pairs) - expected).abs().max().item()
    return None if error <= 0.5 else f"torch's int4 op is off by {error}"


def int8() -> str | None:
    """The int8 op is there and computes x @ codes^T * scale for few and for many rows."""
    codes = torch.arange(-128, 128, dtype=torch.int16, device="cpu").view(8, 32).to(torch.int8)
    scale = torch.full((8,), 0.5, dtype=torch.bfloat16, device="cpu")
    for rows in (1, 5):
        x = torch.ones(rows, 32, dtype=torch.bfloat16, device="cpu")
        expected = codes.sum(-1).to(torch.float32) / 2
        error = (torch.ops.aten._weight_int8pack_mm(x, codes, scale) - expected).abs().max().item()
        if error > 8:
            return f"torch's int8 op is off by {error}"
    return None


def u8s8_8bit() -> str | None:
    """oneDNN's u8 x s8 product is exact for weights down to -128."""
    return u8s8.exact(-128) or u8s8.exact(127)


def u8s8_7bit() -> str | None:
    """oneDNN's u8 x s8 product is exact for weights of up to 7 bits."""
    return u8s8.exact(-64) or u8s8.exact(63)
