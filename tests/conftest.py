"""Checkpoints for all tests, made on demand and once: `tiny_checkpoint(variant)` and `smollm2(variant)`.

The variants are the keys of `demo_models.VARIANTS` (examples/demo_models/variants.py) and "bf16".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Nothing may reach for a hub. And threads that wait for each other on a busy machine take many times the work itself:
# a test machine's cores are better used by running tests side by side.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

Checkpoint = Callable[..., Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the real model, so that `-m "not model"` leaves it out."""
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)


def _require_writers() -> None:
    for package in ("compressed_tensors", "transformers"):
        pytest.importorskip(package, reason=f"checkpoints are written by {package}, which is not installed")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """`tiny_checkpoint("w4a16-asym", tied=False, family="qwen2", max_shard_size="60KB")` -> folder, shared, read-only.

    The options are those of `demo_models.tiny_model`. A test that changes files copies the folder first.
    """
    root = tmp_path_factory.mktemp("tiny")

    def make(variant: str, **options: object) -> Path:
        _require_writers()
        from demo_models import tiny_model

        label = "-".join([variant, *(f"{key}_{value}" for key, value in sorted(options.items()))])
        return tiny_model(variant, root / label, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    """`smollm2("w4a16-asym")`: SmolLM2-135M-Instruct, kept between runs under .cache/models; shared and read-only."""

    def make(variant: str) -> Path:
        _require_writers()
        from demo_models import MissingSource, smollm2_variant

        try:
            return smollm2_variant(variant)
        except MissingSource as error:
            pytest.skip(f"needs the SmolLM2 model: {error}")

    return make
