"""The conformance class of backends: every kernel with every kind of layer that its record admits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any, ClassVar

from ...registry.environment import Environment
from ...registry.kernels import Kernel, run_probe
from . import backend_checks, kernel_experts, kernel_life, kernel_memory, kernel_numerics
from .checks import Checks, Item, NotApplicable
from .layers import LAYER_CAPABILITIES, Layer
from .resolving import resolved, scheme_of, usual_resolved
from .subject import Conformance
from .trial import Trial
from .usual_layers import covering, varied

#: admitted layers that a kernel's are chosen from
_POOL = 250
_OPS = frozenset({"linear", "embedding", "kv_cache", "dense"})


class BackendConformance(Conformance):
    """A backend's kernels, held against the schemes whose layers they compute::

        class TestMine(BackendConformance):
            plugins = ("my_plugin",)
            backend = "mine"
            capabilities = {"zero-points", "bias", "bfloat16"}

    ``backend``: the part of its kernels' names before the slash. ``kernels``: names; all of the backend's when empty,
    but for those that deviate from their scheme: they are named here, and :meth:`computes` says what they compute.
    ``allow``: what the user has allowed, as for ``load(allow=)``.
    ``device`` and ``environment``: as ``plan()`` takes them; they decide which layers the records admit. ``runs_on``:
    where torch puts the tensors, ``"cpu"`` for an interpreter or a stand-in. ``probed``: ``False`` where a stand-in
    takes the place of a provider that the probe would look for. ``tolerance``: of the relative RMS error
    by dtype; rounding results once costs 1.7e-3 in bfloat16 and 2e-4 in float16.
    """

    backend: ClassVar[str]
    kernels: ClassVar[Sequence[str]] = ()
    device: ClassVar[str] = "cpu"
    environment: ClassVar[Mapping[str, Any]] = {}
    allow: ClassVar[frozenset[str] | set[str]] = frozenset()
    runs_on: ClassVar[str] = "cpu"
    probed: ClassVar[bool] = True
    tolerance: ClassVar[Mapping[str, float]] = {"bfloat16": 4.5e-3, "float16": 6e-4, "float32": 1e-5}
    checks: ClassVar[Checks] = Checks.of(
        backend_checks.CHECKS, kernel_numerics.CHECKS, kernel_experts.CHECKS, kernel_life.CHECKS, kernel_memory.CHECKS
    )
    kind: ClassVar[str] = "backend"

    @property
    def name(self) -> str:
        return f"backend {self.backend}"

    # -- for subclasses to say more

    def computes(self, part: str, layer: Layer) -> Layer:
        """What the kernel computes of ``layer``: itself, but for a kernel whose record has ``deviations``. That inputs
        stay unquantized is ``layer.with_(inputs=None)``."""
        return layer

    # -- the whole

    @cached_property
    def records(self) -> Mapping[str, Kernel]:
        """The kernels under test, best first: of ops that schemes ask for, and of dense layers."""
        own = [kernel for kernel in self.registry.kernels if kernel.backend == self.backend and kernel.op in _OPS]
        chosen = [kernel for kernel in own if kernel.name in self.kernels or not (self.kernels or kernel.deviations)]
        return {kernel.name: kernel for kernel in chosen}

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Of the device and what is installed beside it."""
        return Environment.detect(self.device, self.environment).facts

    def parts(self) -> Sequence[str]:
        return list(self.records)

    def layers_of(self, part: str) -> Sequence[Layer]:
        given = [found[0] for layer in self.layers if (found := resolved(self.registry, layer))]
        given = [layer for layer in given if self.admits(part, layer)]
        usual = list(islice(self._admitted(part, (layer for layer, _ in usual_resolved(self.registry))), _POOL))
        if len(usual) < self.most_layers:
            usual += self._admitted(part, varied((*given, *usual)))
        return [*given, *covering(usual, self.most_layers - len(given))]

    def _admitted(self, part: str, layers: Iterable[Layer]) -> Iterator[Layer]:
        return (layer for layer in layers if self.fits(layer) and self.admits(part, layer))

    def admits(self, part: str, layer: Layer) -> bool:
        """Does the kernel's record take this layer?"""
        kernel, spec = self.records[part], self.trial(layer, part).spec
        return spec.op == kernel.op and kernel.predicate.test({**spec.flat, **self.facts}).status == "yes"

    def admitted_capabilities(self) -> Mapping[str, str]:
        """Capabilities of layers that the records admit, each with a kernel and a layer that shows it."""
        found: dict[str, str] = {}
        for part in self.parts():
            layers = chain(self.chosen_layers(part), (layer for layer, _ in usual_resolved(self.registry)))
            for layer in layers:
                new = layer.capabilities & (LAYER_CAPABILITIES.keys() - found.keys())
                if new and self.fits(layer) and self.admits(part, layer):
                    found |= dict.fromkeys(new, f"{part} takes {layer}")
        return found

    def trial(self, layer: Layer, part: str = "") -> Trial:
        """The layer, as its scheme hands it to the kernel ``part``."""
        found = resolved(self.registry, layer)
        if found is None:
            raise NotApplicable(f"no rule takes {layer}")
        named, rule = found
        dense = named.weights is None and part in self.records and self.records[part].op == "dense"
        if dense:  # a module's own parameters are in its dtype
            named = named.with_(scale_dtype=named.dtype)
        return Trial(
            named,
            scheme_of(self.registry, rule, named),
            self.runs_on,
            self.tolerance[layer.dtype],
            computed=self.computes(part, named),
            allow=frozenset(self.allow),
            op="dense" if dense else None,
        )

    def ask(self, item: Item) -> None:
        if item.layer is not None or item.check.name == "load/probe":
            kernel = self.records[item.part]
            reason = run_probe(kernel.probe) if kernel.probe is not None and self.probed else None
            if reason is not None:
                raise NotApplicable(f"{item.part} does not run here: {reason}")
        super().ask(item)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "backend": self.backend, "device": self.device, "runs_on": self.runs_on}
