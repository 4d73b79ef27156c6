"""Sentence embeddings by a quantized BERT: no causal model, no head, inputs with padding."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="loading a model needs the package transformers")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from demo_models import MissingSource  # noqa: E402
from demo_models.minilm import MINILM_PRESETS, embed, minilm_path, minilm_preset  # noqa: E402
from expected_logits import fake_quantized  # noqa: E402

import quantdispatch as qd  # noqa: E402
from benchmarks import minilm  # noqa: E402
from quantdispatch.cli.verify import passes  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.transformers import enable  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

AGAIN = "run: python -m benchmarks minilm"
#: least mean cosine and rank correlation with fp32: what rounding to nearest leaves
LEAST = {"W8A8": (0.995, 0.98), "W4A16": (0.94, 0.92), "W4A16_ASYM-g32": (0.97, 0.95)}
#: of 6 layers and the pooler
LAYERS = 37


@cache
def _source() -> Path:
    try:
        return minilm_path()
    except MissingSource as error:
        pytest.skip(f"needs the embedding model: {error}")


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_source())


@cache
def _truth() -> torch.Tensor:
    from transformers import BertModel

    vectors: torch.Tensor = minilm.vectors(BertModel.from_pretrained(_source()).eval(), _tokenizer(), embed)
    return vectors


def _cosines(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return (found * truth).sum(-1)


@pytest.mark.model
@pytest.mark.parametrize("name", LEAST)
def test_vectors_and_order_are_those_of_fp32(name: str) -> None:
    truth = _truth()
    model = qd.load(minilm_preset(name))
    assert type(model).__name__ == "BertModel"
    assert sum(isinstance(module, QuantLinear) for module in model.modules()) == LAYERS
    found = minilm.vectors(model, _tokenizer(), embed)
    cosine, order = LEAST[name]
    assert float(_cosines(found, truth).mean()) > cosine
    ours, best = (x[: len(minilm.QUERIES)] @ x[len(minilm.QUERIES) :].T for x in (found, truth))
    assert float(minilm.rank_correlation(ours, best).mean()) > order
    assert int((ours.argmax(-1) == best.argmax(-1)).sum()) >= len(minilm.QUERIES) - 1


@pytest.mark.model
@pytest.mark.parametrize("name", LEAST)
def test_vectors_are_those_of_the_decompressed_model(name: str) -> None:
    _source()
    folder = minilm_preset(name)
    found = minilm.vectors(qd.load(folder, dtype=torch.float32), _tokenizer(), embed)
    if MINILM_PRESETS[name].variant().groups[0].inputs is None:
        dense = minilm.vectors(minilm.decompressed(str(folder)), _tokenizer(), embed)
        assert float(_cosines(found, dense).min()) > 0.99999
    rows = verify(folder)
    assert len(rows) == LAYERS and all(passes(row, 1e-2) for row in rows), rows[0]


@pytest.mark.model
def test_inputs_are_rounded_by_the_formula() -> None:
    """A scale a token, absmax / 127, over the decompressed weights."""
    _source()
    folder = minilm_preset("W8A8")
    args = MINILM_PRESETS["W8A8"].scheme()["input_activations"]
    dense = minilm.decompressed(str(folder))
    for module in dense.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, given: fake_quantized(given[0], args, {}, "input"))
    expected = minilm.vectors(dense, _tokenizer(), embed)
    ours = minilm.vectors(qd.load(folder, dtype=torch.float32), _tokenizer(), embed)
    # in fp64 the expected ones are as far from themselves: a sum in another order moves a code to the next step
    assert float(_cosines(ours, expected).mean()) > 0.999
    assert float(_cosines(ours, _truth()).mean()) < 0.9985


@pytest.mark.model
def test_auto_model_loads_the_same() -> None:
    from transformers import AutoModel

    _source()
    folder = minilm_preset("W4A16_ASYM-g32")
    with enable():
        model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
    assert sum(isinstance(module, QuantLinear) for module in model.modules()) == LAYERS
    ours = minilm.vectors(qd.load(folder), _tokenizer(), embed)
    assert torch.equal(minilm.vectors(model, _tokenizer(), embed), ours)


# -- the page


def _rows() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(minilm.RESULTS.read_text(encoding="utf-8"))
    return results


def test_the_page_shows_the_results() -> None:
    assert minilm.PAGE.read_text(encoding="utf-8") == minilm.render(_rows()), f"{AGAIN} --page"


def test_every_preset_is_on_the_page() -> None:
    rows = _rows()["rows"][1:]
    assert [row["preset"] for row in rows[::2]] == [row["preset"] for row in rows[1::2]] == list(MINILM_PRESETS), AGAIN
    assert {row["dtype"] for row in rows[::2]} == {"float32"} and {row["dtype"] for row in rows[1::2]} == {"bfloat16"}


@pytest.mark.parametrize("row", _rows()["rows"][1:], ids=lambda row: f"{row['preset']}-{row['dtype']}")
def test_row(row: dict[str, Any]) -> None:
    queries = len(minilm.QUERIES)
    assert row["least_cosine"] > 0.92 and row["mean_order"] > 0.93 and row["least_order"] > 0.85
    assert row["same_top"] >= queries - 1 and row["right_top"] >= queries - 2
    assert abs(row["mean_cosine"] - row["decompressed"]) < (0.005 if row["preset"] == "W8A8" else 5e-4)


def test_rank_correlation() -> None:
    scores = torch.tensor([[0.1, 0.5, 0.9, 0.2], [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 4.0, 3.0]])
    truth = torch.tensor([[1.0, 3.0, 4.0, 2.0], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    assert minilm.rank_correlation(scores, truth).tolist() == pytest.approx([1.0, -1.0, 0.8])
