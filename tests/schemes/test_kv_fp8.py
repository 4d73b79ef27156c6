"""The key and value cache: which scales are stored how, and what is cached, against compressed-tensors' own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch.backends.reference import kernels
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.scheme import LayerShape
from quantdispatch.schemes.kv_fp8 import KVFp8

(KERNEL,) = (kernel for kernel in kernels() if kernel.op == "kv_cache")
LAYER = "model.layers.0.self_attn"
TENSOR = QuantArgs(type="float", strategy="tensor")
HEADS = QuantArgs(type="float", strategy="attn_head")
KV, Q = 2, 6
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def scheme(args: QuantArgs, kind: str = "kv_cache") -> KVFp8:
    return KVFp8(LayerFacts(kind, None, None, args))


def scales(args: QuantArgs, names: str = "k_scale v_scale", dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """What compressed-tensors stores (``initialize_qparams``): [1], or [heads, 1, 1]."""
    generator = torch.Generator().manual_seed(7)
    sizes = {name: (1,) if args is TENSOR else (Q if name.startswith("q_") else KV, 1, 1) for name in names.split()}
    return {name: (torch.rand(size, generator=generator) * 0.02 + 0.005).to(dtype) for name, size in sizes.items()}


OLD = "k_proj.output_scale v_proj.output_scale"
STORED = [
    (TENSOR, "kv_cache", "k_scale v_scale"),
    (TENSOR, "kv_cache", "k_scale v_scale q_scale"),
    (TENSOR, "kv_cache", OLD),
    (TENSOR, "kv_cache", "qkv_proj.output_scale"),
    (TENSOR, "attention", "k_scale v_scale q_scale"),
    (TENSOR, "attention", OLD + " q_scale"),
    (HEADS, "kv_cache", "k_scale v_scale"),
    (HEADS, "attention", "k_scale v_scale q_scale"),
]


@pytest.mark.parametrize(("args", "kind", "names"), STORED)
def test_every_spelling_is_read_and_the_present_one_written(
    headers: Any, numerics_of: Any, args: QuantArgs, kind: str, names: str
) -> None:
    tensors, its_scheme = scales(args, names), scheme(args, kind)
    required, optional = its_scheme.tensor_names()
    assert set(tensors) <= required | optional
    assert its_scheme.check(LAYER, headers(tensors)) is None
    numerics = numerics_of(its_scheme)
    operands = numerics.operands(tensors, None, LAYER)
    assert operands.codes is None and operands.scale is None and operands.extra == {}
    stored = numerics.stored(operands, None)
    expected = {"k_scale", "v_scale"} | ({"q_scale"} if "q_scale" in names else set())
    assert set(stored) == expected
    for name, tensor in stored.items():
        sources = (name, f"{name[0]}_proj.output_scale", "qkv_proj.output_scale")
        source = next(tensors[s] for s in sources if s in tensors)
        assert tensor.dtype == source.dtype and torch.equal(tensor, source)
    its_scheme.check(LAYER, headers(stored))
    assert {t.name for t in its_scheme.stored(LayerShape(KV, 0))} == required <= set(stored)


@pytest.mark.parametrize(("args", "shape"), [(TENSOR, ()), (TENSOR, (1,)), (HEADS, (KV,)), (HEADS, (KV, 1, 1))])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_come_in_these_shapes(headers: Any, numerics_of: Any, args: Any, shape: Any, dtype: Any) -> None:
    tensors = {name: torch.full(shape, 0.5, dtype=dtype) for name in ("k_scale", "v_scale")}
    scheme(args).check(LAYER, headers(tensors))
    operands = numerics_of(scheme(args)).operands(tensors, None, LAYER)
    assert operands.k_scale.shape == ((1,) if args is TENSOR else (KV, 1, 1)) and operands.k_scale.dtype == dtype


ZERO = torch.zeros(1, dtype=torch.int8)
BROKEN = [
    # (args, kind, tensors, tensor named, in the message)
    (TENSOR, "kv_cache", {}, "k_scale", ["k_scale is missing", "k_proj.output_scale"]),
    (TENSOR, "kv_cache", {"k_scale": (1,)}, "v_scale", ["v_scale is missing"]),
    (TENSOR, "kv_cache", {"k_scale": (1,), "k_proj.output_scale": (1,), "v_scale": (1,)}, "k_proj.output_scale",
     ["k_scale is stored twice"]),
    (TENSOR, "attention", {"k_scale": (1,), "v_scale": (1,)}, "q_scale", ["q_scale is missing"]),
    (TENSOR, "kv_cache", {"k_scale": (2,), "v_scale": (1,)}, "k_scale", ["[2]", "[1]"]),
    (TENSOR, "kv_cache", {"k_scale": (KV, 1, 1), "v_scale": (KV, 1, 1)}, "k_scale", ["[2, 1, 1]"]),
    (HEADS, "kv_cache", {"k_scale": (KV, 1, 1), "v_scale": (3, 1, 1)}, "v_scale", ["different numbers of heads"]),
    (HEADS, "kv_cache", {"k_scale": (KV, 1), "v_scale": (KV, 1)}, "k_scale", ["[2, 1]", "[2, 1, 1]"]),
    (HEADS, "kv_cache", {"k_scale": (KV, 4, 1), "v_scale": (KV, 4, 1)}, "k_scale", ["[2, 4, 1]"]),
    (TENSOR, "kv_cache", {"k_scale": torch.ones(1, dtype=torch.int32), "v_scale": (1,)}, "k_scale", ["I32", "BF16"]),
    (TENSOR, "kv_cache", {"k_scale": (1,), "v_scale": (1,), "q_scale": torch.ones(1, dtype=torch.int8)}, "q_scale",
     ["I8"]),
    (TENSOR, "kv_cache", {"k_scale": (1,), "v_scale": (1,), "k_zero_point": torch.zeros(2, dtype=torch.int8)},
     "k_zero_point", ["[2]"]),
]  # fmt: skip


def made(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: v if isinstance(v, torch.Tensor) else torch.ones(v) for name, v in tensors.items()}


@pytest.mark.parametrize(("args", "kind", "tensors", "field", "words"), BROKEN)
def test_headers_that_contradict_the_scheme(
    headers: Any, args: QuantArgs, kind: str, tensors: Any, field: str, words: list[str]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        scheme(args, kind).check(LAYER, headers(made(tensors)))
    assert caught.value.layer == LAYER and caught.value.field == field
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("name", ["k_scale", "v_scale", "q_scale"])
@pytest.mark.parametrize("args", [TENSOR, HEADS])
def test_unusable_scales(numerics_of: Any, args: QuantArgs, name: str, value: float) -> None:
    tensors = scales(args, "k_scale v_scale q_scale")
    tensors[name].view(-1)[-1] = value
    with pytest.raises(CheckpointError, match="1 unusable") as caught:
        numerics_of(scheme(args, "attention")).operands(tensors, None, LAYER)
    assert caught.value.layer == LAYER and caught.value.field == name


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bfloat16])
def test_zeros_that_a_writer_left_behind(headers: Any, numerics_of: Any, dtype: torch.dtype) -> None:
    """compressed-tensors makes zero points for every quantized module unless told otherwise, of the codes' type."""
    tensors = {**scales(TENSOR), "k_zero_point": ZERO.to(dtype), "v_zero_point": ZERO.to(dtype)}
    scheme(TENSOR).check(LAYER, headers(tensors))
    numerics = numerics_of(scheme(TENSOR))
    stored = numerics.stored(numerics.operands(tensors, None, LAYER), None)
    assert set(stored) == set(tensors)
    tensors["v_zero_point"] = torch.full((1,), 2.0).to(dtype)
    with pytest.raises(CheckpointError, match="zero point") as caught:
        numerics.operands(tensors, None, LAYER)
    assert caught.value.field == "v_zero_point" and caught.value.observed == 2.0


@pytest.fixture
def cache(numerics_of: Any) -> Any:
    """``cache(args, kind, dtype)``: the reference kernel, its state and the scales in it."""

    def build(args: QuantArgs, kind: str, dtype: torch.dtype, scale_dtype: torch.dtype = torch.float32) -> Any:
        its_scheme = scheme(args, kind)
        tensors = scales(args, "k_scale v_scale q_scale", scale_dtype)
        impl = load_target(KERNEL.target)(its_scheme.kernel_spec(None, str(dtype).removeprefix("torch.")))
        return impl, impl.pack(numerics_of(its_scheme).operands(tensors, None, LAYER)), tensors

    return build


@pytest.mark.parametrize("args", [TENSOR, HEADS])
@pytest.mark.parametrize(("part", "heads"), [("k", KV), ("v", KV), ("q", Q)])
def test_what_is_cached_is_what_compressed_tensors_attends_to(cache: Any, args: Any, part: str, heads: int) -> None:
    """In fp32, where its fake quantization rounds nowhere else."""
    pytest.importorskip("compressed_tensors", reason="this test compares with compressed-tensors")
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    impl, state, tensors = cache(args, "attention", torch.float32)
    states = torch.randn(3, heads, 5, 8, generator=torch.Generator().manual_seed(heads)) * 3
    states[0, 0, 0, :3] = torch.tensor([0.0, 1e4, -1e4])  # far beyond what a scale of 0.02 reaches
    theirs = fake_quantize(states, tensors[f"{part}_scale"], None, QuantizationArgs(**args.to_json()))
    codes = impl.quantize(part, states, state)
    assert codes.dtype == torch.float8_e4m3fn and codes.shape == states.shape
    assert torch.equal(impl.dequantize(part, codes, state), theirs)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([TENSOR, HEADS]),
    st.sampled_from(["k", "v"]),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
def test_states_come_back_within_half_a_step(
    cache: Any, args: QuantArgs, part: str, dtype: torch.dtype, scale_dtype: torch.dtype, seed: int
) -> None:
    impl, state, tensors = cache(args, "kv_cache", dtype, scale_dtype)
    states = torch.randn(2, KV, 4, 16, generator=torch.Generator().manual_seed(seed)).clamp(-2, 2).to(dtype)
    codes = impl.quantize(part, states, state)
    back = impl.dequantize(part, codes, state)
    assert back.dtype == dtype
    scale = tensors[f"{part}_scale"].double()
    # three bits of mantissa: half a step is a 16th, 2^-10 of the scale below the normal range; then one rounding
    allowed = states.double().abs() * (1 / 16 + 2**-8) + scale * 2**-9
    assert ((back.double() - states.double()).abs() <= allowed).all()
    # quantizing what came back changes nothing but what the rounding to the dtype did
    if dtype == torch.float32:
        assert torch.equal(impl.quantize(part, back, state).view(torch.uint8), codes.view(torch.uint8))


def test_nan_stays_and_infinity_saturates(cache: Any) -> None:
    impl, state, tensors = cache(TENSOR, "kv_cache", torch.bfloat16)
    states = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0]).view(1, 1, 1, 4).bfloat16()
    back = impl.dequantize("k", impl.quantize("k", states, state), state).flatten()
    limit = (448 * tensors["k_scale"]).to(torch.bfloat16)
    assert back[0].isnan() and back[1] == limit and back[2] == -limit and back[3] == 0


def test_it_keeps_and_copies(cache: Any, numerics_of: Any) -> None:
    impl, state, tensors = cache(HEADS, "attention", torch.bfloat16)
    assert set(state) == {"k_scale", "v_scale", "q_scale"}
    stored = numerics_of(scheme(HEADS, "attention")).stored(impl.unpack(state), None)
    assert all(torch.equal(stored[name], tensors[name]) for name in tensors)
    states = torch.randn(1, KV, 2, 4).bfloat16()
    for twin in (copy.deepcopy(impl), pickle.loads(pickle.dumps(impl))):
        assert torch.equal(
            twin.quantize("k", states, state).view(torch.uint8), impl.quantize("k", states, state).view(torch.uint8)
        )


def test_a_part_without_a_scale(numerics_of: Any) -> None:
    numerics = numerics_of(scheme(TENSOR))
    with pytest.raises(ValueError, match="no scale for q"):
        numerics.quantize("q", torch.ones(1), numerics.operands(scales(TENSOR), None, LAYER))


def test_the_kernel_spec_says_how_a_cache_is_quantized() -> None:
    for args, kind in ((TENSOR, "kv_cache"), (HEADS, "attention")):
        spec = scheme(args, kind).kernel_spec(None, "bfloat16", tensors=frozenset({"k_scale"}))
        assert (spec.op, spec.kind, spec.weights, spec.inputs, spec.n, spec.k) == (
            "kv_cache",
            kind,
            None,
            args,
            None,
            None,
        )
        assert spec.reference == KVFp8.numerics
