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


def disturbed(model: Any, folder: str) -> Any:
    """As :func:`score`, with the embeddings off by about half a unit in the last place: how far rounding alone carries.

    A code that falls on the other side of a rounding boundary is a whole step off, and a dynamic input scale passes
    that on to every code of its token, so a model with quantized inputs differs from itself by much more than rounding.
    """
    import torch

    generator = torch.Generator().manual_seed(0)

    def noise(module: Any, args: Any, output: Any) -> Any:
        factor = 1 + torch.finfo(output.dtype).eps / 2 * torch.randn(output.shape, generator=generator)
        return (output.float() * factor).to(output.dtype)

    hook = model.get_input_embeddings().register_forward_hook(noise)
    try:
        return score(model, folder)
    finally:
        hook.remove()


def score(model: Any, folder: str) -> Any:
    """Logits [200, V] in float32 of the model for the fixed text."""
    import torch
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(models.TEXT, return_tensors="pt").input_ids[:, :TOKENS]
    assert ids.shape[1] == TOKENS, "the text has become too short for the tokenizer"
    with torch.inference_mode():
        return model(ids).logits[0].float()


def decompressed(folder: str) -> Any:
    """The unquantized model with every quantized layer's weight as compressed-tensors decompresses it."""
    import torch
    from transformers import AutoModelForCausalLM

    import quantdispatch
    from quantdispatch.engines.tensors import read_tensor
    from quantdispatch.engines.transform_loading import own_tensors
    from quantdispatch.engines.verify import decompress

    model = AutoModelForCausalLM.from_pretrained(models.folder("bf16"), dtype=torch.bfloat16).eval()
    for name, layer in quantdispatch.plan(folder).layers.items():
        if layer.weights is None:
            continue
        weight, problem = decompress(layer, {local: read_tensor(entry) for local, entry in own_tensors(layer).items()})
        if weight is None:
            raise RuntimeError(f"{name}: {problem}")
        model.get_submodule(name).weight.data = weight
    return model


def measure() -> list[dict[str, Any]]:
    """A row a variant: the default kernels against the reference backend, and against decompressed weights.

    ``reference_disturbed`` is the yardstick: the reference backend against itself (:func:`disturbed`).
    """
    import quantdispatch

    rows = []
    for name in (*models.WEIGHT_ONLY, *models.WITH_INPUTS):
        folder = str(models.folder(name))
        ours = score(quantdispatch.load(folder), folder)
        reference = quantdispatch.load(folder, backend="reference")
        truth = score(reference, folder)
        row = {
            "variant": name,
            "error": relative_error(ours, truth),
            "reference_disturbed": relative_error(disturbed(reference, folder), truth),
            "same_token": same_choice(ours, truth),
        }
        if name in models.WEIGHT_ONLY:
            dense = score(decompressed(folder), folder)
            row["decompressed_error"] = relative_error(ours, dense)
            row["decompressed_same_token"] = same_choice(ours, dense)
        rows.append(row)
        gc.collect()
    return rows
