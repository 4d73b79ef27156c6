"""The hooks a plugin implements, through pluggy, under the project name ``quantdispatch``.

A plugin is a module (or object) named by an entry point of the group ``quantdispatch``. It may say for which version
of this interface it was made: ``QUANTDISPATCH_API = 1``; without it, version 1 is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pluggy

from .kernels import Backend, Kernel
from .rules.rule import Rule

PROJECT = "quantdispatch"
API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def quantdispatch_rules() -> Iterable[Rule]:  # type: ignore[empty-body]
    """Yield the plugin's rules. A rule beats a built-in one where both match by naming it in ``overrides``."""


@hookspec
def quantdispatch_kernels() -> Iterable[Kernel]:  # type: ignore[empty-body]
    """Yield the plugin's kernel records. Nothing heavy is imported here: targets are strings."""


@hookspec
def quantdispatch_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Yield the plugin's backends and ranks (built in: ``cpu`` 100; undeclared: 50; ``reference`` always last)."""


@hookspec
def quantdispatch_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Rewrite a foreign ``quantization_config`` (the block itself) into ours; ``None`` when it is not yours.

    A group's ``format`` may be one of the plugin's own, which its rules name; the scheme of such a rule says by
    ``stored`` which tensors there are, whatever they are called. Where a layer that the rewritten block quantizes is
    stored dense, it stays dense: foreign configs seldom list those. Raises ``ConfigError`` for a block that is the
    plugin's and has no meaning.
    """
