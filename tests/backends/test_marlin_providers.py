"""A provider whose ops are not as recorded is found when a layer is bound, with the argument that differs."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import marlin_ops
import marlin_providers
import pytest
import torch

from quantdispatch.backends.marlin import probes
from quantdispatch.backends.marlin.providers import ProviderMismatch, sglang, vllm, weight_types
from quantdispatch.backends.marlin.providers.signatures import Signature, usual

DENSE, MOE = marlin_providers.SCHEMAS["dense"], marlin_providers.SCHEMAS["moe"]


@pytest.mark.parametrize("entry", [*DENSE, *MOE], ids=lambda entry: f"{entry['name']}-{entry['since']}")
def test_every_recorded_release_binds(entry: dict[str, Any]) -> None:
    recorded = vllm.MOE if entry in MOE else vllm.DENSE
    op, order = vllm.bind(marlin_providers.namespace(entry, True), recorded)
    assert [usual(a.name) for a in op._schema.arguments] == list(order)


@pytest.mark.parametrize("entry", DENSE, ids=lambda entry: f"{entry['name']}-{entry['since']}")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Tensor b_scales, ", "", "b_scales"),
        ("SymInt size_m, SymInt size_n", "SymInt size_n, SymInt size_m", "size_n"),
        ("Tensor workspace", "Tensor? workspace", "workspace"),
        ("bool is_zp_float", "bool is_zp_float, int thread_k", "one more argument, thread_k"),
        (", bool is_zp_float", "", "is_zp_float"),
    ],
)
def test_any_change_of_arguments_is_named(entry: dict[str, Any], old: str, new: str, said: str) -> None:
    changed = {**entry, "schema": entry["schema"].replace(old, new)}
    assert changed != entry
    with pytest.raises(ProviderMismatch, match=said) as caught:
        vllm.VllmMarlin(marlin_providers.namespace(changed, True), SimpleNamespace())
    assert entry["name"] in str(caught.value) and caught.value.remedy


def test_an_op_that_is_not_there() -> None:
    with pytest.raises(ProviderMismatch, match="there is no marlin_gemm"):
        vllm.VllmMarlin(SimpleNamespace(), SimpleNamespace())
    adapter = vllm.VllmMarlin(marlin_providers.namespace(DENSE[0], True), SimpleNamespace())
    with pytest.raises(ProviderMismatch, match="there is no moe_wna16_marlin_gemm"):
        adapter.check_moe()


@pytest.mark.parametrize("position", range(len(sglang.DENSE[2]) - 1))
def test_sglang_arguments_in_another_order(position: int) -> None:
    names = list(sglang.DENSE[2])
    names[position], names[position + 1] = names[position + 1], names[position]
    module = SimpleNamespace(**{sglang.DENSE[1]: eval(f"lambda {', '.join(names)}: None")})  # the test's own names
    with pytest.raises(ProviderMismatch, match=f"argument {position} is"):
        sglang.SglangMarlin(lambda name: module)


def test_sglang_is_not_there() -> None:
    def find(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    with pytest.raises(ProviderMismatch, match="No module named"):
        sglang.SglangMarlin(find)
    with pytest.raises(ProviderMismatch, match="AttributeError"):
        sglang.SglangMarlin(lambda name: SimpleNamespace())


def test_probes_give_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {**DENSE[0], "schema": DENSE[0]["schema"].replace("bool use_atomic_add, ", "")}

    def adapter(name: str) -> Any:
        return vllm.VllmMarlin(marlin_providers.namespace(changed, True), SimpleNamespace())

    monkeypatch.setattr(probes, "adapter", adapter)
    reason = probes.vllm()
    assert reason is not None and "use_atomic_add" in reason
    monkeypatch.setattr(probes, "adapter", lambda name: marlin_providers.made("sglang"))
    monkeypatch.setattr(probes.shutil, "which", lambda name: None)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr(probes.Path, "exists", lambda path: False)
    assert "nvcc" in (probes.sglang() or "")
    monkeypatch.setattr(probes.shutil, "which", lambda name: "/bin/nvcc")
    assert probes.sglang() is None and probes.sglang_moe() is None


def test_ids_of_weight_types() -> None:
    ours = [weight_types.UINT4, weight_types.UINT4B8, weight_types.UINT8B128, weight_types.FLOAT8, weight_types.FLOAT4]
    assert [kind.id for kind in ours] == list(marlin_ops.BITS)
    assert [kind.bits for kind in ours] == list(marlin_ops.BITS.values())


# -- against the providers' own sources, where they can be found


def sources(package: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for root in os.environ.get("QUANTDISPATCH_PROVIDER_PATH", "").split(os.pathsep):
        places += [str(Path(root) / package)] if root else []
    return next((Path(place) for place in places if Path(place).is_dir()), None)


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("recorded", [sglang.DENSE, sglang.MOE], ids=lambda recorded: recorded[1])
def test_sglang_as_installed(recorded: tuple[str, str, tuple[str, ...]]) -> None:
    folder = sources("sglang")
    if folder is None:
        pytest.skip("sglang is not installed (nor under QUANTDISPATCH_PROVIDER_PATH)")
    path = folder.parent.joinpath(*recorded[0].split(".")).with_suffix(".py")
    (own,) = (node for node in functions(path) if node.name == recorded[1])
    assert tuple(argument.arg for argument in own.args.args) == recorded[2]


@pytest.mark.parametrize(("name", "recorded"), [("marlin_gemm", vllm.DENSE), ("moe_wna16_marlin_gemm", vllm.MOE)])
def test_vllm_as_installed(name: str, recorded: tuple[tuple[str, str], ...]) -> None:
    """Its Python wrappers pass every argument on by position: as many, in the recorded order, of the recorded types."""
    folder = sources("vllm")
    if folder is None:
        pytest.skip("vllm is not installed (nor under QUANTDISPATCH_PROVIDER_PATH)")
    (own,) = (node for node in functions(folder / "_custom_ops.py") if node.name == name)
    call = own.body[-1].value  # type: ignore[attr-defined]
    passed = [usual(ast.unparse(a).replace("b_q_type.id", "b_type_id")) for a in call.args]
    signature = Signature.of_schema(f"{name}({recorded[0][1]}) -> Tensor")
    assert passed == list(signature.names)
    types = {usual(a.arg): ast.unparse(a.annotation) for a in own.args.args if a.annotation is not None}
    expected = {"Tensor": "torch.Tensor", "Optional[Tensor]": "torch.Tensor | None", "int": "int", "bool": "bool"}
    for argument, kind in signature.arguments:
        if argument != "b_type_id":
            assert types[argument] == expected[kind], argument


def test_vllm_numbers_types_as_we_do() -> None:
    folder = sources("vllm")
    if folder is None:
        pytest.skip("vllm is not installed (nor under QUANTDISPATCH_PROVIDER_PATH)")
    spec = importlib.util.spec_from_file_location("vllm_scalar_type", folder / "scalar_type.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for kind in (weight_types.UINT4, weight_types.UINT4B8, weight_types.UINT8B128, weight_types.FLOAT8):
        assert getattr(module.scalar_types, kind.name).id == kind.id
    assert module.scalar_types.float4_e2m1f.id == weight_types.FLOAT4.id


def test_the_stand_ins_are_of_torch() -> None:
    """A stand-in is an op like a provider's: its schema comes from torch and not from here."""
    packet = marlin_providers.namespace(DENSE[0], True).marlin_gemm
    assert isinstance(packet, torch._ops.OpOverloadPacket)
