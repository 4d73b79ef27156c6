"""Marlin's layout: equal to recorded tensors bit for bit, there and back, and where the kernels' lanes look for it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import marlin_ops
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from quantdispatch.backends.marlin import layout
from quantdispatch.numerics.packing import unpack_int32

VECTORS = sorted((Path(__file__).parents[3] / "shared" / "vectors").glob("marlin_*.safetensors"))


@pytest.mark.skipif(not VECTORS, reason="the recorded tensors (../shared/vectors) are not beside the checkout")
@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_recorded_tensors_bit_for_bit(path: Path) -> None:
    with safe_open(path, "pt") as file:
        meta = file.metadata()
    stored, bits, n, k = load_file(path), int(meta["num_bits"]), int(meta["N"]), int(meta["K"])
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    codes = (unpack_int32(stored["weight_packed"], bits, k).view(torch.uint8) + half) & mask
    packed = layout.pack_weight(codes, bits)
    assert torch.equal(packed, stored["marlin_qweight"])
    assert torch.equal(layout.unpack_weight(packed, bits), codes)
    scale = stored["weight_scale"]
    assert torch.equal(layout.permute_scales(scale.t(), scale.shape[1] > 1), stored["marlin_scales"])
    assert torch.equal(layout.restore_scales(stored["marlin_scales"], scale.shape[1] > 1), scale.t())
    if "marlin_zero_point" in stored:
        zeros = unpack_int32(stored["weight_zero_point"], bits, n, axis=0).view(torch.uint8) + half & mask
        assert torch.equal(layout.pack_zero_points(zeros.t(), bits), stored["marlin_zero_point"])
        assert torch.equal(layout.unpack_zero_points(stored["marlin_zero_point"], bits), zeros.t())


def test_every_kind_was_recorded() -> None:
    if not VECTORS:
        pytest.skip("the recorded tensors (../shared/vectors) are not beside the checkout")
    assert len(VECTORS) == 12


#: of the layout that is equal to the recorded tensors: first 16 digits of sha256
GOLDEN = {
    (4, "weight"): "bce5a42159c9182c", (8, "weight"): "6b25aea5ba7c143f", (4, "zeros"): "f54f3fb9cbf2c19d",
    (0, "grouped"): "e2547d0829284468", (0, "single"): "4fcc3a24ba46dc55",
}  # fmt: skip


def digest(values: torch.Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16]


def golden() -> dict[tuple[int, str], str]:
    n, k = 192, 128
    spread = (torch.arange(n)[:, None] * 7 + torch.arange(k)[None] * 13 + (torch.arange(k)[None] ** 2 // 5)) % 251
    scales = torch.arange(4 * n).view(4, n).to(torch.int32)
    return {
        (4, "weight"): digest(layout.pack_weight((spread % 16).to(torch.uint8), 4)),
        (8, "weight"): digest(layout.pack_weight(spread.to(torch.uint8), 8)),
        (4, "zeros"): digest(layout.pack_zero_points((scales % 16).to(torch.uint8), 4)),
        (0, "grouped"): digest(layout.permute_scales(scales, True)),
        (0, "single"): digest(layout.permute_scales(scales, False)),
    }


def test_layouts_stay_what_they_were_when_compared() -> None:
    assert golden() == GOLDEN


@given(bits=st.sampled_from([4, 8]), n=st.integers(1, 4), k=st.integers(1, 9), seed=st.integers(0, 2**20))
def test_lanes_find_every_code(bits: int, n: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (64 * n, 16 * k), generator=generator).to(torch.uint8)
    packed = layout.pack_weight(codes, bits)
    assert packed.shape == (k, 64 * n * 16 * bits // 32) and packed.is_contiguous()
    assert torch.equal(marlin_ops.codes_of(packed, bits), codes.t().long())
    assert torch.equal(layout.unpack_weight(packed, bits), codes)


@given(groups=st.integers(1, 5), n=st.integers(1, 5), seed=st.integers(0, 2**20))
def test_scales_and_zero_points(groups: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(groups, 64 * n, generator=generator).half()
    zeros = torch.randint(0, 16, scales.shape, generator=generator).to(torch.uint8)
    for grouped in (True, False):
        held = layout.permute_scales(scales, grouped)
        assert torch.equal(held[:, marlin_ops.columns_of_scales(64 * n, grouped)], scales)
        assert torch.equal(layout.restore_scales(held, grouped), scales)
    packed = layout.pack_zero_points(zeros, 4)
    assert packed.shape == (groups, 8 * n)
    assert torch.equal(marlin_ops.zeros_of(packed), zeros.long())
    assert torch.equal(layout.unpack_zero_points(packed, 4), zeros)


@given(n=st.integers(1, 700), k=st.integers(1, 700), group=st.sampled_from([None, 16, 32, 64, 128]))
def test_padding_is_the_least_that_the_kernels_take(n: int, k: int, group: int | None) -> None:
    def admitted(rows: int, columns: int) -> bool:
        tiles = (rows % 64 == 0 and columns % 128 == 0) or (rows % 128 == 0 and columns % 64 == 0)
        return tiles and (group is None or columns % group == 0)

    shape = layout.padded_shape(n, k, group)
    assert admitted(*shape) and shape[0] >= n and shape[1] >= k
    choices = [
        (a * b, a + b) for a in range(n, n + 128) if a % 64 == 0 for b in range(k, k + 128) if admitted(a, b)
    ]  # fmt: skip
    assert (shape[0] * shape[1], sum(shape)) == min(choices)


@pytest.mark.parametrize("shape", [(63, 16), (64, 15), (32, 128)])
def test_unpadded_weights_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="Marlin takes N in 64s"):
        layout.pack_weight(torch.zeros(shape, dtype=torch.uint8), 4)
