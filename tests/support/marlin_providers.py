"""Adapters on stand-in ops: every recorded release of vLLM's schema, and SGLang's functions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import marlin_ops

from quantdispatch.backends.marlin.providers.sglang import DENSE, MOE, SglangMarlin
from quantdispatch.backends.marlin.providers.vllm import VllmMarlin

SCHEMAS = tomllib.loads((Path(__file__).parents[1] / "data" / "marlin_schemas.toml").read_text())
RELEASES = [f"vllm {entry['since']}" for entry in SCHEMAS["dense"]]
PROVIDERS = [*RELEASES, "sglang"]


def namespace(entry: dict[str, Any], wide: bool) -> Any:
    return marlin_ops.namespace(entry["name"], entry["schema"], wide)


def made(provider: str) -> Any:
    """The adapter of one of ``PROVIDERS``, on stand-ins."""
    if provider == "sglang":
        return SglangMarlin(find)
    dense = SCHEMAS["dense"][RELEASES.index(provider)]
    moe = SCHEMAS["moe"][min(RELEASES.index(provider), 2)]
    return VllmMarlin(namespace(dense, dense["wide"]), namespace(moe, dense["wide"]))


def find(module: str) -> ModuleType | SimpleNamespace:
    """SGLang's modules, with functions that have its arguments."""
    recorded = next(entry for entry in (DENSE, MOE) if entry[0] == module)
    return SimpleNamespace(**{recorded[1]: function(recorded[2])})


def function(arguments: tuple[str, ...]) -> Any:
    """A Python function of these arguments that computes the true result."""
    names = [name.removesuffix("_or_none") for name in arguments]
    scope: dict[str, Any] = {"call": lambda values: marlin_ops.call(dict(zip(names, values, strict=True)), False)}
    text = ", ".join(arguments)
    exec(f"def made({text}):\n    return call(({text},))", scope)  # the arguments are the test's own data
    return scope["made"]
