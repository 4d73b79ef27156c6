"""Stand-ins for Marlin's ops: the true result, computed in float64 from the Marlin layout as the kernels' ``dequant.h``
reads it.

Written from the kernels' description and apart from ``backends/marlin/layout.py``: every code is looked up at the place
where a lane of the tensor-core instruction finds it, so a wrong permutation gives wrong numbers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

UINT4, UINT4B8, UINT8B128, FP8, FP4 = (
    1125899906843648, 1125899907892224, 1125899923621888, 2814749767172868, 562949953487106,
)  # fmt: skip
BITS = {UINT4: 4, UINT4B8: 4, UINT8B128: 8, FP8: 8, FP4: 4}


def codes_of(packed: Tensor, bits: int) -> Tensor:
    """int32 [K/16, N * 16 * bits / 32] to int64 [K, N], one code at a time's formula."""
    rows, words = packed.shape
    per = 32 // bits
    n = words * per // 16
    k_index, n_index = torch.meshgrid(torch.arange(rows * 16), torch.arange(n), indexing="ij")
    row, column, tile = k_index % 16, n_index % 16, n_index // 16
    # which lane holds it: four lanes a column, each with rows 2t, 2t+1, 2t+8, 2t+9 of columns c and c+8
    lane = (column % 8) * 4 + (row % 8) // 2
    within = (row % 2) + 2 * (row // 8) + 4 * (column // 8)
    flat = (tile // 4) * 1024 + lane * 32 + (tile % 4) * 8 + within
    place = flat % per
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7] if bits == 4 else [0, 2, 1, 3])
    nibble = torch.argsort(order)[place]
    word = packed[k_index // 16, flat // per].long() & 0xFFFFFFFF
    return (word >> (bits * nibble)) & ((1 << bits) - 1)


def columns_of_scales(n: int, grouped: bool) -> Tensor:
    """Of each column of N the place at which its scale is stored."""
    column = torch.arange(n)
    if grouped:  # place 8 i + j holds column i + 8 j
        c = column % 64
        return column - c + (c % 8) * 8 + c // 8
    c = column % 32
    # place 8 i + (0..7) holds columns 2 i + {0, 1, 8, 9, 16, 17, 24, 25}
    return column - c + ((c % 8) // 2) * 8 + (c % 2) + 2 * (c // 8)


def scales_of(stored: Tensor, kind: int, dtype: torch.dtype, k: int) -> Tensor:
    """Scales [G, N] of one weight, float64, in the order of the columns."""
    groups, n = stored.shape
    if stored.element_size() == 1:
        octets = stored.view(torch.uint8).long()
        quad = torch.arange(n)
        octets = octets[:, quad - quad % 4 + torch.tensor([0, 2, 1, 3])[quad % 4]]
        values = _one_byte(octets, stored.dtype, dtype)
    else:
        assert stored.dtype == dtype, f"scales of {stored.dtype} for {dtype} activations"
        values = stored.double()
    return values[:, columns_of_scales(n, groups > 1)]


def _one_byte(octets: Tensor, kind: torch.dtype, dtype: torch.dtype) -> Tensor:
    if kind == torch.float8_e8m0fnu:
        assert dtype == torch.bfloat16, "exponents as scales have kernels for bf16 only"
        return torch.where(octets == 0, 0.0, 2.0 ** (octets.double() - 127))
    if dtype == torch.float16:  # the byte under a sign of zero: E5M3
        return (octets << 7).to(torch.int16).view(torch.float16).double()
    bits = ((octets & 0x80) << 7) | ((octets & 0x7F) << 4)
    return bits.to(torch.int16).view(torch.bfloat16).double()


def zeros_of(stored: Tensor) -> Tensor:
    """int32 [G, N / 8] to int64 [G, N]."""
    groups, words = stored.shape
    column = torch.arange(words * 8)
    c = column % 64
    place = column - c + (c % 8) * 8 + c // 8
    order = torch.argsort(torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]))
    word = stored[:, place // 8].long() & 0xFFFFFFFF
    return (word >> (4 * order[place % 8])) & 15


def weight_of(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, whole: Tensor | None, kind: int, dtype: Any
) -> Tensor:
    """The weight [K, N] that a kernel multiplies with, float64."""
    q = codes_of(codes, BITS[kind])
    k = q.shape[0]
    s = scales_of(scales, kind, dtype, k)
    groups = s.shape[0]
    size = k // groups
    assert (-1 if groups == 1 else size) in instantiated(kind, scales), f"no kernel for groups of {size}"
    rows = torch.arange(k) // size
    half = torch.finfo(dtype).bits == 16
    assert half
    bias = {torch.float16: 15, torch.bfloat16: 127}[dtype]
    if kind == UINT4:
        assert zeros is not None
        value = (q - zeros_of(zeros)[rows]).double()
    elif kind in (UINT4B8, UINT8B128):
        assert zeros is None
        value = (q - (1 << (BITS[kind] - 1))).double()
    elif kind == FP8:
        value = q.to(torch.uint8).view(torch.float8_e4m3fn).double()
        if scales.element_size() != 1:  # bits moved without the exponent's bias
            value = value * 2.0 ** (7 - bias)
    else:
        magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[q & 7]
        value = torch.where(q >= 8, -magnitude, magnitude)
        if scales.dtype == torch.float8_e4m3fn:
            assert whole is not None
            value = value * 2.0 ** (1 - bias)
    weight = value * s[rows]
    return weight if whole is None else weight * whole.double()


def instantiated(kind: int, scales: Tensor) -> set[int]:
    if kind == FP4:
        return {32} if scales.dtype == torch.float8_e8m0fnu else {16}
    if kind == FP8:
        return {32} if scales.dtype == torch.float8_e8m0fnu else {-1, 128}
    return {-1, 32, 64, 128}


def product(a: Tensor, codes: Tensor, bias: Tensor | None, scales: Tensor, whole: Tensor | None, zeros: Tensor | None,
            locks: Tensor, kind: int, m: int, n: int, k: int, wide: bool) -> Tensor:  # fmt: skip
    assert a.shape == (m, k) and a.is_contiguous() and codes.shape == (k // 16, n * 16 * BITS[kind] // 32)
    assert (n % 64 == 0 and k % 128 == 0) or (n % 128 == 0 and k % 64 == 0), f"no thread tile for {n} x {k}"
    assert locks.dtype == torch.int32 and not locks.any() and scales.is_contiguous() and codes.is_contiguous()
    assert whole is None or whole.dtype == (torch.float32 if wide else a.dtype)
    y = a.double() @ weight_of(codes, scales, zeros, whole, kind, a.dtype)
    if bias is not None:
        y = y + bias.double()[columns_of_scales(n, False)]
    return y.to(a.dtype)


def moe_product(a: Tensor, c: Tensor, codes: Tensor, scales: Tensor, whole: Tensor | None, zeros: Tensor | None,
                rows: Tensor, experts: Tensor, used: Tensor, weights: Tensor, block: int, top_k: int, weighted: bool,
                kind: int, m: int, n: int, k: int, wide: bool) -> Tensor:  # fmt: skip
    assert a.shape == (m, k) and c.shape == (m * top_k, n) and weights.dtype == torch.float32
    assert block in (8, 16, 32, 48, 64) and rows.shape[0] % block == 0 and experts.shape[0] * block == rows.shape[0]
    assert whole is None or (whole.shape == (codes.shape[0],) and whole.dtype == (torch.float32 if wide else a.dtype))
    seen = set()
    for place in range(int(used)):
        row = int(rows[place])
        if row >= m * top_k:
            continue
        assert row not in seen
        seen.add(row)
        e = int(experts[place // block])
        key = None if whole is None else whole[e : e + 1]
        w = weight_of(codes[e], scales[e], None if zeros is None else zeros[e], key, kind, a.dtype)
        y = a[row // top_k].double() @ w
        c[row] = (y * float(weights.reshape(-1)[row]) if weighted else y).to(a.dtype)
    assert seen == set(range(m * top_k))
    return c


def namespace(name: str, schema: str, wide: bool = True) -> Any:
    """Register an op with ``schema`` under a namespace of its own; returns what stands for ``torch.ops._C``."""
    own = f"quantdispatch_test_{len(_libraries)}"
    library = torch.library.Library(own, "DEF")
    _libraries.append(library)
    library.define(f"{name}({schema}) -> Tensor")
    names = [
        argument.name.removesuffix("_or_none")
        for argument in getattr(torch.ops, own).__getattr__(name).default._schema.arguments
    ]
    library.impl(name, lambda *values: call(dict(zip(names, values, strict=True)), wide), "CPU")
    return SimpleNamespace(**{name: getattr(getattr(torch.ops, own), name)})


_libraries: list[Any] = []


def call(v: dict[str, Any], wide: bool) -> Tensor:
    """By the names that the schemas have."""
    kind = v["b_type_id"] if "b_type_id" in v else v.get("b_q_type", v.get("b_q_type_id"))
    kind = getattr(kind, "id", kind)
    sizes = (v["size_m"], v["size_n"], v["size_k"])
    assert v.get("g_idx") is None and v.get("perm") is None and v.get("a_scales") is None
    assert not v["use_atomic_add"] and v["use_fp32_reduce"] and not v["is_zp_float"]
    if "sorted_token_ids" not in v:
        return product(v["a"], v["b_q_weight"], v.get("b_bias"), v["b_scales"], v["global_scale"], v["b_zeros"],
                       v["workspace"], kind, *sizes, wide)  # fmt: skip
    assert v.get("b_bias") is None
    c = v["c"] if v["c"] is not None else torch.zeros(sizes[0] * v["top_k"], sizes[1], dtype=v["a"].dtype)
    used = v["num_tokens_post_padded"] if "num_tokens_post_padded" in v else v["num_tokens_past_padded"]
    c = c.clone() if "thread_k" in v or "is_ep" in v else c
    return moe_product(v["a"], c, v["b_q_weight"], v["b_scales"], v["global_scale"], v["b_zeros"],
                       v["sorted_token_ids"], v["expert_ids"], used, v["topk_weights"], v["moe_block_size"], v["top_k"],
                       v["mul_topk_weights"], kind, *sizes, wide)  # fmt: skip
