"""Engines fuse projections of one input into one module, and name it by themselves: which members it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: fused modules that engines build in models which do not say so themselves
USUAL: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def member_names(name: str, fusions: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Names in the checkpoint of what the run-time module ``name`` is made of; ``(name,)`` for a module of its own.

    ``fusions``: last part of a fused module's name to those of its members, as models declare it. Only the last part
    is exchanged, and only as a whole: ``mlp.gate_up_proj_norm`` is no ``gate_up_proj``.
    """
    parent, dot, last = name.rpartition(".")
    members = fusions.get(last)
    return (name,) if not members else tuple(f"{parent}{dot}{member}" for member in members)
