"""verify: right layers pass, a wrong kernel and a wrong weight are found and come first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("compressed_tensors", reason="its decompression is what layers are compared with")

from quantdispatch.engines import verify as module  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

Make = Callable[..., Path]
#: the rounding of the output to bfloat16 is most of it, activation codes that fall the other way are the rest
TOLERANCE = 6e-3


@pytest.mark.parametrize(
    "variant",
    [
        *("w4a16-asym", "w4a16-lm_head", "w3a16-asym", "w8a16-int"),
        *("w8a8-int8", "w8a8-int8-asym-inputs", "w8a8-int8-static-asym", "w4a8"),
        *("fp8-dynamic", "fp8-static", "fp8-block-g128"),
    ],
)
@pytest.mark.parametrize("backend", [None, "reference"])
def test_every_layer_agrees(variant: str, backend: str | None, tiny_checkpoint: Make) -> None:
    rows = verify(tiny_checkpoint(variant), backend=backend)
    assert len(rows) == (15 if "lm_head" in variant else 14)
    for row in rows:
        assert row.weights_equal, row
        assert row.error < TOLERANCE, row
    assert [row.error for row in rows] == sorted((row.error for row in rows), reverse=True)
    assert backend is None or {row.kernel for row in rows} == {"reference"}


def test_what_compressed_tensors_no_longer_reads_is_said(tiny_checkpoint: Make) -> None:
    for row in verify(tiny_checkpoint("w4a16-asym-g_idx")):
        assert row.error < TOLERANCE
        assert row.weights_equal is not False and (row.weights_equal or row.note)


def spoil(name: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    whole = getattr(QuantLinear, target)

    def spoiled(self: QuantLinear, *args: Any) -> Any:
        result = whole(self, *args)
        return change(result) if self.layer_name == name else result

    monkeypatch.setattr(QuantLinear, target, spoiled)


def test_a_wrong_kernel_is_found(tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "model.layers.1.mlp.gate_proj"
    spoil(wrong, lambda y: y * 1.05, monkeypatch, "forward")
    rows = verify(tiny_checkpoint("w8a8-int8"))
    assert rows[0].name == wrong and rows[0].error == pytest.approx(0.05, rel=0.1)
    assert rows[0].weights_equal and rows[1].error < TOLERANCE


def test_a_wrong_weight_is_found_even_where_outputs_agree(
    tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "model.layers.0.self_attn.o_proj"

    def nudge(weight: torch.Tensor) -> torch.Tensor:
        weight[0, 0] += 1e-3
        return weight

    spoil(wrong, nudge, monkeypatch, "dense_weight")
    rows = verify(tiny_checkpoint("w4a16-asym"))
    assert rows[0].name == wrong and rows[0].weights_equal is False


def test_an_output_that_is_no_number_sorts_first(tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "model.layers.0.self_attn.k_proj"
    spoil(wrong, lambda y: y * float("nan"), monkeypatch, "forward")
    rows = verify(tiny_checkpoint("w4a16-sym"))
    assert rows[0].name == wrong and rows[0].error == float("inf")


def test_without_compressed_tensors_the_weight_is_not_compared(
    tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "decompress", lambda layer, stored: (None, "compressed-tensors is not installed"))
    rows = verify(tiny_checkpoint("w4a16-asym"))
    assert all(row.weights_equal is None and "not installed" in row.note for row in rows)
