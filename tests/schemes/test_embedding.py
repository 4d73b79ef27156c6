"""A quantized embedding gives the rows that compressed-tensors decompresses, and dequantizes no other."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch.backends.reference import kernels
from quantdispatch.numerics import rows as rows_module
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.scheme import LayerShape

(KERNEL,) = (kernel for kernel in kernels() if kernel.op == "embedding")
V, H = 40, 96
ROWS = torch.tensor([[0, 39, 7], [7, 16, 15]])


def int_args(**fields: Any) -> list[QuantArgs]:
    return [QuantArgs(**fields, symmetric=symmetric) for symmetric in (True, False)]


#: whole blocks: compressed-tensors decompresses partial ones from 0.19 on
WEIGHTS = [
    *int_args(num_bits=4, strategy="group", group_size=32),
    *int_args(num_bits=1, strategy="channel"),
    *int_args(num_bits=3, strategy="tensor"),
    *int_args(num_bits=8, strategy="channel"),
    *int_args(num_bits=5, strategy="block", block_structure=[8, 48]),
    *(QuantArgs(type="float", strategy=s) for s in ("tensor", "channel")),
    QuantArgs(type="float", strategy="group", group_size=24),
    QuantArgs(type="float", strategy="block", block_structure=[20, 32]),
]


@pytest.fixture
def embedding(headers: Any, scheme_of: Any, numerics_of: Any, written: Any) -> Any:
    """``embedding(format, weights, scale dtype, dtype)``: its kernel, its state and its stored tensors."""

    def build(format: str, weights: QuantArgs, scales: torch.dtype, dtype: str) -> tuple[Any, Any, Any]:
        tensors = written(format, weights, V, H, scales)
        scheme = scheme_of(format, weights, kind="embedding")
        shape = scheme.check("model.embed_tokens", headers(tensors))
        assert shape == LayerShape(V, H, shape.packing)
        impl = load_target(KERNEL.target)(scheme.kernel_spec(shape, dtype, tensors=frozenset(tensors)))
        return impl, impl.pack(numerics_of(scheme).operands(tensors, shape, "model.embed_tokens")), tensors

    return build


def formats(weights: QuantArgs) -> list[str]:
    return ["pack-quantized", "int-quantized"] if weights.type == "int" else ["float-quantized"]


@pytest.mark.parametrize("scales", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("format", "weights"),
    [(f, w) for w in WEIGHTS for f in formats(w)],
    ids=lambda v: v if isinstance(v, str) else v.describe(),
)
def test_rows_are_those_of_the_decompressed_table(
    embedding: Any, decompressed: Any, format: str, weights: QuantArgs, dtype: str, scales: torch.dtype
) -> None:
    impl, state, tensors = embedding(format, weights, scales, dtype)
    table = decompressed(format, weights, tensors).to(getattr(torch, dtype))
    got = impl.apply(ROWS, state)
    assert got.dtype == table.dtype and got.shape == (2, 3, H)
    assert torch.equal(got, table[ROWS])
    assert impl.apply(ROWS[:0], state).shape == (0, 3, H)
    assert torch.equal(impl.apply(ROWS[0, 1].to(torch.int32), state), table[39])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(WEIGHTS), st.lists(st.integers(0, V - 1), min_size=1, max_size=50))
def test_any_rows_in_any_order(embedding: Any, decompressed: Any, weights: QuantArgs, rows: list[int]) -> None:
    format = formats(weights)[0]
    impl, state, tensors = embedding(format, weights, torch.bfloat16, "bfloat16")
    assert torch.equal(
        impl.apply(torch.tensor(rows), state), decompressed(format, weights, tensors).to(torch.bfloat16)[rows]
    )


def test_only_the_rows_asked_for_are_dequantized(embedding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    impl, state, _ = embedding("pack-quantized", WEIGHTS[1], torch.bfloat16, "bfloat16")
    seen = []
    dequantize = impl.numerics.dequantize
    monkeypatch.setattr(impl.numerics, "dequantize", lambda o: seen.append(tuple(o.codes.shape)) or dequantize(o))
    impl.apply(ROWS, state)
    assert seen == [(6, H)]


@pytest.mark.parametrize("index", [-1, V, 2**31])
def test_indices_outside_of_the_vocabulary(embedding: Any, index: int) -> None:
    impl, state, _ = embedding("pack-quantized", WEIGHTS[0], torch.bfloat16, "bfloat16")
    with pytest.raises(IndexError):
        impl.apply(torch.tensor([3, index]), state)


def test_its_state_is_the_layer(embedding: Any, headers: Any, scheme_of: Any, numerics_of: Any) -> None:
    weights = WEIGHTS[1]
    impl, state, tensors = embedding("pack-quantized", weights, torch.bfloat16, "bfloat16")
    scheme = scheme_of("pack-quantized", weights, kind="embedding")
    stored = numerics_of(scheme).stored(impl.unpack(state), scheme.check("layer", headers(tensors)))
    assert set(stored) == set(tensors) and all(torch.equal(stored[name], tensors[name]) for name in tensors)
    for twin in (copy.deepcopy(impl), pickle.loads(pickle.dumps(impl))):
        assert torch.equal(twin.apply(ROWS, state), impl.apply(ROWS, state))


def test_columns_through_a_g_idx(numerics_of: Any, scheme_of: Any, written: Any) -> None:
    weights = QuantArgs(num_bits=4, strategy="group", group_size=32, actorder="group")
    tensors = written("pack-quantized", weights.model_copy(update={"actorder": None}), V, H)
    tensors["weight_g_idx"] = (torch.arange(H) // 32)[torch.randperm(H)].to(torch.int32)
    numerics = numerics_of(scheme_of("pack-quantized", weights, kind="embedding"))
    operands = numerics.operands(tensors, LayerShape(V, H, "dense"), "layer")
    picked = rows_module.select_rows(operands, weights, torch.tensor([5, 2]))
    assert torch.equal(numerics.dequantize(picked), numerics.dequantize(operands)[[5, 2]])
