"""Whole checkpoints: planned, loaded, run, verified and saved."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from foreign_files import write_model
from safetensors.torch import load_file, save_file

import quantdispatch as qd
from quantdispatch.engines.modules import QuantLinear
from quantdispatch.engines.verify import verify
from quantdispatch.registry.environment import native_library

IDS = torch.arange(24).reshape(2, 12)
AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
GPTQ = {"quant_method": "gptq", "sym": False, "desc_act": False}


def tiny(family: str = "Llama", tied: bool = True) -> torch.nn.Module:
    sizes = {
        "vocab_size": 64, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied,
    }  # fmt: skip
    if family == "Qwen3Moe":
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32}
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def qwen2() -> torch.nn.Module:
    return tiny("Qwen2", tied=False)


#: layout, what the block has beside the method, the model, arguments of the writer
CASES = {
    "awq gemm": ("gemm", {"group_size": 32}, tiny, {}),
    "awq gemm, group 128, biases": ("gemm", {"group_size": 128}, qwen2, {"group": 128}),
    "awq gemm, one group": ("gemm", {"group_size": -1}, tiny, {"group": -1}),
    "awq gemm, symmetric": ("gemm", {"group_size": 64, "zero_point": False}, tiny, {"group": 64, "symmetric": True}),
    "awq gemv": ("gemv", {"group_size": 64, "version": "GEMV"}, tiny, {"group": 64}),
    "gptq": ("gptq", {"bits": 4, "group_size": 32}, tiny, {}),
    "gptq, biases of zeros": ("gptq", {"bits": 4, "group_size": 128}, tiny, {"group": 128, "pad_bias": True}),
    "gptq, symmetric, one group": (
        *("gptq", {"bits": 4, "group_size": -1, "sym": True, "desc_act": True}, tiny),
        {"group": -1, "symmetric": True},
    ),
    "gptq, int8, act-order": (
        *("gptq", {"bits": 8, "group_size": 64, "desc_act": True}, tiny),
        {"group": 64, "bits": 8, "ordered": True},
    ),
    "gptq, int3": ("gptq", {"bits": 3, "group_size": 32}, tiny, {"bits": 3}),
    "gptq, int2, version 2": (
        *("gptq_v2", {"bits": 2, "group_size": 32, "checkpoint_format": "gptq_v2"}, tiny),
        {"bits": 2},
    ),
    "gptq of GPTQModel": ("words", {"bits": 4, "group_size": 32, "meta": {"quantizer": ["gptqmodel:2.2.0"]}}, tiny, {}),
}


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loads_computes_and_is_saved_as_it_was(case, tmp_path) -> None:
    layout, keys, model, args = CASES[case]
    block = {**(AWQ if layout in ("gemm", "gemv") else GPTQ), **keys}
    written = write_model(tmp_path, layout, block, model=model(), **args)
    loaded = qd.load(written.folder, dtype=torch.float32)
    layers = {name: m for name, m in loaded.named_modules() if isinstance(m, QuantLinear)}
    assert layers.keys() == written.layers.keys()
    for name, layer in layers.items():
        assert layer.scheme.name == "wNa16_int"
        assert torch.equal(layer.dense_weight(), written.layers[name].weight), name
    truth = logits(transformers.AutoModelForCausalLM.from_pretrained(written.twin, dtype=torch.float32).eval())
    torch.testing.assert_close(logits(loaded), truth, rtol=1e-4, atol=1e-5)
    assert truth.std() > 0.1

    loaded.save_pretrained(tmp_path / "saved")
    before, after = (load_file(f / "model.safetensors") for f in (written.folder, tmp_path / "saved"))
    left = before.keys() - after.keys()
    assert after.keys() <= before.keys() and all(not before[name].any() and name.endswith(".bias") for name in left)
    assert bool(left) == args.get("pad_bias", False)
    assert all(before[name].dtype == after[name].dtype and torch.equal(before[name], after[name]) for name in after)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"] == block


@pytest.mark.parametrize(
    ("layout", "block", "args"),
    [
        ("gemm", {**AWQ, "group_size": 128}, {"group": 128}),
        ("gptq", {**GPTQ, "bits": 4, "group_size": 128, "sym": True}, {"group": 128, "symmetric": True}),
    ],
)
def test_kernels_are_those_of_packed_integers(layout, block, args, tmp_path) -> None:
    written = write_model(tmp_path, layout, block, model=tiny(), **args)
    plan = qd.plan(written.folder)
    quantized = [layer for layer in plan.layers.values() if layer.scheme == "wNa16_int"]
    assert len(quantized) == 14 and {(layer.backend, layer.kernel) for layer in quantized} == {
        ("cpu", "cpu/native" if native_library() else "cpu/int4_torch")
    }
    # what engines make of compressed-tensors configs says nothing about these
    assert all(not layer.equivalents and not layer.differs for layer in quantized)


def test_a_bias_that_the_model_does_not_have_and_that_adds_something(tmp_path) -> None:
    written = write_model(tmp_path, "gptq", {**GPTQ, "bits": 4, "group_size": 32}, model=tiny(), pad_bias=True)
    file = written.folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.bias"
    tensors[name][7] = 0.5
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(qd.CheckpointError, match="left over") as caught:
        qd.load(written.folder)
    assert caught.value.field == name


def test_a_dequantized_model_is_the_plain_one(tmp_path) -> None:
    written = write_model(tmp_path, "gptq", {**GPTQ, "bits": 4, "group_size": 32}, model=tiny(), pad_bias=True)
    model = qd.load(written.folder, dtype=torch.float32)
    before = logits(model)
    model.dequantize()
    plain = transformers.AutoModelForCausalLM.from_pretrained(written.twin)
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(logits(model), before, rtol=1e-2, atol=1e-3)


def test_every_row_of_verify_says_why_nothing_was_compared(tmp_path) -> None:
    rows = verify(write_model(tmp_path, "gemm", {**AWQ, "group_size": 32}, model=tiny()).folder)
    assert len(rows) == 14
    assert all(row.weights_equal is None and row.error < 0.02 and row.exact for row in rows)
    assert all("awq-gemm is no format of compressed-tensors" in row.note for row in rows)


def test_routed_experts_beside_a_dense_router_that_no_config_names(tmp_path) -> None:
    def choose(name: str) -> dict | None:
        return None if name.endswith("mlp.gate") else {"group": 64} if "experts" in name else {}

    block = {**GPTQ, "bits": 4, "group_size": 32, "dynamic": {r".*\.experts\..*": {"group_size": 64}}}
    written = write_model(tmp_path, "gptq", block, model=tiny("Qwen3Moe", tied=False), choose=choose)
    loaded = qd.load(written.folder, dtype=torch.float32)
    plan = loaded.quantdispatch_plan
    kinds = [layer.kind for layer in plan.layers.values() if layer.scheme == "wNa16_int"]
    assert (kinds.count("linear"), kinds.count("moe")) == (8, 24)
    assert [p.where for p in plan.problems if p.code == "stored-dense"] == ["model.layers.0.mlp.gate"]
    truth = logits(transformers.AutoModelForCausalLM.from_pretrained(written.twin, dtype=torch.float32).eval())
    torch.testing.assert_close(logits(loaded), truth, rtol=1e-4, atol=1e-5)
