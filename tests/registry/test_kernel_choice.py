"""Kernels are ranked totally, judged with reasons, forced by name, and tried where they can be."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from quantdispatch import Absent, Args, Kernel, Needs, PluginError
from quantdispatch.registry import kernels as kernels_module
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.kernels import BACKEND_RANKS, ordered, select
from quantdispatch.registry.registry import Registry
from quantdispatch.registry.table import RuleTable

TARGET = "nowhere.module:Impl"
SPEC = KernelSpec(
    "linear", "linear", "wNa16_int", QuantArgs(num_bits=4, group_size=64), None, None, 128, 96, "bfloat16"
)
CPU = Environment.detect("cpu")


def kernel(name: str, rank: int = 0, **extra: Any) -> Kernel:
    requires = extra.pop("requires", Needs(device="cpu"))
    return Kernel(name=name, op="linear", requires=requires, target=TARGET, rank=rank, **extra)


FAST = kernel("cpu/fast", 9, requires=Needs({"k%64": 0}, device="cpu", weights=Args(num_bits=4), inputs=Absent))
GENERAL = kernel("cpu/general", 1)
LAST = kernel("reference", 1000, requires=Needs(), slow=True)
GPU = kernel("gpu/one", 5, requires=Needs(device={"cuda", "rocm"}))


def test_the_order_is_total_and_reference_is_last() -> None:
    twin = kernel("cpu/also", 1)
    for permutation in itertools.permutations([FAST, GENERAL, LAST, GPU, twin]):
        names = [k.name for k in ordered(permutation, {"gpu": 300, **BACKEND_RANKS})]
        assert names == ["gpu/one", "cpu/fast", "cpu/also", "cpu/general", "reference"]


def test_the_first_admissible_wins_and_the_others_say_why() -> None:
    choice = select(SPEC, CPU.facts, [GPU, FAST, GENERAL, LAST])
    assert choice.kernel is GENERAL
    assert [str(c) for c in choice.trace] == [
        "gpu/one: device is cpu, requires cuda | rocm",
        "cpu/fast: k%64 is 32, requires 0",
        "cpu/general: yes",
        "reference: yes",
    ]


def test_unknown_shapes_give_conditions() -> None:
    choice = select(replace(SPEC, n=None, k=None), CPU.facts, [FAST, LAST])
    assert choice.kernel is FAST
    assert choice.conditions == ("k%64 is unknown, requires 0",)


def registry() -> Registry:
    return Registry(RuleTable([]), [FAST, GENERAL, LAST])


def test_forcing_a_backend() -> None:
    assert registry().select(SPEC, CPU, backend="reference").kernel is LAST
    trace = registry().select(SPEC, CPU, backend="reference").trace
    assert trace[1].reasons == ("backend 'reference' was asked for",)
    with pytest.raises(PluginError, match="unknown backend 'cuda'"):
        registry().select(SPEC, CPU, backend="cuda")


def test_no_kernel_is_an_answer_not_a_fallback() -> None:
    choice = select(SPEC, Environment.detect("cuda:sm90").facts, [FAST, GENERAL])
    assert choice.kernel is None
    assert all(c.status == "no" for c in choice.trace)


def test_probes_run_only_when_binding_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(target: str) -> Any:
        def probe() -> str | None:
            asked.append(target)
            if target == "m:raises":
                raise OSError("no such device")
            return "instruction set missing" if target == "m:fails" else None

        return probe

    monkeypatch.setattr(kernels_module, "load_target", fake)
    monkeypatch.setattr(kernels_module, "_probed", {})
    candidates = [
        kernel("cpu/a", probe="m:fails"),
        kernel("cpu/b", probe="m:raises"),
        kernel("cpu/c", probe="m:works"),
        kernel("cpu/d", probe="m:never"),
    ]
    assert select(SPEC, CPU.facts, candidates).kernel is candidates[0]
    assert asked == []
    for _ in range(2):
        choice = select(SPEC, CPU.facts, candidates, probe=True)
        assert choice.kernel is candidates[2]
        assert [c.reasons for c in choice.trace[:2]] == [
            ("probe: instruction set missing",),
            ("probe: OSError: no such device",),
        ]
    assert asked == ["m:fails", "m:raises", "m:works"]


@pytest.mark.parametrize("fields", [{"target": "nothing"}, {"probe": "nothing"}, {"requires": {"device": "cpu"}}])
def test_a_kernel_checks_itself(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Kernel(**{"name": "x", "op": "linear", "requires": Needs(), "target": TARGET, **fields})
