"""Hadamard matrices against their definition, and products with them against products with the matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.numerics.hadamard import Factored, factor, factors, multiply, sylvester, walsh
from quantdispatch.registry.errors import ConfigError

SIZES = [1, 2, 4, 8, 16, 64, 128, 512, 2048]


@pytest.mark.parametrize("size", SIZES)
def test_sylvester_is_the_parity_of_common_bits(size: int) -> None:
    matrix = sylvester(size)
    rows = torch.arange(min(size, 64)) * (size // min(size, 64))
    expected = [[1 - 2 * (int(i & j).bit_count() % 2) for j in range(size)] for i in rows.tolist()]
    assert torch.equal(matrix[rows], torch.tensor(expected, dtype=torch.float32))
    assert torch.equal(matrix @ matrix.T, size * torch.eye(size))


@pytest.mark.parametrize("size", [0, -1, 3, 12, 96, 192])
def test_other_sizes_cannot_be_made(size: int) -> None:
    with pytest.raises(ConfigError, match=f"no Hadamard matrix of size {size}"):
        sylvester(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [(), (1,), (3, 5)])
def test_walsh_is_the_product(size: int, rows: tuple[int, ...]) -> None:
    x = torch.randn(*rows, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sizes = factors(size)
    result = walsh(x, [sylvester(n, torch.float64) for n in sizes])
    assert result.shape == x.shape and max(sizes) <= 32 and torch.tensor(sizes).prod() == size
    torch.testing.assert_close(result, x @ sylvester(size, torch.float64))


def signed(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return (torch.randint(2, shape, generator=generator) * 2 - 1).double()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 3, 5, 12, 20]), st.sampled_from([8, 32, 128, 512]), st.integers(0, 2**31))
def test_the_form_of_a_matrix_is_found(outer: int, power: int, seed: int) -> None:
    """Random signs, and any matrix of 1 and -1 outside, which may make the Sylvester matrix in it a larger one."""
    generator = torch.Generator().manual_seed(seed)
    form = Factored(signed(generator, outer * power), signed(generator, outer, outer), power)
    matrix = form.expand()
    found = factor(matrix)
    assert found is not None and found.power >= power and torch.equal(found.expand(), matrix)
    x = torch.randn(2, 3, outer * power, generator=generator, dtype=torch.float64)
    bases = [sylvester(n, torch.float64) for n in factors(found.power)]
    torch.testing.assert_close(multiply(x, found, bases, transposed=False), x @ matrix)
    torch.testing.assert_close(multiply(x, found, bases, transposed=True), x @ matrix.T)


@pytest.mark.parametrize("change", ["sign", "zero", "scale"])
def test_a_matrix_that_is_almost_one_has_no_form(change: str) -> None:
    matrix = sylvester(64)
    matrix[37, 21] = {"sign": -matrix[37, 21], "zero": 0, "scale": 2}[change]
    assert factor(matrix) is None
    assert factor(torch.rand(64, 64)) is None


@pytest.mark.parametrize("size", [64, 512, 1024, 1152, 2752])
def test_the_matrices_of_compressed_tensors(size: int) -> None:
    hadamard = pytest.importorskip(
        "compressed_tensors.transform.utils.hadamard", reason="its matrices are compared with"
    )
    if size & (size - 1) == 0:
        assert torch.equal(hadamard.deterministic_hadamard_matrix(size, torch.float32), sylvester(size))
    matrix = hadamard.random_hadamard_matrix(size, torch.float32, gen=torch.Generator().manual_seed(1))
    found = factor(matrix)
    assert found is not None and torch.equal(found.expand(), matrix)
    assert found.power == size or size & (size - 1)
