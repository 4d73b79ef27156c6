"""Layers that resolve alike, taken together.

A group is what a reader would act on as one. What merely accompanies a decision (which of many patterns ignored a dense
layer, for which shape a kernel was refused) is counted inside the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..registry.errors import QuantDispatchError
    from ..registry.plan import Resolution


class Group:
    """``layers`` share args, target, rule, kernel, and the kind of failure."""

    def __init__(self, layers: Iterable[Resolution] = ()) -> None:
        self.layers = list(layers)

    @property
    def first(self) -> Resolution:
        return self.layers[0]

    @property
    def names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    def stored(self) -> list[str]:
        """Local names of the tensors that every layer of the group has, in the file's order."""
        common = set.intersection(*(set(layer.tensors) for layer in self.layers))
        return [name for name in self.first.tensors if name in common]

    def ignored(self) -> dict[str | None, int]:
        """Each ignore entry (``None``: not ignored but named by no group) and how many layers it decided."""
        return Counter(layer.ignored_by for layer in self.layers)

    def kernels(self) -> list[KernelAnswer]:
        """Each kernel in rank order with the reasons that some layer of the group has for it, and how many have it.

        Layers of one group may differ in shape, so a kernel can be refused for one reason here and another there.
        """
        answers: dict[str, KernelAnswer] = {}
        # layers are many, selections few: those planned together share one
        shared = Counter((id(layer.selection), layer.kernel) for layer in self.layers)
        selections = {id(layer.selection): layer.selection for layer in self.layers}
        for (identity, kernel), count in shared.items():
            selection = selections[identity]
            for candidate in selection.trace if selection is not None else ():
                name = candidate.kernel.name
                answer = answers.get(name)
                if answer is None:
                    answer = answers[name] = KernelAnswer(candidate.kernel)
                answer.chosen += count if kernel == name else 0
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


def groups(layers: Iterable[Resolution]) -> list[Group]:
    """What failed first, then what is quantized, then what is left dense; each in the order of the checkpoint."""
    found: dict[object, Group] = {}
    for layer in layers:
        found.setdefault(_key(layer), Group()).layers.append(layer)
    return sorted(found.values(), key=lambda group: _place(group.first))


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
    return f"{type(error).__name__}: {text}"
