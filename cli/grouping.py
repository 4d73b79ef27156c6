"""Layers that resolve alike, taken together.

A group is what a reader would act on as one. What merely accompanies a decision (which of many entries of the config
hit or ignored a layer, for which shape a kernel was refused) is counted inside the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..registry.layers import Layers
from .output import printable

if TYPE_CHECKING:
    from ..registry.errors import QuantDispatchError
    from ..registry.plan import Resolution

#: layers that fail in more ways than this, all of one code, are one group, with the ways counted
MAX_WAYS = 6
#: where an error's text has the name of its layer, in a group of several
ANY_LAYER = "<layer>"


class Group:
    """Layers that share args, rule, kernel, and the kind of failure: ``names``, the ``first`` of them, and for each in
    ``models`` what was decided for it or one like it. Layers are many, decisions few."""

    def __init__(self, first: Resolution) -> None:
        self.first = first
        self.names: list[str] = []
        self.models: list[Resolution] = []

    @classmethod
    def of(cls, layer: Resolution) -> Group:
        """A single layer."""
        group = cls(layer)
        group.names.append(layer.name)
        group.models.append(layer)
        return group

    def __len__(self) -> int:
        return len(self.names)

    def counted(self) -> list[tuple[Resolution, int]]:
        """Each of ``models`` once, and for how many layers it stands."""
        counts = Counter(map(id, self.models))
        return [(model, counts[identity]) for identity, model in {id(model): model for model in self.models}.items()]

    def stored(self) -> list[str]:
        """Local names of the tensors that every layer of the group has, in the file's order."""
        common = set.intersection(*(set(model.tensors) for model, _ in self.counted()))
        return [name for name in self.first.tensors if name in common]

    def ignored(self) -> dict[str | None, int]:
        """Each ignore entry (``None``: not ignored but named by no group) and how many layers it decided."""
        found: Counter[str | None] = Counter()
        for name, model in zip(self.names, self.models, strict=True):
            found[name if model.ignored_by == model.name else model.ignored_by] += 1
        return found

    def targets(self) -> dict[tuple[str | None, str | None], int]:
        """Each (target, config group) and how many layers it decided."""
        found: Counter[tuple[str | None, str | None]] = Counter()
        for name, model in zip(self.names, self.models, strict=True):
            found[name if model.target == model.name else model.target, model.group] += 1
        return found

    def failures(self) -> dict[str, int]:
        """Each error's text and how many layers have it. The name of a layer is left out where it is one of several."""
        if len(self) == 1 and self.first.error is not None:
            return {error_text(self.first.error, self.first.name, alone=True): 1}
        found: Counter[str] = Counter()
        for model, count in self.counted():
            if model.error is not None:
                found[error_text(model.error, model.name)] += count
        return found

    def remedies(self) -> dict[str, int]:
        """Each error's remedy and how many layers have it."""
        found: Counter[str] = Counter()
        for model, count in self.counted():
            if model.error is not None and model.error.remedy:
                found[model.error.remedy] += count
        return found

    def kernels(self) -> list[KernelAnswer]:
        """Each kernel in rank order with the reasons that some layer of the group has for it, and how many have it.

        Layers of one group may differ in shape, so a kernel can be refused for one reason here and another there.
        """
        answers: dict[str, KernelAnswer] = {}
        for model, count in self.counted():
            for candidate in model.selection.trace if model.selection is not None else ():
                name = candidate.kernel.name
                answer = answers.get(name)
                if answer is None:
                    answer = answers[name] = KernelAnswer(candidate.kernel)
                answer.chosen += count if model.kernel == name else 0
                answer.counts[candidate.status, tuple(candidate.reasons)] += count
        return list(answers.values())


class KernelAnswer:
    """What one kernel answered to the layers of a group.

    ``chosen``: for how many layers it is the kernel. ``counts``: (status, reasons) to the number of layers.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.chosen = 0
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()


def groups(layers: Mapping[str, Resolution]) -> list[Group]:
    """What failed first, then what is quantized, then what is left dense; each in the order of the checkpoint."""
    models = dict(layers.models()) if isinstance(layers, Layers) else dict(layers)
    keys = {key: _key(model) for key, model in {id(model): model for model in models.values()}.items()}
    ways: dict[object, set[str | None]] = {}
    for decision, way in keys.values():
        ways.setdefault(decision, set()).add(way)
    found: dict[object, Group] = {}
    for name, model in models.items():
        decision, way = keys[id(model)]
        key = (decision, way) if len(ways[decision]) <= MAX_WAYS else decision
        group = found.get(key)
        if group is None:
            group = found[key] = Group(layers[name])
        group.names.append(name)
        group.models.append(model)
    return sorted(found.values(), key=lambda group: _place(group.first))


def _place(layer: Resolution) -> int:
    if layer.error is not None:
        return 0
    return 2 if layer.scheme == "dense" else 1


def _key(layer: Resolution) -> tuple[object, str | None]:
    """What was decided, and in what way it failed."""
    error = layer.error
    if layer.scheme == "dense" and error is None:
        return ("dense", layer.kind, layer.transforms), None
    decision = (
        *(layer.kind, layer.format, layer.target is None, layer.ignored_by is None),
        *(layer.weights, layer.inputs, layer.outputs, layer.transforms),
        *(layer.rule.name if layer.rule else None, layer.scheme, layer.kernel, tuple(layer.deviations)),
        *((type(error), error.code) if error is not None else ()),
    )
    return decision, None if error is None else f"{error_text(error, layer.name)} {error.remedy}"


def error_text(error: QuantDispatchError, layer: str, *, alone: bool = False) -> str:
    """The error's line without the layer's name, which stands above it, and without the remedy, which stands below.

    ``alone``: the error of this one layer; else the text is the same for every layer that fails in the same way.
    """
    text, remedy, name = str(error), printable(error.remedy or ""), printable(layer)
    if remedy and text.endswith(f"; {remedy}"):
        text = text[: -len(remedy) - 2]
    text = text.removeprefix(f"{name}: ")
    if not alone and name and name in text:
        text = _without(name, text)
    return f"{type(error).__name__}: {text}{error.mark}"


def _without(layer: str, text: str) -> str:
    """The layer's name replaced where it stands by itself or with one of its tensors. Each layer's is another: a
    pattern would have to be compiled for each."""
    first, *rest = text.split(layer)
    for after in rest:
        before, behind = first[-1:], after[:1]
        inside = before.isalnum() or behind.isalnum() or "_" in (before, behind) or before == "."
        first += (layer if inside else ANY_LAYER) + after
    return first
