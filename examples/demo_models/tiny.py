"""Random models small enough for a test: two layers, 256 byte tokens, a second or two to make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import made_once
from .quiet import quiet
from .variants import VARIANTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# N and K differ everywhere, and K = 192 is no multiple of 128: what only works for squares or powers of two shows.
_SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def tiny_model(
    name: str,
    folder: Path,
    *,
    family: str = "llama",
    tied: bool = True,
    max_shard_size: str = "5GB",
    seed: int = 0,
    **shape: int,
) -> Path:
    """Write a tiny checkpoint of `VARIANTS[name]` ("bf16": unquantized) to `folder` unless it is there already.

    `family` "qwen2" has biases on q, k and v, and random ones; `max_shard_size="60KB"` gives several shards and an
    index; `shape` overrides the sizes of the config.
    """

    def make(partial: Path) -> None:
        import torch

        from .rtn import quantize_and_save

        variant = VARIANTS.get(name)
        if variant is None and name != "bf16":
            raise KeyError(f"no variant {name!r}; there are bf16, {', '.join(VARIANTS)}")
        sizes = {**_SHAPE, **(variant.tiny if variant else {}), **shape}
        own_head = not tied or (variant is not None and variant.quantizes_lm_head)
        model = _random_model(family, seed, {**sizes, "tie_word_embeddings": not own_head})
        if variant is None:
            with quiet():
                model.save_pretrained(partial, max_shard_size=max_shard_size)
        else:
            tokens = torch.arange(256).reshape(1, 256) if variant.needs_calibration else None
            quantize_and_save(model, variant, partial, tokens, max_shard_size=max_shard_size)
        byte_tokenizer().save_pretrained(partial)

    return made_once(folder, make)


def _random_model(family: str, seed: int, config: dict[str, Any]) -> PreTrainedModel:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel
        if family == "llama":
            model = LlamaForCausalLM(LlamaConfig(**config))
        elif family == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**config))
        else:
            raise KeyError(f"no tiny model of the family {family!r}; there are llama and qwen2")
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".bias"):  # zero at birth, which would hide a lost bias
                torch.nn.init.normal_(parameter, std=0.1)
            elif parameter.ndim == 2:  # wide enough for outputs that depend on the input
                torch.nn.init.normal_(parameter, std=0.08)
    return model.to(torch.bfloat16)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, byte 0 as end and padding, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = _byte_symbols()
    tokenizer = Tokenizer(models.BPE(vocab={symbols[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=symbols[0], pad_token=symbols[0])
    wrapped.chat_template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return wrapped


def _byte_symbols() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it prints, else one past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
