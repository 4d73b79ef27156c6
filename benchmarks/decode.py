"""Tokens a second when decoding with batch 1, against transformers on the same machine in the same run."""

from __future__ import annotations

import statistics
from typing import Any

from . import models
from .timing import interleaved, ratio

PROMPT = "What is the capital of France?"
NEW_TOKENS = 16


def measure(rounds: int = 9) -> list[dict[str, Any]]:
    """A row a model: tokens a second of CPU time (one thread), and how many times those of two peers."""
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

    calls = {}
    for name, model in loaded.items():
        calls[name, NEW_TOKENS] = _generate(model, ids, NEW_TOKENS)
        calls[name, 1] = _generate(model, ids, 1)
    seconds = interleaved(calls, rounds)
    # reading the prompt is the same in both, so the difference is what the further tokens take
    token = {
        name: [(a - b) / (NEW_TOKENS - 1) for a, b in zip(seconds[name, NEW_TOKENS], seconds[name, 1], strict=True)]
        for name in loaded
    }
    return [_row(name, token) for name in loaded]


def _generate(model: Any, ids: Any, tokens: int) -> Any:
    return lambda: model.generate(**ids, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)


def _row(name: str, token: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "tokens_per_second": 1 / statistics.median(token[name])}
    for peer in ("transformers bf16", "transformers w8a8-int8"):
        row[f"over {peer}"] = ratio(token[peer], token[name])
    return row
