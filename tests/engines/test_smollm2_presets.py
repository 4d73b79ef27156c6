"""SmolLM2 in every preset of compressed-tensors: what the page of all of them says, and a few presets run anew.

``python -m benchmarks presets`` measures the whole model in each and writes docs/smollm2-presets.md. Here the first two
of its layers stand for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="loading a model needs the package transformers")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from demo_models.presets import PRESETS, write_preset  # noqa: E402

import quantdispatch as qd  # noqa: E402
from benchmarks.preset_page import PAGE, RESULTS, answers_as_it_should, render, says_paris  # noqa: E402
from benchmarks.presets import TOLERANCE, differing  # noqa: E402
from quantdispatch.cli.verify import passes  # noqa: E402
from quantdispatch.engines.tensors import resident_bytes  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

AGAIN = "run: python -m benchmarks presets"
#: quantized layers of the whole model, and of a layer of it
ALL, EACH = 210, 7
LAYERS = 2
#: schemes that no other test of a real model has, and of integers one of each way of packing and rounding
FAST = (
    "FP8_BLOCK", "NVFP4", "MXFP4XFP8", "MXFP6A8", "W2A16-g64", "W3A16-g64-asym", "W5A8-g64-asym", "W4AFP8-g64",
)  # fmt: skip
IDS = torch.arange(1, 4000, 333).reshape(1, -1)


@cache
def _results() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


# -- the page


def test_the_page_shows_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(_results()), f"{AGAIN} --page"


def test_every_preset_is_on_the_page() -> None:
    assert list(_results()["presets"]) == list(PRESETS), AGAIN


def test_every_preset_of_compressed_tensors_is_among_ours() -> None:
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    # nothing is quantized in the last, and its checkpoint says so by having no config
    assert {preset.preset for preset in PRESETS.values()} >= PRESET_SCHEMES.keys() - {"UNQUANTIZED"}


def test_integers_of_all_widths_with_and_without_zero_points() -> None:
    for inputs in (8, 16):
        for bits in range(2, 9):
            found = [p for p in PRESETS.values() if p.preset.removesuffix("_ASYM") == f"W{bits}A{inputs}"]
            zero_points = {p.asymmetric or p.preset.endswith("_ASYM") for p in found if p.group_size == 64}
            assert zero_points == {False, True}, (bits, inputs)


@pytest.mark.parametrize("name", PRESETS)
def test_row(name: str) -> None:
    row = _results()["presets"][name]
    assert row["verified"] and 0 < row["worst_error"] <= TOLERANCE
    assert row["weights_equal"] == ALL == sum(row["schemes"].values()) == sum(row["kernels"].values())
    assert row["answer"] and answers_as_it_should(row), (row["answer"], row["decompressed"])
    assert 0.3 < row["resident_bytes"] / _results()["bf16"]["resident_bytes"] < 0.7
    assert row["tokens_per_second"] > 0 and row["over_bf16"] > 0


@pytest.mark.parametrize("name", PRESETS)
def test_llmcompressor_writes_the_same_weights(name: str) -> None:
    found = _results()["presets"][name]["llmcompressor"]
    if "fails" in found:
        assert "must either be a preset" in found["fails"] and name.startswith(("MXFP4XFP8", "MXFP6")), found
        return
    # it calibrates layer by layer, on what layers that are quantized already give
    assert found["differing"].keys() <= {"input_scale", "input_global_scale"}
    assert bool(found["differing"]) == (name in ("FP8", "NVFP4"))


def test_enough_of_them_know_the_capital() -> None:
    right = {name for name, row in _results()["presets"].items() if says_paris(row["answer"])}
    assert {"W8A8", "INT8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4", "NVFP4A16", "W4A16_ASYM-g64"} <= right
    assert len(right) > len(PRESETS) / 2 and says_paris(_results()["bf16"]["answer"])


@pytest.mark.parametrize(
    ("ours", "theirs", "right"),
    [
        ("Paris it is", "Paris", True),
        ("Paris it is", "a city", True),
        ("a city", "a city", True),
        ("a city", "Paris", False),
    ],
)
def test_what_only_the_decompressed_model_finds_is_wrong(ours: str, theirs: str, right: bool) -> None:
    assert answers_as_it_should({"answer": ours, "decompressed": theirs}) is right


# -- a few of them again


@pytest.fixture
def folder(smollm2: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    base = smollm2("bf16")
    target = tmp_path / request.param
    write_preset(PRESETS[request.param], target, base.parent, layers=LAYERS)
    yield target
    shutil.rmtree(target)  # 60 MB


def _names() -> list[Any]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in PRESETS]


@torch.no_grad()
@pytest.mark.parametrize("folder", _names(), indirect=True)
def test_two_layers_load_verify_and_run(folder: Path) -> None:
    rows = verify(folder)
    assert len(rows) == EACH * LAYERS and all(passes(row, TOLERANCE) and row.weights_equal for row in rows), rows[0]
    model = qd.load(folder)
    assert resident_bytes(model) < 1.15 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    logits = model(IDS).logits.double()
    truth = qd.load(folder, backend="reference")(IDS).logits.double()
    # a rounding of the inputs that falls the other way is a whole step
    limit = 0.02 if not PRESETS[folder.name].variant().groups[0].inputs else 0.15
    assert float((logits - truth).norm() / truth.norm()) < limit
    answer = model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=2, do_sample=False)
    assert answer.shape[1] > IDS.shape[1]


def test_differing_tells_bytes_dtypes_and_names(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    ours, theirs = tmp_path / "a", tmp_path / "b"
    tensors = {f"{layer}.{part}": torch.ones(2) for layer in "xyz" for part in ("weight", "weight_scale", "bias")}
    changed = tensors | {"x.weight": torch.zeros(2), "y.weight_scale": torch.ones(2).bfloat16()}
    del changed["z.weight"]
    for folder, content in ((ours, tensors), (theirs, changed)):
        folder.mkdir()
        save_file(content, folder / "model.safetensors")
    assert differing(ours, theirs) == {"weight": [2, 3], "weight_scale": [1, 3]}
    assert differing(ours, ours) == {}
