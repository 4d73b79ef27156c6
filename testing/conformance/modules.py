"""The module that a checkpoint's layer becomes, with a given kernel."""

from __future__ import annotations

from typing import Any

from ...engines.embedding import QuantEmbedding
from ...engines.modules import QuantLinear
from ...registry.kernels import Kernel
from .trial import Trial


def module_of(trial: Trial, kernel: Kernel) -> Any:
    """An empty ``QuantLinear``, or ``QuantEmbedding``, of the trial's layer."""
    made = QuantEmbedding if trial.spec_op == "embedding" else QuantLinear
    assert trial.shape is not None
    return made("layer", trial.scheme, trial.shape, trial.spec, kernel)
