"""The layers of a plan: one answer for many, made into a layer's own when that layer is asked for."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from .errors import QuantDispatchError
from .resolution import Resolution
from .tensor_table import LayerTensors

_facts = attrgetter(*(field.name for field in fields(Resolution)))


class Layers(Mapping[str, Resolution]):
    """Resolutions by module name. ``models``: for each module, in order, what was decided for one like it.

    Layers alike share everything but name, tensors and error. A layer asked for twice is the same object.
    """

    __slots__ = ("_models", "_own")

    def __init__(self, models: dict[str, Resolution]) -> None:
        self._models = models
        self._own: dict[str, Resolution] = {}

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __contains__(self, name: object) -> bool:
        return name in self._models

    def __getitem__(self, name: str) -> Resolution:
        model = self._models[name]
        if model.name == name:
            return model
        own = self._own.get(name)
        if own is None:
            own = self._own[name] = _like(model, name)
        return own

    def __repr__(self) -> str:
        return f"Layers({len(self)})"

    def failing(self) -> Iterator[Resolution]:
        """Those with an error; the others are not looked at one by one."""
        return (self[name] for name, model in self._models.items() if model.error is not None)

    def models(self) -> Iterator[tuple[str, Resolution]]:
        """Each name with what was decided for one like it, which costs less than a layer of its own."""
        return iter(self._models.items())

    def alike(self) -> Iterator[tuple[Hashable, str]]:
        """Each layer's :attr:`.Resolution.likeness` and name."""
        known: dict[int, tuple[Any, ...]] = {}
        for name, model in self._models.items():
            likeness = known.get(id(model))
            if likeness is None:
                likeness = known[id(model)] = model.likeness
            if name != model.name and model.name in (model.target, model.ignored_by):
                # put there by an entry of its own name, each for itself
                own = [name if entry == model.name else entry for entry in likeness[3:5]]
                yield (*likeness[:3], *own, *likeness[5:]), name
            else:
                yield likeness, name


def _like(model: Resolution, name: str) -> Resolution:
    """What ``model`` says, of a module that differs in name only."""
    own = Resolution(*_facts(model))  # dataclasses.replace takes ten times as long
    own.name = name
    # an entry of the config that is the model's own name stands for one of this name
    if model.target == model.name:
        own.target = name
    if model.ignored_by == model.name:
        own.ignored_by = name
    if isinstance(model.tensors, LayerTensors):
        own.tensors = model.tensors.of(name)
    if model.error is not None:
        own.error = _renamed(model.error, model.name, name)
    return own


def _renamed(error: QuantDispatchError, old: str, new: str) -> QuantDispatchError:
    """The same error about another layer."""
    twin = type(error).__new__(type(error))
    twin.__dict__.update(error.__dict__)
    twin.layer = new
    if old in error.message:
        twin.message = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", lambda _: new, error.message)
    twin.args = (twin.message,)
    return twin
