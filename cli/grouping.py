"""Layers that resolve alike, taken together.

A group is what a reader would act on as one. What merely accompanies a decision (which of many patterns ignored a dense
layer, for which shape a kernel was refused) is counted inside the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..registry.layers import Layers

if TYPE_CHECKING:
    from ..registry.errors import QuantDispatchError
    from ..registry.plan import Resolution


class Group:
    """Layers that share args, target, rule, kernel, and the kind of failure: ``names``, the ``first`` of them, and for
    each in ``models`` what was decided for it or one like it. Layers are many, decisions few."""

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
    found: dict[object, Group] = {}
    known: dict[int, Group] = {}  # by model: what is said of it holds for every layer that it stands for
    for name, model in layers.models() if isinstance(layers, Layers) else layers.items():
        group = known.get(id(model))
        if group is None:
            own = _tells_its_name(model)
            key = _key(layers[name] if own else model)
            group = found.get(key)
            if group is None:
                group = found[key] = Group(layers[name])
            if not own:
                known[id(model)] = group
        group.names.append(name)
        group.models.append(model)
    return sorted(found.values(), key=lambda group: _place(group.first))


def _tells_its_name(model: Resolution) -> bool:
    """Is the layer's name in what it is grouped by?"""
    if model.error is not None and model.name in error_text(model.error, model.name):
        return True
    return model.target == model.name


def _place(layer: Resolution) -> int:
    if layer.error is not None:
        return 0
    return 2 if layer.scheme == "dense" else 1


def _key(layer: Resolution) -> object:
    if layer.scheme == "dense" and layer.error is None:
        return ("dense", layer.kind, layer.transforms)
    return (
        *(layer.kind, layer.group, layer.target, layer.ignored_by, layer.format),
        *(layer.weights, layer.inputs, layer.outputs, layer.transforms),
        *(layer.rule.name if layer.rule else None, layer.scheme, layer.kernel, tuple(layer.deviations)),
        error_text(layer.error, layer.name) if layer.error is not None else None,
    )


def error_text(error: QuantDispatchError, layer: str) -> str:
    """The error's line without the layer's name, which stands above it, and without the remedy, which stands below."""
    text = str(error)
    if error.remedy and text.endswith(f"; {error.remedy}"):
        text = text[: -len(error.remedy) - 2]
    text = text.removeprefix(f"{layer}: ")
    return f"{type(error).__name__}: {text}{error.mark}"
