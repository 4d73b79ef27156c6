"""One layer's tensors: every layout decodes to what was packed and is written back to the same bits; bad ones are typed
errors that name the tensor."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from foreign_files import packed, random_layer
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import quantdispatch as qd
from quantdispatch.engines.tensors import described
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.lazy import load_target

NAME = "model.layers.0.mlp.up_proj"
FORMATS = {"gemm": "awq-gemm", "gemv": "awq-gemv", "gptq": "gptq", "gptq_v2": "gptq-v2", "words": "gptq-words"}


def scheme_of(registry: Any, layout: str, bits: int, group: int, symmetric: bool, ordered: bool) -> Any:
    args: dict[str, Any] = {"num_bits": bits, "symmetric": symmetric, "actorder": "group" if ordered else None}
    args |= {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    facts = LayerFacts("linear", FORMATS[layout], QuantArgs(**args))
    rule = registry.resolve(facts).rule
    assert rule is not None
    return registry.scheme_class(rule)(facts)


def decode(scheme: Any, tensors: dict[str, torch.Tensor]) -> tuple[Any, Any, Any]:
    shape = scheme.check(NAME, described(tensors))
    numerics = load_target(scheme.numerics)(scheme.layer)
    return numerics, numerics.operands(tensors, shape, NAME), shape


@st.composite
def layers(draw) -> dict[str, Any]:
    layout = draw(st.sampled_from(sorted(FORMATS)))
    awq = layout in ("gemm", "gemv")
    group = draw(st.sampled_from([-1, 32, 64]))
    return {
        "layout": layout,
        "bits": 4 if awq else draw(st.sampled_from([2, 4, 8] if layout == "words" else [2, 3, 4, 8])),
        "group": group,
        "symmetric": draw(st.booleans()),
        "ordered": not awq and group != -1 and draw(st.booleans()),
        "n": draw(st.sampled_from([8, 24, 40] if awq else [32, 64])),
        "k": draw(st.sampled_from([64, 192, 320])),
        "seed": draw(st.integers(0, 99)),
    }


@settings(max_examples=80, deadline=None)
@given(layers())
def test_what_is_decoded_is_what_was_packed_and_is_packed_again(registry, case) -> None:
    layout, n, k = case.pop("layout"), case.pop("n"), case.pop("k")
    layer = random_layer(n, k, **case)
    tensors = packed(layer, layout)
    del case["seed"]
    numerics, operands, shape = decode(scheme_of(registry, layout, **case), tensors)
    assert (shape.n, shape.k) == (n, k)
    assert torch.equal(numerics.dequantize(operands), layer.weight)
    half = 1 << (case["bits"] - 1)
    assert torch.equal(operands.codes.long() + half, layer.values)
    assert (
        operands.zero_point is None
        if case["symmetric"]
        else torch.equal(operands.zero_point.long() + half, layer.zeros)
    )
    again = numerics.stored(operands, shape)
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor), name


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_zero_point_of_zero_is_stored_as_the_largest_by_gptq(registry, bits) -> None:
    """The value less one, with the ends joined: kernels of AutoGPTQ add one and mask."""
    layer = random_layer(32, 64, bits=bits)
    layer.zeros[:] = torch.arange(32)[:, None] % 3
    numerics, operands, _ = decode(scheme_of(registry, "gptq", bits, 32, False, False), packed(layer, "gptq"))
    assert torch.equal(numerics.dequantize(operands), layer.weight)


def test_an_index_in_order_is_no_order(registry) -> None:
    """Static groups: the config says desc_act, and columns are in order all the same."""
    layer = random_layer(32, 64)
    _, operands, _ = decode(scheme_of(registry, "gptq", 4, 32, False, True), packed(layer, "gptq"))
    assert operands.g_idx is None


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
def test_an_index_may_be_missing_where_columns_are_in_order(registry, layout) -> None:
    layer = random_layer(32, 64)
    tensors = packed(layer, layout)
    del tensors["g_idx"]
    numerics, operands, _ = decode(scheme_of(registry, layout, 4, 32, False, False), tensors)
    assert torch.equal(numerics.dequantize(operands), layer.weight)


# ------------------------------------------------------------------------------------------------------- bad tensors


def changed(name: str, change: Any) -> Any:
    return lambda tensors: {**tensors, name: change(tensors[name])}


def without(name: str) -> Any:
    return lambda tensors: {local: tensor for local, tensor in tensors.items() if local != name}


def at_start(value: Any) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


#: layout, what is done to the tensors, the tensor that the error names, words of the message
FAULTS = {
    "no qweight": ("gemm", without("qweight"), "qweight", "needs qweight"),
    "no qzeros": ("gptq", without("qzeros"), "qzeros", "needs qzeros"),
    "no scales": ("gemv", without("scales"), "scales", "needs scales"),
    "qweight of another dtype": ("gemm", changed("qweight", torch.Tensor.long), "qweight", "dtype"),
    "qweight of one dimension": ("gptq", changed("qweight", torch.flatten), "qweight", "not a matrix"),
    "K that groups do not divide": ("gemm", changed("qweight", lambda t: t[:-8]), "group_size", "not divisible"),
    "too few groups": ("gptq", changed("scales", lambda t: t[:-1]), "scales", "shape"),
    "zero points of another width": ("gemm", changed("qzeros", lambda t: t[:, :-1]), "qzeros", "shape"),
    "scales the other way round": ("gemm", changed("scales", lambda t: t.T.contiguous()), "scales", "shape"),
    "NaN scales": ("gptq", changed("scales", at_start(float("nan"))), "scales", "NaN"),
    "zero scales": ("gemm", changed("scales", at_start(0.0)), "scales", "zero"),
    "infinite scales among those in use": ("gemv", changed("scales", at_start(float("inf"))), "scales", "infinite"),
    "integer scales": ("gemm", changed("scales", torch.Tensor.int), "scales", "dtype"),
    "an index of another length": ("gptq", changed("g_idx", lambda t: t[:-1]), "g_idx", "shape"),
    "an index out of order": ("gptq", changed("g_idx", lambda t: t.flip(0)), "g_idx", "out of their order"),
    "a bias of another length": (
        *("gemm", lambda tensors: {**tensors, "bias": torch.zeros(3, dtype=torch.float16)}),
        *("bias", "shape"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_bad_tensors_are_named(registry, fault) -> None:
    layout, change, field, words = FAULTS[fault]
    scheme = scheme_of(registry, layout, 4, 32, False, False)
    tensors = packed(random_layer(32, 96), layout)
    decode(scheme, tensors)
    with pytest.raises(qd.CheckpointError, match=words) as caught:
        decode(scheme, change(tensors))
    assert (caught.value.layer, caught.value.field) == (NAME, field)


@pytest.mark.parametrize("change", [torch.zeros_like, at_start(2), at_start(-1), lambda t: t.clamp(max=1)])
def test_an_index_that_does_not_share_out_the_columns(registry, change) -> None:
    tensors = changed("g_idx", change)(packed(random_layer(32, 96, ordered=True), "gptq"))
    with pytest.raises(qd.CheckpointError, match="share of columns"):
        decode(scheme_of(registry, "gptq", 4, 32, False, True), tensors)


def test_act_order_needs_its_index(registry) -> None:
    with pytest.raises(qd.CheckpointError, match="g_idx"):
        decode(scheme_of(registry, "gptq", 4, 32, False, True), without("g_idx")(packed(random_layer(32, 64), "gptq")))


def test_int3_takes_whole_values(registry) -> None:
    tensors = changed("qweight", lambda t: t[:-1])(packed(random_layer(32, 64, bits=3), "gptq"))
    with pytest.raises(qd.CheckpointError, match="whole number of 3-bit values"):
        decode(scheme_of(registry, "gptq", 3, 32, False, False), tensors)


@pytest.mark.parametrize(
    ("layout", "written"), [("gemm", "gemm"), ("gptq", "gptq"), ("gptq", "gptq_v2"), ("gptq_v2", "gptq")]
)
def test_symmetric_weights_with_zero_points_contradict_the_config(registry, layout, written) -> None:
    """Also what a wrong version looks like: the middle is then off by one."""
    layer = random_layer(32, 64, symmetric=layout != written)
    with pytest.raises(qd.CheckpointError, match="symmetric") as caught:
        decode(scheme_of(registry, layout, 4, 32, True, False), packed(layer, written))
    assert caught.value.field == "qzeros" and caught.value.required == 8


# ------------------------------------------------------------------------- tensors against the config, in a whole plan

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
DENSE = {"weight": torch.zeros(32, 64, dtype=torch.float16)}
AS_GPTQ, AS_AWQ = packed(random_layer(32, 64), "gptq"), packed(random_layer(32, 64), "gemm")


@pytest.fixture
def plan_of(tmp_path):
    def make(block: dict[str, Any], modules: dict[str, dict[str, torch.Tensor]]) -> Any:
        tensors = {f"{name}.{local}": t.clone() for name, own in modules.items() for local, t in own.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": block}))
        return qd.plan(tmp_path, strict=False)

    return make


@pytest.mark.parametrize(
    ("block", "name", "tensors", "words"),
    [
        (AWQ | {"modules_to_not_convert": ["up_proj"]}, NAME, AS_AWQ, "the config ignores it"),
        (GPTQ, "lm_head", AS_GPTQ, "the config ignores it by 'lm_head'"),
        (GPTQ | {"dynamic": {"-:.*up_proj": {}}}, NAME, AS_GPTQ, "the config ignores it"),
        (GPTQ, NAME, without("qweight")(AS_GPTQ), "no layer consumes"),
        (AWQ, "model.layers.0.mlp.act", {"scales": torch.ones(64)}, "no layer consumes scales"),
        (AWQ, NAME, AS_GPTQ, "K = 8 is not divisible"),
        (GPTQ, NAME, AS_AWQ, "shape"),
        (GPTQ, NAME, {**AS_GPTQ, "perm": torch.zeros(64)}, "no use for stored perm"),
    ],
)
def test_tensors_that_contradict_the_config(plan_of, block, name, tensors, words) -> None:
    (error,) = plan_of(block, {name: tensors, "model.norm": {"weight": torch.ones(64)}}).errors
    assert isinstance(error, qd.CheckpointError) and error.layer == name
    assert re.search(words, str(error))


@pytest.mark.parametrize(("block", "tensors"), [(GPTQ, AS_GPTQ), (AWQ, AS_AWQ)], ids=["gptq", "awq"])
def test_what_is_stored_dense_is_dense_without_being_listed(plan_of, block, tensors) -> None:
    names = [NAME, "model.layers.0.mlp.gate", "visual.blocks.0.attn.qkv", "lm_head", "model.embed_tokens"]
    plan = plan_of(block, {name: tensors if name == NAME else DENSE for name in names})
    assert not plan.errors
    assert {name: layer.scheme for name, layer in plan.layers.items()} == {
        name: "wNa16_int" if name == NAME else "dense" for name in names
    }
    (note,) = [p for p in plan.problems if p.code == "stored-dense"]
    assert note.severity == "note" and note.message.startswith("2 layers")
    assert plan.layers[NAME].inferred == "Linear, from its qweight"
