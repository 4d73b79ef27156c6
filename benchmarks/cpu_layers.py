"""Synthetic layers for the CPU benchmarks: random codes and scales of each kind, and what they compute in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: what a processor's caches must not serve: each candidate goes round copies of its weight of this many bytes in all
ROTATED = 128 << 20
#: of x, for which the error is taken
ERROR_ROWS = 8


@dataclass(frozen=True)
class Op:
    """One column of the benchmark: a scheme with its quant args. ``group`` 0: one scale an output."""

    scheme: str
    bits: int
    group: int = 0
    type: str = "int"
    symmetric: bool = True
    scale: str = "bfloat16"
    int8_inputs: bool = False

    @property
    def strategy(self) -> str:
        if not self.group:
            return "channel"
        return "tensor_group" if self.scale == "float8_e4m3fn" else "group"


OPS = {
    "w4a16_sym": Op("wNa16_int", 4, 128),
    "w4a16_asym": Op("wNa16_int", 4, 128, symmetric=False),
    "w8a16": Op("wNa16_int", 8),
    "w8a16_fp8": Op("w8a16_fp8", 8, type="float"),
    "w4a16_nvfp4": Op("w4a16_nvfp4", 4, 16, type="float", scale="float8_e4m3fn"),
    "w4a16_mxfp4": Op("w4a16_mxfp4", 4, 32, type="float", scale="uint8"),
    "w8a8_int8": Op("wNa8_int", 8, int8_inputs=True),
    "w4a8_int": Op("wNa8_int", 4, 128, int8_inputs=True),
}


def spec(op: Op, n: int, k: int, kind: str = "linear") -> Any:
    from quantdispatch.registry.args import QuantArgs
    from quantdispatch.registry.facts import KernelSpec

    weights = QuantArgs(
        num_bits=op.bits,
        type=op.type,
        symmetric=op.symmetric,
        strategy=op.strategy,
        group_size=op.group or None,
        scale_dtype=None if op.scale == "bfloat16" else op.scale,
    )
    inputs = QuantArgs(num_bits=8, type="int", strategy="token", dynamic=True) if op.int8_inputs else None
    group = op.group or k
    return KernelSpec("linear", kind, op.scheme, weights, inputs, None, n, k, "bfloat16", group)


def operands(op: Op, n: int, k: int, seed: int = 0) -> Any:
    """Random ones: outputs are of about the size of inputs."""
    import torch

    from quantdispatch.numerics.microfloats import values
    from quantdispatch.registry.operands import Operands

    generator = torch.Generator().manual_seed(seed)
    half = 1 << (op.bits - 1)
    groups = -(-k // op.group) if op.group else 1
    if op.type == "int":
        codes = torch.randint(-half, half, (n, k), generator=generator, dtype=torch.int8)
    else:
        # all that e2m1 has; or the codes of e4m3 without its two NaNs
        table = torch.tensor(values(4)).to(torch.float8_e4m3fn).view(torch.uint8)
        if op.bits == 8:
            table = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
        chosen = torch.randint(len(table), (n, k), generator=generator, dtype=torch.int32)
        codes = table[chosen].view(torch.float8_e4m3fn)
    size = (torch.rand(n, groups, generator=generator) * 0.9 + 0.1) / (half * k**0.5)
    made = Operands(codes, size.bfloat16())
    if op.scale == "float8_e4m3fn":
        made.scale = (size * half * k**0.5 * 400).to(torch.float8_e4m3fn)
        made.global_scale = torch.tensor([1600.0 * k**0.5])
    elif op.scale == "uint8":
        made.scale = torch.randint(112, 121, (n, groups), generator=generator, dtype=torch.uint8)
    if not op.symmetric:
        made.zero_point = torch.randint(-2, 3, (n, groups), generator=generator, dtype=torch.int8)
    return made


def weight64(op: Op, made: Any, rows: slice) -> Any:
    """float64 of some outputs, written apart from the library's numerics."""
    codes = made.codes[rows].double()
    k, groups = codes.shape[1], made.scale.shape[1]
    scale = made.scale[rows]
    scale = 2.0 ** (scale.double() - 127) if op.scale == "uint8" else scale.double()
    if made.zero_point is not None:
        codes = codes - made.zero_point[rows].double().repeat_interleave(-(-k // groups), 1)[:, :k]
    weight = codes * scale.repeat_interleave(-(-k // groups), 1)[:, :k]
    return weight if made.global_scale is None else weight / made.global_scale.double()


def error(op: Op, made: Any, x: Any, y: Any) -> float:
    """Relative error of y [M, N] against float64, norm of the difference over norm; of the first rows.

    With int8 inputs float64 gets the quantized inputs, by the formula of the design: the error of a kernel, not of the
    scheme."""
    import torch

    x, y = x[:ERROR_ROWS], y[:ERROR_ROWS].double()
    wide = x.double()
    if op.int8_inputs:
        scale = (x.float().abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        wide = (x.float() / scale).round().double() * scale.double()
    off = all_ = 0.0
    for start in range(0, y.shape[1], 1024):
        rows = slice(start, start + 1024)
        exact = wide @ weight64(op, made, rows).T
        off += (y[:, rows] - exact).square().sum().item()
        all_ += exact.square().sum().item()
    return float((off / all_) ** 0.5)


def bytes_of(state: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


class Copies:
    """Copies of a weight, taken in turn: as many as caches do not hold."""

    def __init__(self, weight: dict[str, Any]) -> None:
        self.bytes = bytes_of(weight)
        count = max(-(-ROTATED // self.bytes), 2)
        self.weights = [weight, *({name: t.clone() for name, t in weight.items()} for _ in range(count - 1))]
        self.turn = 0

    def __call__(self) -> dict[str, Any]:
        self.turn = (self.turn + 1) % len(self.weights)
        return self.weights[self.turn]
