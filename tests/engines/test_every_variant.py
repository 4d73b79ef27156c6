"""Every kind of checkpoint that the writer writes: loaded, run, compared with its own decompression, saved again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="loading a model needs the package transformers")

import torch  # noqa: E402
from demo_models import VARIANTS  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

#: relative norm of the difference: bf16 rounds the result (1.7e-3), the int4 op its scales and zeros too
TOLERANCE = {torch.bfloat16: 6e-3, torch.float32: 6e-3}


@pytest.mark.parametrize("name", VARIANTS)
def test_kernels_agree_with_the_decompressed_weights(tiny_checkpoint: Callable[..., Path], name: str) -> None:
    for dtype, limit in TOLERANCE.items():
        rows = verify(tiny_checkpoint(name), dtype=dtype)
        assert rows
        for row in rows:
            assert row.weights_equal is not False, row
            assert row.exact and row.error < limit, row


@pytest.mark.parametrize("name", VARIANTS)
def test_the_default_backend_agrees_with_the_reference(tiny_checkpoint: Callable[..., Path], name: str) -> None:
    folder = str(tiny_checkpoint(name))
    ids = torch.arange(40).view(2, 20) % 250
    with torch.inference_mode():
        ours = qd.load(folder, dtype=torch.float32)(ids).logits
        truth = qd.load(folder, dtype=torch.float32, backend="reference")(ids).logits
    # two layers deep a rounding of inputs that falls the other way shows, but no more than that
    assert float((ours - truth).norm() / truth.norm()) < (1e-4 if not VARIANTS[name].groups[0].inputs else 3e-2)
    assert truth.isfinite().all() and float(truth.std()) > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_saved_is_what_was_loaded(tiny_checkpoint: Callable[..., Path], tmp_path: Path, name: str) -> None:
    folder = tiny_checkpoint(name)
    model = qd.load(str(folder))
    model.save_pretrained(tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    rewritten = {key for key in before if not torch.equal(_bits(before[key]), _bits(after[key]))}
    # words of the padded layout come back dense
    padded = VARIANTS[name].rewrite == "padded"
    assert all(padded and key.endswith(("weight_packed", "weight_zero_point")) for key in rewritten), rewritten
    again = qd.load(str(tmp_path))
    ids = torch.arange(12).view(1, 12)
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, again(ids).logits)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
