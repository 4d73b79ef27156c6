"""Do the kernels compute what the schemes say? Teacher-forced logits over a fixed text of 200 tokens."""

from __future__ import annotations

import gc
from typing import Any

from . import models

TOKENS = 200


def relative_error(logits: Any, truth: Any) -> float:
    """Root mean square of the difference over that of the truth, both [T, V], in float64."""
    logits, truth = logits.double(), truth.double()
    return float(((logits - truth).square().mean() / truth.square().mean()).sqrt())


def same_choice(logits: Any, truth: Any) -> float:
    """Share of positions with the same most likely next token."""
    return float((logits.argmax(-1) == truth.argmax(-1)).double().mean())


def score(model: Any, folder: str) -> Any:
    """Logits [200, V] in float32 of the model for the fixed text."""
    import torch
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(models.TEXT, return_tensors="pt").input_ids[:, :TOKENS]
    assert ids.shape[1] == TOKENS, "the text has become too short for the tokenizer"
    with torch.inference_mode():
        return model(ids).logits[0].float()


def decompressed(folder: str) -> Any:
    """The model as plain transformers with compressed-tensors runs it: dense weights, inputs fake-quantized."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def measure() -> list[dict[str, Any]]:
    """A row a variant: the default kernels against the reference backend, and against decompressed weights."""
    import quantdispatch

    rows = []
    for name in (*models.WEIGHT_ONLY, *models.WITH_INPUTS):
        folder = str(models.folder(name))
        ours = score(quantdispatch.load(folder), folder)
        truth = score(quantdispatch.load(folder, backend="reference"), folder)
        row = {
            "variant": name,
            "reference_error": relative_error(ours, truth),
            "reference_same_token": same_choice(ours, truth),
        }
        if name in models.WEIGHT_ONLY:
            dense = score(decompressed(folder), folder)
            row["decompressed_error"] = relative_error(ours, dense)
            row["decompressed_same_token"] = same_choice(ours, dense)
        rows.append(row)
        gc.collect()
    return rows
