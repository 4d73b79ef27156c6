"""chat: greedy text, and the account of what it cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="models and tokenizers are those of transformers")

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines.generate import Answer, chat, encode, load_tokenizer  # noqa: E402
from quantdispatch.engines.tensors import resident_bytes  # noqa: E402

Make = Callable[..., Path]


def test_a_path_and_its_model_answer_alike(tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w4a16-asym")
    answer = chat(folder, "Hello", max_new_tokens=5)
    model = qd.load(folder)
    again = chat(model, "Hello", max_new_tokens=5)
    assert (answer.text, answer.prompt_tokens, answer.new_tokens) == (again.text, again.prompt_tokens, again.new_tokens)
    assert 1 <= answer.new_tokens <= 5 and answer.seconds > 0
    assert answer.weight_bytes == again.weight_bytes == resident_bytes(model)


def test_tokens_per_second_is_the_quotient() -> None:
    assert Answer("", 1, 10, 4.0, 0).tokens_per_second == 2.5
    assert Answer("", 1, 10, 0.0, 0).tokens_per_second == 0.0


def test_the_chat_template_is_used_where_there_is_one(tiny_checkpoint: Make) -> None:
    tokenizer = load_tokenizer(str(tiny_checkpoint("w4a16-asym")))
    bare = load_tokenizer(str(tiny_checkpoint("w4a16-asym")))
    bare.chat_template = None
    templated, plain = encode(tokenizer, "Hello"), encode(bare, "Hello")
    assert templated.ndim == plain.ndim == 2 and templated.shape[1] > plain.shape[1]


def test_no_tokenizer_is_a_config_error(tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint("w4a16-asym"), tmp_path / "copy"))
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(qd.ConfigError, match="no tokenizer"):
        chat(folder, "Hello")


def test_a_broken_chat_template_is_a_config_error(tiny_checkpoint: Make) -> None:
    tokenizer = load_tokenizer(str(tiny_checkpoint("w4a16-asym")))
    tokenizer.chat_template = "{% if"
    with pytest.raises(qd.ConfigError, match="chat template fails"):
        encode(tokenizer, "Hello")


@pytest.mark.parametrize("variant", ["w4a16-asym", "w4a16-sym", "w8a8-int8", "fp8-dynamic"])
def test_the_real_model_names_paris(variant: str, smollm2: Make) -> None:
    answer = chat(smollm2(variant), "What is the capital of France?", max_new_tokens=16)
    assert "Paris" in answer.text, answer


def test_resident_bytes_counts_every_storage_once() -> None:
    module = torch.nn.Module()
    module.first = torch.nn.Parameter(torch.zeros(10))
    module.tied = module.first
    module.register_buffer("view", module.first.detach()[2:5])
    module.register_buffer("other", torch.zeros(3, dtype=torch.int8))
    module.register_buffer("abstract", torch.empty(100, device="meta"))
    assert resident_bytes(module) == 43
