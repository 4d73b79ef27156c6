"""SmolLM2 in transformers, as it is and compiled: batch 1 decoding, and reading a prompt, over bf16 in the same run.

Compiled: ``torch.compile`` of the whole model around a static cache, which is what engines do; a minute for each of two
models. CPU time of one thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from . import models
from .timing import interleaved, ratio

BASE = "bf16"
CHECKPOINTS = (BASE, "w4a16-sym", "w4a16-asym", "w8a8-int8", "fp8-dynamic")
COMPILED = (BASE, "w4a16-asym")
#: tokens in a turn, after so many others, in a cache of so many places
TURN, CONTEXT, PLACES = 16, 32, 64
PROMPT = 512

Calls = dict[str, Callable[[], object]]


def measure(rounds: int = 9) -> list[dict[str, Any]]:
    """A row a task and checkpoint: tokens a second, and how many times those of bf16."""
    import torch

    torch.set_num_threads(1)
    loaded = {name: _load(name) for name in CHECKPOINTS}
    ids = torch.arange(1, PROMPT + 1).view(1, -1)
    with torch.inference_mode():
        decode: Calls = {name: _decoder(loaded[name], loaded[name]) for name in CHECKPOINTS}
        prompt: Calls = {name: _reader(loaded[name], ids) for name in CHECKPOINTS}
        compiled: Calls = {name: _decoder(loaded[name], torch.compile(loaded[name])) for name in COMPILED}
        return [
            *_rows("decode", TURN, interleaved(decode, rounds)),
            *_rows(f"prompt of {PROMPT}", PROMPT, interleaved(prompt, rounds)),
            *_rows("decode, compiled", TURN, interleaved(compiled, rounds)),
        ]


def _rows(task: str, tokens: int, seconds: dict[str, list[float]]) -> Iterable[dict[str, Any]]:
    for name, taken in seconds.items():
        yield {
            "task": task,
            "checkpoint": name,
            "tokens_per_second": tokens / statistics.median(taken),
            "over_bf16": ratio(seconds[BASE], taken),
        }


def _load(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    import quantdispatch

    folder = str(models.folder(name))
    if name == BASE:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    return quantdispatch.load(folder)


def _decoder(model: Any, call: Any) -> Callable[[], None]:
    """:data:`TURN` greedy tokens after :data:`CONTEXT` others, the same in each call of the result."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=PLACES)
    model(torch.arange(1, CONTEXT + 1).view(1, -1), past_key_values=cache, use_cache=True)

    def turn() -> None:
        last = torch.tensor([[7]])
        for place in range(CONTEXT, CONTEXT + TURN):
            output = call(last, past_key_values=cache, use_cache=True, position_ids=torch.tensor([[place]]))
            last = output.logits[:, -1:].argmax(-1)
        cache.crop(-TURN)

    return turn


def _reader(model: Any, ids: Any) -> Callable[[], object]:
    return lambda: model(ids, use_cache=False, logits_to_keep=1)
