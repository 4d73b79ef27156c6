"""Recorded decisions of vLLM and SGLang: all of those beside the clone (``../shared/engines``), else the sample here.

A row has a ``quantization_config`` and an ``outcome``: devices and settings (``"sm80|sm90 moe_runner=triton"``) to the
class that runs or the error. The sample in ``tests/data/engines`` has rows of every kind of outcome, without messages.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.config_models import ConfigGroup, QuantConfig
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.peers.case import Engine
from quantdispatch.registry.peers.compare import engines
from quantdispatch.registry.peers.facts import View, capability_of, sight_of

HERE = Path(__file__).parents[1] / "data" / "engines"
SHARED = Path(__file__).parents[3] / "shared" / "engines"
FOLDER = SHARED if SHARED.is_dir() else HERE
FILES = {"vllm": "vllm-0.32.0", "sglang": "sglang-0.5.23"}
KINDS = ("linear", "moe")
#: the settings as keys of outcomes spell them, to the facts that they are
SETTINGS = {"moe_runner": "runner", "fp4_gemm": "fp4_gemm"}


def engine(name: str) -> Engine:
    return next(e for e in engines() if e.name == name)


def read(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def rows(name: str, kind: str, folder: Path = FOLDER) -> Iterator[dict[str, Any]]:
    return read(folder / f"{FILES[name]}-{kind}.jsonl.gz")


def devices(key: str, defaults: Mapping[str, str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(device, architecture, settings) of each device in an outcome's key."""
    names, _, setting = key.partition(" ")
    settings = dict(defaults)
    if setting:
        label, _, value = setting.partition("=")
        settings[SETTINGS[label]] = value
    for name in names.split("|"):
        yield ("cpu", "x86_64", settings) if name == "cpu" else ("cuda", name, settings)


@cache
def _args(text: str) -> QuantArgs:
    return QuantArgs(**json.loads(text))


def _side(raw: Mapping[str, Any] | None) -> QuantArgs | None:
    return None if raw is None else _args(json.dumps(raw, sort_keys=True))


def view_of(raw: Mapping[str, Any], kind: str, target: str | None = None, name: str = "") -> View:
    """The one group of a recorded config as engines see it, whether or not we would read the config."""
    ((group_name, given),) = raw["config_groups"].items()
    group = ConfigGroup(
        name=group_name,
        targets=tuple(given["targets"]),
        weights=_side(given.get("weights")),
        inputs=_side(given.get("input_activations")),
        outputs=_side(given.get("output_activations")),
        format=given.get("format"),
    )
    config = QuantConfig(groups=(group,), format=raw.get("format") or "fakequant")
    facts = LayerFacts(kind, config.effective_format(group), group.weights, group.inputs, group.outputs)
    return View(facts, sight_of(config, group, target or given["targets"][0], name=name))


def capability(device: str, arch: str) -> Any:
    return capability_of(device, arch)
