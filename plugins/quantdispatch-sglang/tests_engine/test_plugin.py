"""In processes of their own: SGLang's loader and the entry point, and an SGLang that is to be left alone."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quantdispatch_sglang
from engine_signatures import record
from quantdispatch_sglang import guard

STUBS = Path(__file__).parent / "stubs"
ASK = """
import logging
logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.layers import quantization as q
print("class", q.get_quantization_config("compressed-tensors").__module__)
"""


def ask(**environment: str) -> tuple[str, list[str]]:
    """Where the config's class is from, and what was warned of."""
    paths = {"PYTHONPATH": str(STUBS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK], capture_output=True, text=True,
        env={**os.environ, **paths, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    where = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("class "))
    return where, [line for line in done.stderr.splitlines() if "quantdispatch" in line]


def test_installing_is_all() -> None:
    where, warned = ask()
    assert where == "quantdispatch_sglang.config" and not warned


def test_left_off() -> None:
    where, warned = ask(QUANTDISPATCH_SGLANG="0")
    assert where.startswith("sglang.") and not warned


@pytest.mark.parametrize("loader", ["DefaultModelLoader", "LayeredModelLoader"])
def test_loading_a_model_is_where_it_speaks(loader: str) -> None:
    from sglang.srt.model_loader import loader as loaders

    assert hasattr(getattr(loaders, loader).load_model, "__wrapped__"), "SGLang's own registry of hooks has wrapped it"


def test_one_line_in_the_log_on_the_first_rank(ranks: Any, caplog: pytest.LogCaptureFixture) -> None:
    from layers import config, finish, load, sglang_config, stored, weights
    from quantdispatch_sglang.config import _say
    from sglang.srt.layers.linear import ReplicatedLinear

    block = config((["Linear"], weights(), None, "pack-quantized"))
    made = sglang_config({**block, "hf_config": SimpleNamespace(_name_or_path="/models/m")})
    with ranks():
        for name in ("m.q_proj", "m.k_proj"):
            module = ReplicatedLinear(256, 128, bias=False, quant_config=made, prefix=name)
            load(module, stored(block, name, 128, 256).tensors)
            finish(module)
    with caplog.at_level(logging.INFO, guard.GUARD.log):
        for rank in (1, 0, 0):
            with ranks(2, rank):
                assert _say(module) is None, "what was loaded stays"
    ((_, kernel),) = set(made.report.kernels.values())
    said = [record for record in caplog.records if "/models/m" in record.message]
    assert [record.message for record in said] == [
        f"quantdispatch: 2 layers wNa16_int on {kernel}; why: quantdispatch explain /models/m"
    ]
    assert said[0].name.startswith("sglang."), "SGLang shows its own loggers"


def test_it_is_the_sglang_whose_signatures_were_recorded() -> None:
    """``tests`` change them one by one."""
    recorded = json.loads((Path(__file__).parents[1] / "tests" / "sglang-0.5.23.json").read_text())
    assert record(guard.NEEDED) == recorded


def _remove(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.quantization import marlin_utils

    monkeypatch.delattr(marlin_utils, "marlin_zero_points")


def _change(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.quantization import marlin_utils

    monkeypatch.setattr(marlin_utils, "marlin_zero_points", lambda zp: zp)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda patch: patch.setattr(guard, "version", lambda _: "0.5.9"), "0.5.9 is too old; 0.5.23 is needed"),
        (lambda patch: patch.setattr(guard, "version", lambda _: "0.6.0"), "0.6.0 is newer than this adapter"),
        (_remove, "has no marlin_zero_points"),
        (_change, "takes no size_k, size_n, num_bits"),
    ],
    ids=["too old", "too new", "a part is missing", "a part has changed"],
)
def test_an_sglang_that_it_does_not_fit_is_left_as_it_is(
    change: Callable[[pytest.MonkeyPatch], None],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from sglang.srt.layers import quantization
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    monkeypatch.delenv("QUANTDISPATCH_SGLANG_WARNED", raising=False)
    for methods in (quantization.QUANTIZATION_METHODS, quantization.BASE_QUANTIZATION_METHODS):
        monkeypatch.setitem(methods, "compressed-tensors", CompressedTensorsConfig)
    change(monkeypatch)
    quantdispatch_sglang.register()
    assert quantization.get_quantization_config("compressed-tensors") is CompressedTensorsConfig
    assert [record.levelname for record in caplog.records] == ["WARNING"] and says in caplog.text
    monkeypatch.delenv("QUANTDISPATCH_SGLANG_WARNED")
