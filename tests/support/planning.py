"""What the tests of plans share: names, and short ways to plan and to read what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny

from quantdispatch.registry import plan as plan_module
from quantdispatch.registry.errors import QuantDispatchError
from quantdispatch.registry.plan import Plan, plan

ATTN, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
OUTSIDE = {**tiny.dense("model.embed_tokens"), **tiny.dense("lm_head"), "model.norm.weight": ("BF16", [64])}


@pytest.fixture(autouse=True)
def tiny_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan with the built-in rules and kernels only, whatever is installed. Importing it puts it to use."""
    monkeypatch.setattr(plan_module, "get_registry", tiny.registry)


def soft(path: Path, config: Any, tensors: Any, **options: Any) -> Plan:
    return plan(tiny.checkpoint(path, config, tensors), strict=False, **options)


def codes(result: Plan) -> set[str]:
    return {problem.code for problem in result.problems}


def error(result: Plan, name: str) -> QuantDispatchError:
    found = result.layers[name].error
    assert found is not None
    return found
