"""The PTX snippets that unpack weights, executed one by one in integers and fractions: no GPU needed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is published for Linux only")
from quantdispatch.backends.triton.assembly import FP4, FP8, INT, added, assembly  # noqa: E402
from quantdispatch.numerics.microfloats import values  # noqa: E402

#: form, bits, with zero points
FORMS = [(INT, 2, False), (INT, 2, True), (INT, 4, False), (INT, 4, True), (INT, 8, False), (INT, 8, True),
         (FP4, 4, False), (FP8, 8, False)]  # fmt: skip


def execute(text: str, given: dict[str, int], bf16: bool) -> int:
    """Register ``$0`` after the snippet. Each arithmetic instruction is done in float64 and rounded once."""
    registers = dict(given)
    read: Callable[[str], int] = lambda name: registers[name] if name in registers else int(name, 0)  # noqa: E731
    body = text.strip("{} ").removeprefix(".reg .b32 t, u, c, d;")
    for line in filter(None, (part.strip() for part in body.split(";"))):
        op, _, rest = line.partition(" ")
        target, *sources = re.split(r",\s*", rest)
        numbers = [read(source) for source in sources]
        registers[target] = OPS[op](numbers, bf16) & 0xFFFFFFFF
    return registers["$0"]


def permute(sources: list[int], bf16: bool) -> int:
    octets = [(sources[0] | sources[1] << 32) >> (8 * i) & 0xFF for i in range(8)]
    return sum(octets[sources[2] >> (4 * i) & 7] << (8 * i) for i in range(4))


def logic(sources: list[int], bf16: bool) -> int:
    a, b, c, table = sources
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))


def halves(operation: Callable[..., float]) -> Callable[[list[int], bool], int]:
    def run(sources: list[int], bf16: bool) -> int:
        result = 0
        for place in (0, 16):
            parts = [decoded(source >> place & 0xFFFF, bf16) for source in sources]
            rounded = torch.tensor(operation(*parts), dtype=torch.float64).to(dtype(bf16))
            result |= (int(rounded.view(torch.int16)) & 0xFFFF) << place
        return result

    return run


OPS: dict[str, Callable[[list[int], bool], int]] = {
    "prmt.b32": permute,
    "lop3.b32": logic,
    "mov.b32": lambda s, _: s[0],
    "and.b32": lambda s, _: s[0] & s[1],
    "shl.b32": lambda s, _: s[0] << s[1],
    "shr.u32": lambda s, _: s[0] >> s[1],
    "add.rn.f16x2": halves(lambda a, b: a + b),
    "mul.rn.f16x2": halves(lambda a, b: a * b),
    "fma.rn.bf16x2": halves(lambda a, b, c: a * b + c),
}


def dtype(bf16: bool) -> torch.dtype:
    return torch.bfloat16 if bf16 else torch.float16


def decoded(bits: int, bf16: bool) -> float:
    signed = bits - 0x10000 if bits & 0x8000 else bits
    return torch.tensor(signed, dtype=torch.int16).view(dtype(bf16)).item()


def encoded(value: float, bf16: bool) -> int:
    return int(torch.tensor(value, dtype=dtype(bf16)).view(torch.int16)) & 0xFFFF


def value_of(code: int, form: int, bits: int, zero: int | None) -> float:
    if form == INT:
        return float(code - (zero if zero is not None else 1 << (bits - 1)))
    if form == FP4:
        return values(4)[code]
    return torch.tensor(code, dtype=torch.uint8).view(torch.float8_e4m3fn).item()


@pytest.mark.parametrize("bf16", [False, True], ids=["fp16", "bf16"])
@pytest.mark.parametrize(("form", "bits", "zero"), FORMS)
def test_a_snippet_turns_every_code_in_every_slot_into_its_weight(form: int, bits: int, zero: bool, bf16: bool) -> None:
    random_ = random.Random(0)
    for slot in range(32 // bits):
        text = assembly(slot, form, bits, bf16, zero)
        for code in range(1 << bits):
            if form == FP8 and code & 0x7F == 0x7F:
                continue  # a NaN: packing sees to it
            other, point = random_.randrange(1 << bits), random_.randrange(1 << bits)
            other = 0 if form == FP8 and other & 0x7F == 0x7F else other
            words = [
                random_.getrandbits(32) & ~(((1 << bits) - 1) << slot * bits) | c << slot * bits for c in (code, other)
            ]
            pair = encoded(-(point + added(bits, bf16)), bf16)
            given = {"$1": words[0], "$2": words[1], "$3": pair << 16 | pair}
            result = execute(text, given, bf16)
            expected = [value_of(c, form, bits, point if zero else None) for c in (code, other)]
            assert [decoded(result & 0xFFFF, bf16), decoded(result >> 16, bf16)] == expected, (slot, code)
