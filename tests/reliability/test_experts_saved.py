"""A loaded model of experts can be saved whole and read again, and an expert that lives elsewhere adds nothing."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from demo_models.moe import tiny_moe
from demo_models.variants import Group

import quantdispatch as qd
from quantdispatch.engines.experts import QuantExperts

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tiny_moe(tmp_path_factory.mktemp("moe") / "packed", {"group_0": Group(INT4, format="pack-quantized")})
    return qd.load(folder)


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), saved])
def test_a_model_survives(copied: Callable[[Any], Any], model: Any) -> None:
    tokens = torch.arange(16).reshape(2, 8)
    with torch.inference_mode():
        first = model(tokens).logits
        other = copied(model)
        assert torch.equal(other(tokens).logits, first)
    for module in other.modules():
        if isinstance(module, QuantExperts):
            assert getattr(module._activation, "__self__", module.original) is module.original


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_an_index_outside_adds_nothing(fused: bool, rows: int, model: Any) -> None:
    experts = next(module for module in model.modules() if isinstance(module, QuantExperts))
    known = experts._known
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    weights = torch.full((rows, 3), 0.5)
    try:
        if not fused:
            object.__setattr__(experts, "_known", None)
        alone = experts(x, torch.full((rows, 1), 1), weights[:, :1])
        beside = experts(x, torch.tensor([[1, -1, experts.num_experts]] * rows), weights)
    finally:
        object.__setattr__(experts, "_known", known)
    assert torch.equal(beside, alone)
