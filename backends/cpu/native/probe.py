"""Do the native kernels work here? ``None`` if so, else the reason. Run once, when a layer is bound."""

from __future__ import annotations

import torch

from ....registry.args import QuantArgs
from ....registry.errors import ConfigError, QuantDispatchError
from ....registry.facts import KernelSpec
from ....registry.operands import Operands


def linear() -> str | None:
    """The library can be loaded, and computes."""
    from .linear import NativeLinear

    args = QuantArgs(num_bits=4, group_size=32, symmetric=False)
    spec = KernelSpec("linear", "linear", "wNa16_int", args, None, None, 40, 64, "float32", 32)
    codes = torch.arange(40 * 64, device="cpu").remainder(16).sub(8).to(torch.int8).view(40, 64)
    zero_point = torch.arange(80, device="cpu").remainder(7).sub(3).to(torch.int8).view(40, 2)
    scale = torch.full((40, 2), 0.5, device="cpu")
    try:
        impl = NativeLinear(spec)
        state = impl.pack(Operands(codes, scale, zero_point))
        if not torch.equal(impl.unpack(state).codes, codes):
            return "the native kernels do not give back the codes they were given"
        weight = (codes - zero_point.repeat_interleave(32, dim=1)).float() * 0.5
        for rows in (1, 20):
            x = torch.arange(rows * 64, device="cpu").remainder(5).float().view(rows, 64)
            if (off := (impl.apply(x, state) - x @ weight.t()).abs().max().item()) > 1e-3:
                return f"the native kernels are off by {off}"
    except ConfigError:  # an instruction set that is not there: no other kernel is to hide it
        raise
    except QuantDispatchError as error:
        return str(error)
    return None
