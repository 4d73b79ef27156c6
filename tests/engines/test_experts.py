"""Routed experts: what is loaded, what they compute, and what is said when they cannot be."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from demo_models.moe import FAMILIES, compress, tiny_moe
from demo_models.variants import Group
from safetensors.torch import load_file, save_file

import quantdispatch as qd
from quantdispatch.engines.experts import QuantExperts
from quantdispatch.engines.modules import QuantLinear
from quantdispatch.engines.tensors import resident_bytes


def _int(bits: int, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **more}


INT4 = Group(_int(4), format="pack-quantized")
INT8 = Group(
    {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
    targets=(r"re:.*experts\.1\.", r"re:.*self_attn"),
    format="pack-quantized",
)
TOKENS = torch.arange(7, 39).reshape(2, 16)


def logits(model: Any, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(tokens).logits.float()
    return result


def decompressed(folder: Path, target: Path) -> Path:
    """The same checkpoint with dense weights, by compressed-tensors' own decompression and without our code."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    config = json.loads((folder / "config.json").read_text())
    groups = config.pop("quantization_config")["config_groups"].values()
    tensors: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        tensors.update(load_file(shard))
    dense = {name: t for name, t in tensors.items() if f"{name.rpartition('.')[0]}.weight_scale" not in tensors}
    for module in {n.removesuffix(".weight_scale") for n in tensors if n.endswith(".weight_scale")}:
        state = {n.rpartition(".")[2]: t for n, t in tensors.items() if n.rpartition(".")[0] == module}
        bits = 8 if state["weight_scale"].shape[1] == 1 and len(groups) > 1 else 4
        args = next(g["weights"] for g in groups if g["weights"]["num_bits"] == bits)
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        compressor: Any = BaseCompressor.get_value_from_registry("pack-quantized")
        # in fp32, as the layers compute: a rounding more, and a router may choose otherwise
        state["weight_scale"] = state["weight_scale"].float()
        dense[f"{module}.weight"] = compressor.decompress(state, scheme)["weight"]
    target.mkdir()
    save_file(dense, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config))
    return target


def load_dense(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager").eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_decompressed_model(family: str, tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path / "packed", {"group_0": INT4}, family=family)
    model = qd.load(folder, dtype=torch.float32)
    experts = [module for module in model.modules() if isinstance(module, QuantExperts)]
    assert len(experts) == (1 if family == "deepseek_v3" else 2) and all(e.num_experts == 4 for e in experts)
    expected = logits(load_dense(decompressed(folder, tmp_path / "dense")))
    observed = logits(model)
    assert (observed - expected).norm() < 1e-4 * expected.norm()
    # one token at a time goes another way
    assert (logits(model, TOKENS[:1, :1]) - observed[:1, :1]).norm() < 1e-4 * observed[:1, :1].norm()


def test_experts_with_different_schemes_ignored_experts_and_shards(tmp_path: Path) -> None:
    ignore = ("lm_head", r"re:.*\.gate$", r"re:.*experts\.2\.up_proj")
    folder = tiny_moe(tmp_path / "p", {"eight": INT8, "four": INT4}, ignore=ignore, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    model = qd.load(folder, dtype=torch.float32)
    experts = next(module for module in model.modules() if isinstance(module, QuantExperts))
    kinds = {
        name: module.spec.weights.num_bits if isinstance(module, QuantLinear) else 16
        for name, module in experts.named_modules()
        if isinstance(module, (QuantLinear, torch.nn.Linear))
    }
    assert kinds == {
        f"{e}.{p}_proj": 8 if e == 1 else 16 if (e, p) == (2, "up") else 4
        for e in range(4)
        for p in ("gate", "up", "down")
    }
    expected = logits(load_dense(decompressed(folder, tmp_path / "dense")))
    assert (logits(model) - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_has_the_tensors_of_the_file(family: str, tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path / "packed", {"group_0": INT4}, family=family)
    model = qd.load(folder)
    model.save_pretrained(tmp_path / "saved")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(logits(qd.load(tmp_path / "saved")), logits(model))


def test_dequantize_gives_the_models_own_experts_back(tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path / "packed", {"group_0": INT4})
    model = qd.load(folder, dtype=torch.float32)
    packed = logits(model)
    small = resident_bytes(model)
    model.dequantize()
    assert not any(isinstance(module, (QuantExperts, QuantLinear)) for module in model.modules())
    assert resident_bytes(model) > 2 * small
    assert (logits(model) - packed).norm() < 0.05 * packed.norm()
    dense = load_dense(decompressed(folder, tmp_path / "dense")).state_dict()
    state = model.state_dict()
    assert state.keys() == dense.keys()
    for name in dense:  # packed weights become what decompression gives, in the scales' dtype
        torch.testing.assert_close(state[name], dense[name], rtol=2**-8, atol=0)


def test_only_chosen_experts_are_computed(tmp_path: Path) -> None:
    model = qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4}))
    experts = next(module for module in model.modules() if isinstance(module, QuantExperts))
    called: list[str] = []
    for name, module in experts.named_modules():
        if isinstance(module, QuantLinear):
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    x = torch.randn(3, 128, dtype=torch.bfloat16)
    index = torch.tensor([[3, 1], [1, 3], [3, 4]])  # 4 of 4: an expert that lives elsewhere
    experts(x, index, torch.full((3, 2), 0.5))
    assert {name.split(".")[0] for name in called} == {"1", "3"} and len(called) == 6


def test_rows_do_not_depend_on_their_neighbours(tmp_path: Path) -> None:
    model = qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4}), dtype=torch.float32)
    experts = next(module for module in model.modules() if isinstance(module, QuantExperts))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 128, generator=generator)
    index = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(9)])
    weights = torch.rand(9, 2, generator=generator)
    together = experts(x, index, weights)
    for row in range(9):
        alone = experts(x[row : row + 1], index[row : row + 1], weights[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone)
    assert experts(x[:0], index[:0], weights[:0]).shape == (0, 128)


def _without(folder: Path, target: Path, start: str) -> Path:
    target.mkdir()
    tensors = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith(start)}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path / "packed", {"group_0": INT4})
    name = "model.layers.1.mlp.experts.2.up_proj"
    with pytest.raises(qd.CheckpointError, match=r"up_proj of expert 2 is missing") as caught:
        qd.load(_without(folder, tmp_path / "less", name))
    assert caught.value.layer == name


def test_an_expert_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path / "packed", {"group_0": INT4})
    name = "model.layers.0.mlp.experts.3.down_proj"
    broken = _without(folder, tmp_path / "odd", name)
    tensors = load_file(broken / "model.safetensors")
    tensors |= {f"{name}.{k}": v for k, v in compress(torch.randn(128, 96, dtype=torch.bfloat16), INT4).items()}
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(qd.CheckpointError, match="another shape") as caught:
        qd.load(broken)
    assert caught.value.layer == name


def test_gate_and_up_are_one_product_and_stay_two_layers(tmp_path: Path) -> None:
    """What is stacked shares memory with the layers, and follows when they are loaded, moved, copied or replaced."""
    folder = tiny_moe(tmp_path / "packed", {"group_0": INT4})
    model, before = qd.load(folder), load_file(folder / "model.safetensors")
    small = resident_bytes(model)
    for module in model.modules():
        if isinstance(module, QuantExperts):  # as with kernels that cannot compute all experts at once
            object.__setattr__(module, "_known", None)
    first = logits(model)
    experts = next(module for module in model.modules() if isinstance(module, QuantExperts))
    stacked = [experts.expert(number)._stacked for number in range(4)]
    assert all(s is not None and s.impl.n == 128 for s in stacked), "64 rows each"
    assert resident_bytes(model) == small
    state = model.state_dict()
    assert all(torch.equal(before[name], state[name]) for name in before)
    assert torch.equal(logits(copy.deepcopy(model)), first)
    # each by itself, as when somebody listens
    gate = experts.expert(0).projections()[0][0]
    handle = gate.register_forward_hook(lambda *_: None)
    assert torch.equal(logits(model), first) and experts.expert(0)._stacked is None
    handle.remove()
    assert torch.equal(logits(model), first) and experts.expert(0)._stacked is not None
    tensors = gate.stored_tensors()
    gate.load_stored({**tensors, "weight_scale": tensors["weight_scale"] * 8})
    assert not torch.equal(logits(model), first)
    gate.load_stored(tensors)
    assert torch.equal(logits(model), first)
    x, index, weights = torch.randn(3, 128), torch.tensor([[0], [1], [2]]), torch.ones(3, 1)
    narrow = experts(x.bfloat16(), index, weights)
    assert experts.float().expert(0)._stacked is None
    assert (experts(x.bfloat16().float(), index, weights) - narrow).norm() < 0.02 * narrow.float().norm()
