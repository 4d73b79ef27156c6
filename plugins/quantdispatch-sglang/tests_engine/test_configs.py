"""Published configs, whole, through ``get_quantization_config`` and ``get_quant_method``, module by module as SGLang
fuses them: each module goes by what the plan says of its layers, or is refused with the plan's error."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import architectures
import pytest
import torch
from layers import config, sglang_config, weights
from sglang.srt.layers import quantization
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

import quantdispatch as qd
from quantdispatch.engines.adapters.fusion import USUAL

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "data" / "configs" / "shared"
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "expected.toml").read_text())
READ = [name for name, row in EXPECTED.items() if "error" not in row]
REFUSED = [name for name, row in EXPECTED.items() if "error" in row]
ARCHITECTURES = [None, "sm75", "sm80", "sm90", "sm100"]
#: the numeric contracts of SGLang's classes, from what they compute
CONTRACTS = {
    "CompressedTensorsWNA16": {"wNa16_int"},
    "CompressedTensorsWNA16MoE": {"wNa16_int"},
    "CompressedTensorsWNA16TritonMoE": {"wNa16_int"},
    "ZeroPointMarlinMoE": {"wNa16_int"},
    "CompressedTensorsW8A8Fp8": {"w8a8_fp8"},
    "CompressedTensorsW8A8Fp8MoE": {"w8a8_fp8"},
    "CompressedTensorsW8A16Fp8": {"w8a16_fp8"},
    "CompressedTensorsW8A8Int8": {"wNa8_int"},
    "CompressedTensorsW4A16Fp4": {"w4a16_nvfp4"},
    "CompressedTensorsW4A16Nvfp4MoE": {"w4a16_nvfp4"},
    "CompressedTensorsW4A4Fp4": {"w4a4_nvfp4"},
    "CompressedTensorsW4A4Nvfp4MoE": {"w4a4_nvfp4"},
    "CompressedTensorsW4AFP8MoE": {"w4a8_fp8"},
    "Mxfp4MoEMethod": {"w4a16_mxfp4"},
}


def raw(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    whole = json.loads((FOLDER / f"{name}.json").read_text())
    block = next((whole[key] for key in ("quantization_config", "compression_config") if key in whole), None)
    if block is None and isinstance(whole.get("text_config"), dict):
        block = whole["text_config"].get("quantization_config")
    return whole, block if block is not None else whole


def fused(modules: dict[str, Any]) -> Iterator[tuple[str, list[str], Any]]:
    """(name at run time, layers of the checkpoint, class) as SGLang builds models."""
    members = {member: fused for fused, every in USUAL.items() for member in every}
    found: dict[str, list[str]] = {}
    # SGLang gives no config to what is no matrix in the checkpoint
    matrices = {name: kind for name, kind in modules.items() if "Conv" not in str(kind)}
    for name in matrices:
        parent, _, last = name.rpartition(".")
        if ".experts." in name:
            found.setdefault(name[: name.index(".experts.") + len(".experts")], []).append(name)
        elif last in members and all(f"{parent}.{m}" in modules for m in USUAL[members[last]]):
            found.setdefault(f"{parent}.{members[last]}", []).append(name)
        else:
            found[name] = [name]
    for name, layers in found.items():
        kind: Any = LinearBase
        if name.endswith(".experts"):
            kind = FusedMoE
        elif "Embedding" in modules[layers[0]]:
            kind = VocabParallelEmbedding
        elif name.endswith("lm_head"):
            kind = ParallelLMHead
        yield name, layers, kind


def bare(kind: Any, experts: int) -> Any:
    """A module of the class as it is when SGLang asks for its method."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    if kind is FusedMoE:
        from sglang.srt.layers.moe import MoeRunnerConfig

        module.num_experts, module.num_fused_shared_experts = experts, 0
        module.uses_expert_location = True
        module.hidden_size, module.intermediate_size_per_partition = 256, 128
        module.moe_runner_config = MoeRunnerConfig(activation="silu")
    return module


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
@pytest.mark.parametrize("name", [name for name in READ if "model" in EXPECTED[name]])
def test_a_config_and_its_model(name: str, arch: str | None, gpu: Any) -> None:
    whole, block = raw(name)
    if arch is not None:
        gpu(arch)
    function, options = EXPECTED[name]["model"]
    modules = getattr(architectures, function)(**options)
    plan = qd.plan(
        whole, modules=modules, device="cpu" if arch is None else f"cuda:{arch}", dtype="bfloat16", strict=False
    )
    torch.set_default_dtype(torch.bfloat16)
    made = quantization.get_quantization_config("compressed-tensors").from_config(
        {**block, "hf_config": SimpleNamespace(**whole)}
    )
    seen = 0
    for target, layers, kind in fused(modules):
        planned = [plan.layers[layer] for layer in layers if layer in plan.layers]
        if not planned or (kind is LinearBase and planned[0].kind not in ("linear", "lm_head")):
            continue
        module = bare(kind, len(layers) // 3 or 1)
        method = made.get_quant_method(module, target)
        scheme = getattr(module, "scheme", None)
        seen += 1
        if all(layer.scheme == "dense" for layer in planned):
            assert method is None or "Unquantized" in type(method).__name__, target
        elif type(method).__name__.startswith("QuantDispatch"):
            continue  # what it computes is what the plan's scheme says: see the tests of linear layers and experts
        else:
            found = type(method if scheme is None else scheme).__name__
            assert arch is not None and {layer.scheme for layer in planned} <= CONTRACTS[found], (target, found)
    assert seen


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_config(name: str) -> None:
    row = EXPECTED[name]
    whole, block = raw(name)
    with pytest.raises(getattr(qd, row["error"])) as caught:
        quantization.get_quantization_config("compressed-tensors").from_config(dict(block))
    assert all(words in str(caught.value) for words in row["says"])


def test_sglangs_class_where_it_computes_the_same(gpu: Any, ranks: Any) -> None:
    """And ours where SGLang would ignore per-tensor scales or zero points of inputs, whatever the order of groups."""
    from layers import inputs
    from sglang.srt.layers.linear import ReplicatedLinear

    gpu("sm90")
    wanted = {
        "CompressedTensorsWNA16": (weights(4, 128), None, "pack-quantized"),
        "CompressedTensorsW8A8Int8": (weights(8, "channel"), inputs(), "int-quantized"),
        "CompressedTensorsW8A8Fp8": (weights(8, "channel", kind="float"), inputs(kind="float"), "float-quantized"),
        None: (weights(8, "tensor"), inputs(), "int-quantized"),
        "": (weights(8, "channel"), inputs("tensor", symmetric=False), "int-quantized"),
    }
    for name, group in wanted.items():
        # a second group, which has the target Linear, and would decide for all in places
        block = config((["re:.*o_proj"], *group), (["Linear"], weights(8, 64), None, "pack-quantized"))
        module = bare(ReplicatedLinear, 0)
        method = sglang_config(block).get_quant_method(module, "model.layers.0.o_proj")
        if name:
            assert type(module.scheme).__name__ == name
        else:
            assert module.scheme is None and type(method).__name__ == "QuantDispatchLinearMethod"


def test_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    scale = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    block = config((["Linear"], weights(), None, "pack-quantized"))
    attention = bare(RadixAttention, 0)
    for cache, method in (({**scale, "strategy": "tensor"}, "CompressedTensorsKVCacheMethod"), (scale, None)):
        made = sglang_config({**block, "kv_cache_scheme": cache})
        found = made.get_quant_method(attention, "model.layers.0.self_attn.attn")
        # where no strategy is written, compressed-tensors means a scale of the whole tensor
        assert (
            type(found).__name__ == (method or "CompressedTensorsKVCacheMethod") and made.kv_cache_quant_algo == "FP8"
        )
    per_head = sglang_config({**block, "kv_cache_scheme": {**scale, "strategy": "attn_head"}})
    assert per_head.get_quant_method(attention, "model.layers.0.self_attn.attn") is None
    assert "cache" in per_head.report.line()
