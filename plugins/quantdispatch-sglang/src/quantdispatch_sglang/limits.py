"""Shapes that SGLang's Marlin kernels cannot take. SGLang does not ask before the first forward, and stops there.

From ``kernels/jit/csrc/gemm/marlin/gptq_marlin.cuh`` and ``layers/quantization/marlin_utils.py`` of SGLang 0.5.23. Its
fp4 layers are padded by SGLang itself. Knows nothing of SGLang's code.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantdispatch.registry.args import QuantArgs

#: classes whose kernel is Marlin, and whose weights are not padded for it
LINEAR = frozenset({"CompressedTensorsWNA16", "CompressedTensorsW8A16Fp8"})
EXPERTS = frozenset({"CompressedTensorsWNA16MoE"})
#: (N, K) of a block of threads: a layer must be whole ones of either
_TILES = ((64, 128), (128, 64))
_GROUPS = (32, 64, 128)
_WORD = 32


def of_linear(name: str, weights: QuantArgs, sizes: Sequence[int], k: int) -> str | None:
    """Why the class ``name`` cannot have a layer of ``sizes`` outputs, partition by partition, and ``k`` inputs on this
    rank; ``None`` where it can."""
    if name not in LINEAR:
        return None
    n = sum(sizes)
    if not any(n % rows == 0 and k % columns == 0 for rows, columns in _TILES):
        return f"N = {n} and K = {k} are no whole tiles of 64 x 128 or 128 x 64"
    size = weights.group_size if weights.strategy == "group" else None
    if size and k % size:
        return f"K = {k} is no whole number of groups of {size}"
    word = _WORD // weights.num_bits
    if not weights.symmetric and any(count % word for count in sizes):
        return f"zero points of {', '.join(map(str, sizes))} outputs end within a word of {word}"
    return None


def of_experts(name: str, weights: QuantArgs, hidden: int, inner: int, activation: str | None) -> str | None:
    """Why the class ``name`` cannot have experts of these sizes on this rank; ``None`` where it can. ``activation``:
    ``None`` for one without a gate."""
    if name not in EXPERTS:
        return None
    size = weights.group_size if weights.strategy == "group" else None
    if size and size not in _GROUPS:
        return f"there are no kernels for groups of {size}"
    if hidden % 128:
        return f"a hidden size of {hidden} is no multiple of 128"
    if inner % max(64, size or 0):
        return f"an inner size of {inner} is no multiple of {max(64, size or 0)}"
    if activation != "silu":
        return f"its activation is a gated silu, not {activation or 'one without a gate'}"
    return None
