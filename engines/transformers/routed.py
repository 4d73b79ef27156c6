"""Routed experts of transformers models: one stacked parameter for all experts in the model, one tensor each in files.

transformers 5 stacks the experts of a layer on load. Packed weights are not stacked: the module that holds the
parameters is replaced by one that holds every projection by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...registry.errors import CheckpointError
from ...registry.plan import Resolution
from ..experts import Expert, QuantExperts
from .gates import known_activation

_NUMBERED = re.compile(r"(?:^|\.)(\d+)\.([^.]+)$")
_STACKED = ("gate_up_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Place:
    """Where a checkpoint module ended up: in ``parameter`` of the module ``experts``, as expert ``number``, the
    ``part``-th of the projections that stand side by side there. ``projection``: its own last name."""

    experts: str
    parameter: str
    number: int
    part: int
    projection: str


def find_place(name: str, key: str, pattern: str, converters: list[Any]) -> Place:
    """``key``: what transformers calls the parameter that module ``name`` was merged into, by a converter that has the
    source ``pattern``. Raises ``CheckpointError`` for a merge that is no stacking of experts."""
    converter = next(c for c in converters if pattern in c.source_patterns)
    operations = [type(operation).__name__ for operation in converter.operations]
    experts, _, parameter = key.rpartition(".")
    match = _NUMBERED.search(name)
    if match is None or parameter not in _STACKED or operations[:1] != ["MergeModulelist"]:
        raise CheckpointError(
            f"transformers merges this module with others into {key}, which packed weights cannot be", layer=name,
            field=key, observed=", ".join(operations), required="MergeModulelist of numbered experts",
            remedy="no scheme serves merged modules other than routed experts", code="QD673",
        )  # fmt: skip
    if operations[1:] not in ([], ["Concatenate"]) or (operations[1:] and converter.operations[1].dim != 1):
        raise CheckpointError(
            f"transformers turns the experts on load ({', '.join(operations)}), which packed weights cannot be",
            layer=name,
            field=key,
            observed=", ".join(operations),
            required="MergeModulelist, and Concatenate along their rows",
            code="QD673",
        )
    return Place(experts, parameter, int(match[1]), converter.source_patterns.index(pattern), match[2])


@dataclass
class RoutedExperts:
    """The layers of the checkpoint that one experts module of the model is made of."""

    module: str
    members: dict[tuple[int, str, int], tuple[Place, Resolution]] = field(default_factory=dict)

    def add(self, place: Place, layer: Resolution) -> None:
        self.members[place.number, place.parameter, place.part] = (place, layer)

    def runtime(self, place: Place) -> str:
        """The name in the model of one projection by itself."""
        return f"{self.module}.{place.number}.{place.projection}"

    def linear(self, original: nn.Module, place: Place, dtype: torch.dtype) -> nn.Linear:
        """A linear layer without data, of the shape that one projection has in the model."""
        _, rows, columns = getattr(original, place.parameter).shape
        parts = len({part for _, parameter, part in self.members if parameter == place.parameter})
        return nn.Linear(columns, rows // parts, bias=False, device="meta", dtype=dtype)

    @property
    def all_dense(self) -> bool:
        """transformers loads these by itself."""
        return all(layer.scheme == "dense" and not layer.transforms for _, layer in self.members.values())

    def check(self, original: nn.Module) -> None:
        """Raises ``CheckpointError`` when an expert is missing, or the model computes its experts in a way of its
        own."""
        first = next(iter(self.members.values()))[1].name
        for flag, wanted in (("is_transposed", False), ("has_bias", False), ("has_post_expert_norm", False)):
            if getattr(original, flag, wanted) is not wanted:
                raise CheckpointError(
                    f"{type(original).__name__} computes its experts in a way that packed weights do not serve",
                    layer=first, field=flag, observed=getattr(original, flag), required=wanted, code="QD673",
                )  # fmt: skip
        if not hasattr(original, "_apply_gate") or getattr(original, "is_concatenated", True) is not True:
            raise CheckpointError(
                f"{type(original).__name__} computes its experts in a way that packed weights do not serve",
                layer=first, field="_apply_gate", observed=type(original).__name__,
                required="experts with gate and up projection in one parameter",
                remedy="install a version of transformers whose model takes other implementations",
                code="QD673",
            )  # fmt: skip
        self._check_complete(original, first)

    def _check_complete(self, original: nn.Module, first: str) -> None:
        count = {parameter.shape[0] for _, parameter in original.named_parameters(recurse=False)}
        names = {(place.parameter, place.part, place.projection) for place, _ in self.members.values()}
        wanted = {(number, parameter, part) for number in range(max(count)) for parameter, part, _ in names}
        missing, extra = sorted(wanted - self.members.keys()), sorted(self.members.keys() - wanted)
        if missing or extra or len(names) != len({(parameter, part) for parameter, part, _ in names}):
            number, parameter, part = (missing or extra or sorted(self.members))[0]
            projection = next(p for q, r, p in sorted(names) if (q, r) == (parameter, part))
            raise CheckpointError(
                f"the experts of {self.module} are not those of the model: {projection} of expert {number} is "
                f"{'missing' if missing else 'too many'}",
                layer=first.rpartition(".")[0].rpartition(".")[0] + f".{number}.{projection}",
                field=self.module, observed=f"{len(self.members)} projections",
                required=f"{len(wanted)} ({max(count)} experts)",
                code="QD676",
            )  # fmt: skip

    def build(self, original: nn.Module, projections: Mapping[str, nn.Module]) -> QuantExperts:
        """``projections``: a module for each layer, by its name in the checkpoint."""
        experts: dict[int, tuple[list[tuple[str, nn.Module]], list[tuple[str, nn.Module]]]] = {}
        for key in sorted(self.members):
            place, layer = self.members[key]
            first, last = experts.setdefault(place.number, ([], []))
            (last if place.parameter == "down_proj" else first).append((place.projection, projections[layer.name]))
        ordered = [Expert(first, last[0]) for _, (first, last) in sorted(experts.items())]
        for name in [name for name, _ in original.named_parameters(recurse=False)]:
            setattr(original, name, None)
        activation: Any = original._apply_gate if getattr(original, "has_gate", True) else original.act_fn
        return QuantExperts(ordered, activation, original, known_activation)
