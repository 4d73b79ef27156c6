"""PTX that turns two packed words into two 16-bit weights: what Triton's own operations, one code at a time, take three
times the instructions for. Both halves of a register are worked on at once.

Each snippet is an operand of ``tl.inline_asm_elementwise`` with ``pack=2``: ``$1`` and ``$2`` are the words, ``$3`` is
the pair of negated zero points (with what the trick adds to a code), ``$0`` the pair of weights. All are instructions
of sm_80.

The trick for integers is the field's: a code put under the exponent of 1024 (fp16) or 128 (bf16) is that number plus
the code. Codes of small floats are shifted into place, with an exponent off by a constant, and multiplied by the power
of two that puts it right.
"""

from __future__ import annotations

import triton

#: forms of codes: integers, e2m1, e4m3
INT, FP4, FP8 = 0, 1, 2


@triton.constexpr_function
def _pick(slot: int, bits: int) -> tuple[str, int]:
    """Halves of both words into one register, and the place of the code in its half."""
    half, place = divmod(slot * bits, 16)
    return f"prmt.b32 t, $1, $2, {'0x7632' if half else '0x5410'};", place


@triton.constexpr_function
def _byte(slot: int, high: bool) -> str:
    """The slot's bytes of both words, to the low or the high byte of each half."""
    pair = (slot, 4 + slot)
    selector = sum(byte << (8 * index + (4 if high else 0)) for index, byte in enumerate(pair))
    return f"prmt.b32 t, $1, $2, {selector:#06x};"


@triton.constexpr_function
def _both(bits16: int) -> str:
    return f"{bits16 << 16 | bits16:#010x}"


@triton.constexpr_function
def _moved(target: str, left: int) -> str:
    """t shifted to the left, or to the right where ``left`` is negative."""
    if left == 0:
        return f"mov.b32 {target}, t;"
    return f"shl.b32 {target}, t, {left};" if left > 0 else f"shr.u32 {target}, t, {-left};"


@triton.constexpr_function
def _plus(bf16: bool, target: str, value: str, addend: str) -> str:
    """bf16 has an addition of its own from sm_90 on only. Pairs are no immediate operands."""
    first = "" if addend[0] in "$u" else f"mov.b32 c, {addend}; "
    addend = addend if not first else "c"
    if bf16:
        return f"{first}mov.b32 d, {_both(0x3F80)}; fma.rn.bf16x2 {target}, {value}, d, {addend};"
    return f"{first}add.rn.f16x2 {target}, {value}, {addend};"


@triton.constexpr_function
def magic(bf16: bool) -> int:
    """What a code under the exponent is too large by."""
    return 128 if bf16 else 1024


@triton.constexpr_function
def _integers(slot: int, bits: int, bf16: bool, zero: bool) -> list[str]:
    if bits == 8 and bf16:
        # Seven bits fit below 128. The eighth chooses whether 128 or 256 is subtracted: the code less 128.
        code = [
            _byte(slot, high=False),
            f"lop3.b32 u, t, {_both(0x80)}, {_both(0xC380)}, 0x6a;",
            f"lop3.b32 t, t, {_both(0x7F)}, {_both(0x4300)}, 0xea;",
            _plus(True, "t", "t", "u"),
        ]
        return [*code, _plus(True, "$0", "t", "$3")] if zero else [*code, "mov.b32 $0, t;"]
    if bits == 8:
        lines = [_byte(slot, high=False)]
    else:
        first, place = _pick(slot, bits)
        lines = [first, *([_moved("t", -place)] if place else [])]
    exponent = 0x4300 if bf16 else 0x6400
    lines.append(f"lop3.b32 t, t, {_both((1 << bits) - 1)}, {_both(exponent)}, 0xea;")
    if zero:
        return [*lines, _plus(bf16, "$0", "t", "$3")]
    # minus the magic number and half the range, which is a small step up from the magic number
    return [*lines, _plus(bf16, "$0", "t", _both((0x8000 | exponent) + (1 << (bits - 1))))]


@triton.constexpr_function
def _floats(slot: int, bits: int, bf16: bool) -> list[str]:
    mantissa, exponent_bits = (1, 2) if bits == 4 else (3, 4)
    target_mantissa, bias = (7, 127) if bf16 else (10, 15)
    if bits == 4:
        first, place = _pick(slot, 4)
    else:
        first, place = _byte(slot, high=True), 8
    width = mantissa + exponent_bits
    low = target_mantissa - mantissa
    mask = ((1 << width) - 1) << low
    factor = bias - (2 ** (exponent_bits - 1) - 1)
    power = (factor + bias) << target_mantissa
    lines = [
        first,
        _moved("u", 15 - (place + width)),
        f"and.b32 u, u, {_both(0x8000)};",
        _moved("t", low - place),
        f"lop3.b32 t, t, {_both(mask)}, u, 0xea;",
    ]
    lines.append(f"mov.b32 d, {_both(power)};")
    if bf16:
        return [*lines, f"mov.b32 c, {_both(0x8000)};", "fma.rn.bf16x2 $0, t, d, c;"]
    return [*lines, "mul.rn.f16x2 $0, t, d;"]


@triton.constexpr_function
def assembly(slot, form, bits, bf16, zero):
    """The snippet for the codes in ``slot`` of words of ``bits``-bit codes. ``form``: INT, FP4 or FP8."""
    lines = _integers(slot, bits, bf16, zero) if form == 0 else _floats(slot, bits, bf16)
    return "{ .reg .b32 t, u, c, d; " + " ".join(lines) + " }"


@triton.constexpr_function
def added(bits, bf16):
    """What a zero point from 0 on has to have added to be the subtrahend of a snippet with ``zero``."""
    return -128 if bits == 8 and bf16 else magic(bf16)
