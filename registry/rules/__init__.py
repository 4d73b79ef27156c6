"""Rules: :class:`Rule` itself, and the built-in rules as data, one file a family."""

from __future__ import annotations

from collections.abc import Iterator

from .rule import Rule

__all__ = ["Rule", "builtin_rules"]


def builtin_rules() -> Iterator[Rule]:
    """The rules of this distribution."""
    from . import dense, float8, int_activations, int_weights, kv_cache, mx, nvfp4

    for module in (dense, int_weights, int_activations, float8, nvfp4, mx, kv_cache):
        yield from module.RULES
