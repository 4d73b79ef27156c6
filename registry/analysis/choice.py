"""The kernel for a task on many devices at once: what the task decides is tested once, and not once a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..environment import Environment
from ..errors import PluginError
from ..facts import KERNEL_FIELDS, KernelSpec, LayerFacts
from ..kernels import Kernel
from ..plugins import blamed
from ..predicates import Box
from ..rules.rule import Rule
from ..values import ABSENT, UNKNOWN

if TYPE_CHECKING:
    from ..registry import Registry

DTYPE = "bfloat16"
DEVICES = ("cpu", "cuda:sm75", "cuda:sm80", "cuda:sm89", "cuda:sm90", "cuda:sm100", "cuda:sm120", "rocm:gfx942")
#: facts of a task; every other fact is the environment's, or the scheme's own
_OF_TASKS = KERNEL_FIELDS - {"device", "arch", "family", "threads", "rows"}


class Choice:
    """``Registry.select`` for :data:`DEVICES`, without probes and without a trace."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        environments = {device: Environment.detect(device).facts for device in DEVICES}
        #: in rank order: a kernel, and of each of its boxes the task's part and the devices that pass the rest
        self._kernels: list[tuple[Kernel, list[tuple[Box, frozenset[str]]]]] = []
        for kernel in registry.kernels:
            boxes = []
            for box in kernel.predicate.boxes:
                task = Box(tuple(f for f in box.fields if _of_task(f[0])))
                rest = Box(tuple(f for f in box.fields if not _of_task(f[0])))
                there = frozenset(d for d, facts in environments.items() if rest.test(facts).status != "no")
                if there:
                    boxes.append((task, there))
            self._kernels.append((kernel, boxes))
        self._fits: dict[tuple[Any, ...], bool] = {}
        self._known: dict[Any, dict[str, Kernel | None]] = {}

    def kernels(self, spec: KernelSpec) -> dict[str, Kernel | None]:
        """For each device the kernel of the highest rank that takes the task, as far as is known of its shape."""
        known = self._known.get(spec)
        if known is None:
            known = self._known[spec] = self._choose(spec)
        return known

    def of_rule(self, rule: Rule, facts: LayerFacts) -> tuple[str, dict[str, Kernel | None]]:
        """The name of a rule's scheme and the kernels for a layer. What the scheme of a plugin's rule cannot say, as it
        cannot be imported or fails, is its target, and no kernel."""
        try:
            with blamed(rule):
                scheme = self._registry.scheme_class(rule)(facts)
                return scheme.name, self.kernels(scheme.kernel_spec(None, DTYPE))
        except PluginError:
            return rule.scheme, dict.fromkeys(DEVICES)

    def _choose(self, spec: KernelSpec) -> dict[str, Kernel | None]:
        chosen: dict[str, Kernel | None] = dict.fromkeys(DEVICES)
        open_ = set(DEVICES)
        flat = spec.flat
        for kernel, boxes in self._kernels:
            if kernel.op != spec.op:
                continue
            for task, there in boxes:
                if open_ & there and self._may(task, flat):
                    chosen.update(dict.fromkeys(open_ & there, kernel))
                    open_ -= there
            if not open_:
                break
        return chosen

    def _may(self, task: Box, flat: Mapping[str, Any]) -> bool:
        """Not *no*: yes, or *if* what is unknown turns out well."""
        for name, wanted in task.fields:
            value = flat.get(name, ABSENT)
            key = (name, id(wanted), type(value), value)  # the boxes are held, so that ids stay theirs
            fits = self._fits.get(key)
            if fits is None:
                fits = self._fits[key] = value is UNKNOWN or value in wanted
            if not fits:
                return False
        return True


def _of_task(field: str) -> bool:
    return field in _OF_TASKS or field.startswith("scheme.")
