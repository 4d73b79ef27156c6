"""Whatever a built-in rule accepts can be stored, read, computed by the reference backend and stored again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from quantdispatch.backends.reference import kernels
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.domains import Domain
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.facts import ARGS_FIELDS, SIDES, LayerFacts
from quantdispatch.registry.kernels import select
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.rules import Rule, builtin_rules
from quantdispatch.registry.scheme import LayerShape, StoredTensor
from quantdispatch.registry.values import ABSENT

N, K = 32, 128
ROWS = torch.tensor([[3, 31]])
#: as writers choose where several dtypes are read
DTYPES = {
    "I8": torch.int8, "I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8,
    "BF16": torch.bfloat16, "F32": torch.float32,
}  # fmt: skip
#: what a field takes where its box leaves more than a few values
CHOICES: dict[str, list[Any]] = {
    "num_bits": [1, 2, 3, 4, 5, 6, 7, 8],
    "group_size": [16, 32, 64, 128],
    "block_structure": [(24, 40), (16, 16), (128, 128)],
}
SAMPLES = 3


def samples(rule: Rule) -> Iterator[LayerFacts]:
    """A few layers of every box of the rule. Weights have groups that divide K; a group of inputs may be larger."""
    for number, box in enumerate(rule.predicate.boxes):
        for sample in range(SAMPLES):
            rng = random.Random(number * SAMPLES + sample)
            domains = box.domains
            sides = [_args(side, domains, rng) for side in SIDES]
            format = _choose("format", domains.get("format"), rng) if "format" in domains else None
            yield LayerFacts(_choose("kind", domains["kind"], rng), format, *sides)


def _args(side: str, domains: Mapping[str, Domain], rng: random.Random) -> QuantArgs | None:
    if ABSENT in domains[side]:
        return None
    fields = {
        name: _choose(name, domains.get(f"{side}.{name}"), rng) for name in ARGS_FIELDS if f"{side}.{name}" in domains
    }
    if fields.get("strategy") == "block":
        fields["block_structure"] = _choose("block_structure", domains.get(f"{side}.block_structure"), rng)
    if side == "weights" and (fields.get("group_size") or 0) > K:
        fields["group_size"] = 32
    return QuantArgs(**fields)


def _choose(field: str, domain: Domain | None, rng: random.Random) -> Any:
    if domain is not None and domain.allowed is not None:
        return rng.choice(sorted(domain.allowed, key=repr))
    return rng.choice([value for value in CHOICES[field] if domain is None or value in domain])


def value_of(declared: StoredTensor, group: int, generator: torch.Generator) -> torch.Tensor:
    """A tensor that a layer may have under this name."""
    shape, name = declared.shapes[0], declared.name
    dtype = next(dtype for code, dtype in DTYPES.items() if code in declared.dtypes)
    if name == "weight_shape":
        return torch.tensor([N, K])
    if name == "weight_g_idx":
        return (torch.arange(K) // group).flip(0).to(dtype)
    if name.endswith("scale") and dtype == torch.uint8:
        return torch.full(shape, 120, dtype=dtype)
    if name.endswith("scale"):
        return (torch.rand(shape, generator=generator) * 0.1 + 0.01).to(dtype)
    if name.endswith("zero_point") and dtype == torch.int32:
        return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=dtype)
    if name.endswith("zero_point") or dtype == torch.int8:
        return torch.randint(-1, 1, shape, generator=generator).to(dtype)  # in the range of every number of bits
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, generator=generator, dtype=dtype)


RULES = [rule for rule in builtin_rules() if rule.name != "dense"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_what_a_rule_accepts_is_computed(rule: Any, headers: Any) -> None:
    everything = list(samples(rule))
    assert all(rule.predicate.test(facts.flat).status == "yes" for facts in everything)
    for number, facts in enumerate(everything):
        dtype = ("bfloat16", "float32", "float16")[number % 3]
        scheme = load_target(rule.scheme)(facts, version="0.20.1")
        generator = torch.Generator().manual_seed(number)
        group = (facts.weights and facts.weights.group_size) or K
        tensors = {t.name: value_of(t, group, generator) for t in scheme.stored(LayerShape(N, K, "dense"))}
        shape = scheme.check("layer", headers(tensors))
        required, optional = scheme.tensor_names()
        assert required <= set(tensors) <= required | optional
        spec = scheme.kernel_spec(shape, dtype, tensors=frozenset(tensors))
        told = (spec.kind, spec.weights, spec.inputs, spec.outputs)
        assert told == (facts.kind, facts.weights, facts.inputs, facts.outputs)
        kernel = select(spec, Environment.detect("cpu").facts, kernels()).kernel
        assert kernel is not None and kernel.backend == "reference" and kernel.op == spec.op
        numerics = load_target(scheme.numerics)(facts)
        operands = numerics.operands(tensors, shape, "layer")
        impl = load_target(kernel.target)(spec)
        state = impl.pack(operands)
        result = _run(spec.op, impl, state, getattr(torch, dtype), generator)
        if spec.op == "embedding":
            rows = numerics.dequantize(operands)[ROWS].to(result.dtype)
            torch.testing.assert_close(result, rows, rtol=0, atol=0, equal_nan=True)
        stored = numerics.stored(impl.unpack(state), shape)
        assert set(stored) == set(tensors), facts
        assert [name for name, t in tensors.items() if not same(t, stored[name])] == [], facts


def _run(op: str, impl: Any, state: Any, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if op == "kv_cache":
        x = torch.randn(1, N, 3, 8, generator=generator).to(dtype)
        y, shape = impl.dequantize("k", impl.quantize("k", x, state), state), x.shape
    elif op == "embedding":
        y, shape = impl.apply(ROWS, state), (1, 2, K)
    else:
        y, shape = impl.apply(torch.randn(2, 3, K, generator=generator).to(dtype), state), (2, 3, N)
    assert y.dtype == dtype and y.shape == shape
    return y


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit. N and K fill their words whatever the bits, so random words have no bits to lose."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
