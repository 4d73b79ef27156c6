"""Hadamard matrices: square, of 1 and -1, their rows orthogonal. Multiplying by one takes no matrix where its form is
known.

Sylvester's construction: ``H_1 = [1]``, ``H_2n = [[H_n, H_n], [H_n, -H_n]]``; entry (i, j) is -1 where i and j have an
odd number of common bits. It is what compressed-tensors' "hadamard" transforms multiply by
(``transform/utils/hadamard.py``); its "random-hadamard" ones by such a matrix with random signs of the rows, times a
known matrix of another size where that is no power of two. Those are stored in checkpoints: no table is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..registry.errors import ConfigError

#: Up to here a plain product is at least as fast, at any number of rows (measured on x86, float32 and float64).
SMALL = 256
#: A large Sylvester matrix is the Kronecker product of small ones: two or three products with matrices of this size are
#: faster than a butterfly of additions for each bit, by a factor of 5 to 10 in torch on a CPU.
_FACTOR = 32
#: with a smaller Sylvester matrix in it, the product with the rest costs more than that with the whole
_LEAST = 8
_ROWS = 256


def sylvester(size: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """[size, size]. Raises ``ConfigError`` for a size that is no power of two."""
    if size < 1 or size & (size - 1):
        raise ConfigError(
            f"no Hadamard matrix of size {size} can be made", field="size", observed=size, required="a power of two",
            remedy="a checkpoint with another size has to store its matrix", code="QD514",
        )  # fmt: skip
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    while matrix.shape[0] < size:
        above = torch.cat([matrix, matrix], dim=1)
        matrix = torch.cat([above, torch.cat([matrix, -matrix], dim=1)])
    return matrix


def factors(size: int) -> list[int]:
    """Sizes whose product is ``size``, a power of two, the last of them the largest."""
    found = []
    while size > _FACTOR:
        found.append(_FACTOR)
        size //= _FACTOR
    return sorted([size, *found])


@dataclass(frozen=True)
class Factored:
    """The matrix ``diag(signs) (outer x H)`` with x for the Kronecker product and H Sylvester's of size ``power``.

    ``signs`` [n], ``outer`` [n / power, n / power].
    """

    signs: Tensor
    outer: Tensor
    power: int

    def expand(self) -> Tensor:
        """The matrix itself, [n, n]."""
        inner = sylvester(self.power, self.outer.dtype, self.outer.device)
        return self.signs.unsqueeze(1) * torch.kron(self.outer, inner)


def factor(matrix: Tensor) -> Factored | None:
    """The form of a matrix [n, n], with the largest Sylvester matrix that there is in it; ``None`` when there is none
    worth the name."""
    size = matrix.shape[0]
    power = size & -size
    while power >= _LEAST:
        found = _factor(matrix, power)
        if found is not None:
            return found
        power //= 2
    return None


def _factor(matrix: Tensor, power: int) -> Factored | None:
    """The first row and column of H are 1. So the first row of each block of rows tells ``outer``, up to the sign of
    that row, which may as well be 1; and the first column tells the signs of the others."""
    size = matrix.shape[0]
    outer = matrix[::power, ::power].clone()
    if not bool((outer.abs() == 1).all()):
        return None
    signs = matrix[:, 0] * outer[:, 0].repeat_interleave(power)
    # some rows at a time, so that a large matrix is not made a second time
    step = min(power, _ROWS)
    coarse, fine = (sylvester(n, matrix.dtype, matrix.device) for n in (power // step, step))
    for start in range(0, size, step):
        inner = torch.kron(coarse[start % power // step], fine)
        rows = torch.kron(outer[start // power], inner)
        if not torch.equal(matrix[start : start + step], signs[start : start + step].unsqueeze(1) * rows):
            return None
    return Factored(signs, outer, power)


def walsh(x: Tensor, bases: list[Tensor]) -> Tensor:
    """``x`` [..., P] times the Kronecker product of ``bases``, Sylvester matrices whose sizes have the product P."""
    shape = x.shape
    inner = bases[-1].shape[0]
    y = x.reshape(-1, inner) @ bases[-1]
    for base in reversed(bases[:-1]):
        y = base @ y.reshape(-1, base.shape[0], inner)
        inner *= base.shape[0]
    return y.reshape(shape)


def multiply(x: Tensor, form: Factored, bases: list[Tensor], *, transposed: bool) -> Tensor:
    """``x`` [..., n] times the matrix of ``form``, or times its transpose. ``bases``: for :func:`walsh`, of
    ``form.power``. All of one dtype."""
    if not transposed:
        x = x * form.signs
    y = walsh(x.reshape(*x.shape[:-1], -1, form.power), bases)
    if form.outer.shape[0] > 1:
        y = (form.outer if transposed else form.outer.T) @ y
    else:
        y = y * form.outer
    y = y.flatten(-2)
    return y * form.signs if transposed else y
