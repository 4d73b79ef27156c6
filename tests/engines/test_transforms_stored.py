"""Transforms in files of other writers, in files that lack some, and of routed experts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="models are transformers models")
pytest.importorskip("compressed_tensors", reason="the checkpoints are written by it")

from demo_models.moe import tiny_moe  # noqa: E402
from demo_models.variants import Group  # noqa: E402
from transformed_models import (  # noqa: E402
    FAR,
    Make,
    apply,
    changed,
    distance,
    load,
    logits,
    maker,
    stored,
    transforms,
)  # fmt: skip

import quantdispatch as qd  # noqa: E402


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return maker(tmp_path_factory)


def test_each_layer_may_store_its_own(made: Make, tmp_path: Path) -> None:
    def repeat(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for name, module in transforms(load(folder)).items():
            for role, tensor in module.rotation.stored().items():
                tensors[f"{name}.{role}"] = tensor.clone()

    folder, truth, _ = made("quip-permuted")
    other = changed(folder, tmp_path / "other", repeat)
    assert len(stored(other)) > len(stored(folder)) and distance(logits(load(other)), truth) < 1e-5


@pytest.mark.parametrize("name", ["quip-hadamard", "quip-large", "spin-r4-f64"])
def test_plain_hadamard_matrices_need_not_be_stored(name: str, made: Make, tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for key in [key for key in tensors if key.endswith(("_input.weight", "_output.weight"))]:
            del tensors[key]

    folder, truth, _ = made(name)
    model = load(changed(folder, tmp_path / "other", drop))
    assert distance(logits(model), truth) < 1e-5
    assert not any("_input" in key or "_output" in key for key in model.state_dict())


def test_a_random_matrix_that_is_missing(made: Make, tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        del tensors[next(key for key in tensors if key.endswith("down_proj.v_input.weight"))]

    with pytest.raises(qd.QuantDispatchError, match=r"down_proj: v_input.weight is missing.*size 192"):
        load(changed(made("quip-random")[0], tmp_path / "other", drop))


@pytest.mark.parametrize("place", ["q_attn", "k_cache"])
def test_places_without_support_are_named(place: str, made: Make, tmp_path: Path) -> None:
    def add(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        group = {"type": "hadamard", "head_dim": 32, "apply": [apply(place, ["re:.*self_attn$"])]}
        config["transform_config"]["config_groups"]["R3"] = group

    folder = changed(made("spin-r4")[0], tmp_path / "other", add)
    with pytest.raises(qd.PlanError) as caught:
        load(folder)
    assert len(caught.value.errors) == 2
    for error in caught.value.errors:
        assert isinstance(error, qd.NoKernelFound)
        assert all(part in str(error) for part in (f"R3 at {place}", "self_attn", "input or output of linear layers"))


def test_a_module_that_is_no_linear_layer_in_the_model(made: Make, tmp_path: Path) -> None:
    """Files do not tell: a router has a weight like a linear layer's. Its class is not meant, its name is."""
    moe = tiny_moe(tmp_path / "moe", {"g": Group(INT4, format="pack-quantized")}, family="mixtral")

    def add(targets: Any) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
        def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
            group = {"type": "hadamard", "head_dim": 32, "apply": [apply("input", targets)]}
            config["transform_config"] = {"config_groups": {"R": group}}

        return change

    model = load(changed(moe, tmp_path / "class", add("Linear")))
    assert not any(".gate." in name for name in transforms(model)) and transforms(model)
    with pytest.raises(qd.NoKernelFound, match="R at input.*Router"):
        load(changed(moe, tmp_path / "name", add([r"re:.*\.gate$"])))


# ------------------------------------------------------------------------------------------------------ routed experts

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("experts") / "model"
    ignore = ("lm_head", r"re:.*\.gate$", r"re:.*layers\.1\.mlp\.experts.*")
    yield tiny_moe(folder, {"g": Group(INT4, format="pack-quantized")}, ignore=ignore)
    gc.collect()


def test_experts_are_transformed(experts: Path, tmp_path: Path) -> None:
    """Packed ones and dense ones, against a dense model whose weights do what the transforms would."""

    def add(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        targets = [r"re:.*experts\.\d+\.(up|down)_proj$"]
        group = {"type": "hadamard", "head_dim": 32, "apply": [apply("input", targets), apply("output", targets)]}
        config["transform_config"] = {"config_groups": {"R": group}}

    model = load(changed(experts, tmp_path / "moe", add))
    assert len(transforms(model)) == 2 * 4 * 2 * 2
    plain = load(experts)
    plain.dequantize()
    hadamard = torch.tensor([[1 - 2 * (int(i & j).bit_count() % 2) for j in range(32)] for i in range(32)])
    block = hadamard.double() / 32**0.5

    def turn(weight: torch.Tensor) -> torch.Tensor:
        """``U^T W V^T`` with blocks of 32."""
        n, k = weight.shape[-2] // 32, weight.shape[-1] // 32
        left, right = torch.block_diag(*[block] * n), torch.block_diag(*[block] * k)
        return (left.T @ weight.double() @ right.T).to(weight.dtype)

    with torch.no_grad():
        untransformed = logits(plain)
        for layer in plain.model.layers:
            inner = layer.mlp.experts.down_proj.shape[-1]
            layer.mlp.experts.down_proj.copy_(turn(layer.mlp.experts.down_proj))
            up = layer.mlp.experts.gate_up_proj[:, inner:]
            up.copy_(turn(up))
    truth = logits(plain)
    assert distance(untransformed, truth) > FAR / 3
    # decompression rounds weights to the scales' bfloat16, which packed layers do not
    assert distance(logits(model), truth) < 1e-2
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))
    model.dequantize()
    assert not transforms(model) and distance(logits(model), truth) < 1e-4
