"""Tokens a second when decoding with batch 1, against transformers on the same machine in the same run."""

from __future__ import annotations

from typing import Any

from . import models
from .timing import interleaved

PROMPT = "What is the capital of France?"
NEW_TOKENS = 16


def measure(rounds: int = 5) -> list[dict[str, Any]]:
    """A row a model: tokens a second of CPU time (one thread), and the ratio to what it is compared with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import quantdispatch

    torch.set_num_threads(1)
    base = str(models.folder("bf16"))
    loaded: dict[str, Any] = {
        f"transformers {name}": AutoModelForCausalLM.from_pretrained(models.folder(name), dtype=torch.bfloat16).eval()
        for name in ("bf16", "w8a8-int8")
    }
    for name in (*models.WEIGHT_ONLY, *models.WITH_INPUTS):
        loaded[f"quantdispatch {name}"] = quantdispatch.load(str(models.folder(name)))
    tokenizer = AutoTokenizer.from_pretrained(base)
    chat = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    def decode(model: Any) -> Any:
        return lambda: model.generate(
            **ids, do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, pad_token_id=0
        )

    seconds = interleaved({name: decode(model) for name, model in loaded.items()}, rounds)
    prefill = interleaved({name: _prefill(model, ids) for name, model in loaded.items()}, rounds)
    speed = {name: (NEW_TOKENS - 1) / (seconds[name] - prefill[name]) for name in loaded}
    peers = {"quantdispatch w8a8-int8": "transformers w8a8-int8"}
    return [
        {
            "model": name,
            "tokens_per_second": speed[name],
            "compared_with": peers.get(name, "transformers bf16"),
            "ratio": speed[name] / speed[peers.get(name, "transformers bf16")],
        }
        for name in loaded
    ]


def _prefill(model: Any, ids: Any) -> Any:
    return lambda: model.generate(**ids, do_sample=False, max_new_tokens=1, pad_token_id=0)
