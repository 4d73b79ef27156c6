"""Packing against the definition of the two layouts, spelled out bit by bit, and against their writers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.numerics.layout import largest_size
from quantdispatch.numerics.packing import pack_int32, packed_width, unpack_int32

BITS = range(1, 9)
LAYOUTS = ("dense", "padded")


def words_by_definition(row: list[int], bits: int, layout: str) -> list[int]:
    """One row, as text: low bits first, offset-binary; padded rows leave the top 32 % bits bits of a word empty."""
    fields = [format(code + (1 << (bits - 1)), f"0{bits}b")[::-1] for code in row]
    if layout == "padded":
        each = 32 // bits
        fields = ["".join(fields[i : i + each]).ljust(32, "0") for i in range(0, len(fields), each)]
    stream = "".join(fields)
    words = [stream[i : i + 32].ljust(32, "0")[::-1] for i in range(0, len(stream), 32)]
    return [int(word, 2) - (1 << 32 if word[0] == "1" else 0) for word in words]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    bits = draw(st.integers(1, 8))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 70))
    seed = draw(st.integers(0, 2**31))
    codes = torch.randint(
        -(1 << (bits - 1)), 1 << (bits - 1), (rows, columns), generator=torch.Generator().manual_seed(seed)
    )
    return codes.to(torch.int8), bits


@settings(max_examples=150, deadline=None)
@given(matrices(), st.sampled_from(LAYOUTS), st.sampled_from((0, 1)))
def test_words_are_those_of_the_definition(case: tuple[torch.Tensor, int], layout: str, axis: int) -> None:
    codes, bits = case
    packed = pack_int32(codes, bits, axis=axis, layout=layout)
    along = codes if axis == 1 else codes.t()
    expected = torch.tensor([words_by_definition(row, bits, layout) for row in along.tolist()], dtype=torch.int32)
    assert packed.dtype == torch.int32 and packed.is_contiguous()
    assert torch.equal(packed if axis == 1 else packed.t(), expected)
    assert packed.shape[axis] == packed_width(codes.shape[axis], bits, layout)
    back = unpack_int32(packed, bits, codes.shape[axis], axis=axis, layout=layout)
    assert back.is_contiguous() and torch.equal(back, codes)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 33), (64, 96), (17, 257)])
@pytest.mark.parametrize("axis", [0, 1])
def test_dense_words_are_those_of_compressed_tensors(bits: int, shape: tuple[int, int], axis: int) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), shape, dtype=torch.int8)
    theirs = helpers.pack_to_int32(codes, bits, axis)
    layout = "dense" if theirs.shape[axis] == packed_width(shape[axis], bits, "dense") else "padded"
    if layout == "padded" and 32 % bits:
        pytest.skip("the installed compressed-tensors is one that pads words")
    assert torch.equal(pack_int32(codes, bits, axis=axis), theirs)
    assert torch.equal(unpack_int32(theirs, bits, shape[axis], axis=axis), codes)


# Written by compressed-tensors 0.17.0, compressors/pack_quantized/helpers.py:pack_to_int32, the last padding release.
# bits -> codes, words. Row r of the codes is (5 i + 3 r) mod 2^bits - 2^(bits-1).
PADDED_0_17 = {
    3: [[679005864, 58], [63337795, 21]],
    5: [[860334240, 126], [964244739, 193]],
    6: [[339517760, 145305], [390648323, 157788]],
    7: [[31621760, 73895060], [37962755, 80236055]],
}


@pytest.mark.parametrize("bits", PADDED_0_17)
def test_padded_words_are_those_of_the_last_release_that_padded(bits: int) -> None:
    words = torch.tensor(PADDED_0_17[bits], dtype=torch.int32)
    columns = 12 if bits == 3 else 8
    codes = torch.tensor(
        [[(5 * i + 3 * r) % (1 << bits) - (1 << (bits - 1)) for i in range(columns)] for r in range(2)],
        dtype=torch.int8,
    )
    assert torch.equal(pack_int32(codes, bits, layout="padded"), words)
    assert torch.equal(unpack_int32(words, bits, columns, layout="padded"), codes)


@given(st.integers(1, 8), st.integers(1, 500), st.sampled_from(LAYOUTS))
def test_largest_size_inverts_the_width(bits: int, width: int, layout: str) -> None:
    most = largest_size(width, bits, layout)
    assert packed_width(most, bits, layout) == width
    assert packed_width(most + 1, bits, layout) == width + 1


@pytest.mark.parametrize("bits", [2, 3, 4, 7])
def test_a_code_that_does_not_fit_is_refused(bits: int) -> None:
    codes = torch.tensor([[0, 1 << (bits - 1)]], dtype=torch.int8)
    with pytest.raises(ValueError, match=f"do not fit in {bits} bits"):
        pack_int32(codes, bits)


@pytest.mark.parametrize(
    ("words", "size", "match"),
    [
        (torch.zeros(2, 3, dtype=torch.int32), 33, "take 5 words, 3 were given"),
        (torch.zeros(2, 3, dtype=torch.int64), 24, "must be int32"),
        (torch.zeros(3, dtype=torch.int32), 24, "two dimensions"),
    ],
)
def test_words_of_another_shape_are_refused(words: torch.Tensor, size: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        unpack_int32(words, 4, size)


def test_unpacking_leaves_the_stored_words_alone() -> None:
    for bits in BITS:
        words = torch.randint(-(2**31), 2**31 - 1, (3, bits), dtype=torch.int32)
        before = words.clone()
        unpack_int32(words, bits, 32)
        assert torch.equal(words, before)


def test_columns_of_a_larger_tensor_and_transposes_pack_alike() -> None:
    wide = torch.randint(-8, 8, (6, 100), dtype=torch.int8)
    assert torch.equal(pack_int32(wide[:, 3:53], 4), pack_int32(wide[:, 3:53].clone(), 4))
    assert torch.equal(pack_int32(wide.t(), 4, axis=0), pack_int32(wide, 4).t())
    one = torch.empty_strided((1, 1), (1, 5), dtype=torch.int32).fill_(0x76543210)
    assert torch.equal(unpack_int32(one, 4, 8), torch.arange(-8, 0, dtype=torch.int8)[None])
    words = pack_int32(wide, 4)
    assert torch.equal(unpack_int32(words[1:4, :5], 4, 40), wide[1:4, :40])
