"""Greedy text from a packed model, with what it cost: the engine behind ``quantdispatch run``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..registry.errors import ConfigError
from .loading import load, local_folder
from .tensors import resident_bytes


@dataclass(frozen=True)
class Answer:
    """``seconds``: generation alone, prompt included. ``weight_bytes``: resident parameters and buffers."""

    text: str
    prompt_tokens: int
    new_tokens: int
    seconds: float
    weight_bytes: int

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds if self.seconds > 0 else 0.0


def chat(
    source: str | os.PathLike[str] | Any,
    prompt: str,
    *,
    max_new_tokens: int = 64,
    backend: str | None = None,
    allow: str | Iterable[str] = (),
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    tokenizer: Any = None,
) -> Answer:
    """Answer ``prompt`` greedily.

    ``source``: checkpoint folder, hub id, or a model that is loaded already (``device``, ``dtype``, ``backend`` and
    ``allow`` are then its own, and ``tokenizer`` is found by its ``name_or_path`` unless given). The tokenizer's chat
    template is used if it has one. Raises what :func:`load` raises, and ``ConfigError`` without a usable tokenizer.
    """
    if isinstance(source, (str, os.PathLike)):
        folder = local_folder(source)
        model = load(folder, device=device, dtype=dtype, backend=backend, allow=allow)
    else:
        model, folder = source, source.name_or_path
    tokenizer = tokenizer or load_tokenizer(folder)
    ids = encode(tokenizer, prompt).to(model.device)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            # sampling settings of the checkpoint would only warn that greedy search has no use for them
            temperature=None, top_p=None, top_k=None,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        )  # fmt: skip
    seconds = time.perf_counter() - start
    new = output[0, ids.shape[1] :]
    text = tokenizer.decode(new, skip_special_tokens=True).strip()
    return Answer(text, ids.shape[1], int(new.numel()), seconds, resident_bytes(model))


def load_tokenizer(folder: str) -> Any:
    """The checkpoint's tokenizer. Raises ``ConfigError`` when it has none that transformers can read."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{folder} has no tokenizer that transformers can read: {reason[:200]}", field="tokenizer",
            observed=reason[:200], required="its files, such as tokenizer.json and tokenizer_config.json",
            remedy="copy the tokenizer's files into the checkpoint folder", code="QD532",
        ) from error  # fmt: skip


def encode(tokenizer: Any, prompt: str) -> torch.Tensor:
    """Token ids [1, T] of a user's turn in the chat template, or of the bare prompt where there is none.

    Raises ``ConfigError`` where the template fails.
    """
    if getattr(tokenizer, "chat_template", None):
        turn = [{"role": "user", "content": prompt}]
        try:
            text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is a program of the checkpoint's own: it may fail in any way
            raise ConfigError(
                f"the checkpoint's chat template fails: {type(error).__name__}: {error}", field="chat_template",
                observed=f"{type(error).__name__}: {error}", required="a template of one user's turn",
                remedy="correct or remove chat_template.jinja", code="QD532",
            ) from error  # fmt: skip
        ids: torch.Tensor = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    return ids
