"""The conformance class of schemes: a rule, the tensors that its scheme declares, and what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from ...registry.operands import Operands
from ...registry.rules import Rule
from . import scheme_checks, scheme_numerics
from .checks import Checks, Nonconformance
from .layers import LAYER_CAPABILITIES, OF_KERNELS, Layer
from .resolving import layers_of_rule, scheme_of
from .subject import Conformance
from .trial import Trial
from .truth import Truth
from .usual_layers import covering, varied
from .written import written


class SchemeConformance(Conformance):
    """One rule or several, and the scheme that they resolve to::

        class TestMine(SchemeConformance):
            plugins = ("my_plugin",)
            rules = ("my-rule",)
            capabilities = {"zero-points"}

            def written(self, layer, operands):
                return {"qweight": ..., "scales": ...}  # as the format's writer packs them

    ``rules``: their names. ``tolerance``: of the forward's relative RMS error by dtype. A scheme whose weight is not
    ``(code - zero_point) * scale`` says by :meth:`weight` what it is.
    """

    rules: ClassVar[Sequence[str]]
    tolerance: ClassVar[Mapping[str, float]] = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-5}
    checks: ClassVar[Checks] = Checks.of(scheme_checks.CHECKS, scheme_numerics.CHECKS)
    kind: ClassVar[str] = "scheme"

    @property
    def name(self) -> str:
        return f"scheme of {', '.join(self.rules)}"

    # -- for subclasses to say more

    def written(self, layer: Layer, operands: Operands) -> Mapping[str, Tensor]:
        """The stored tensors, by local name, that mean ``operands``: as the format's writer packs them, value by value,
        and with nothing of the scheme. Known are the formats of compressed-tensors; a plugin's own it has to write."""
        found = written(layer, operands)
        if found is None:
            raise Nonconformance(
                f"format {layer.format} is none that the kit can write: let {type(self).__name__} define "
                "written(layer, operands)"
            )
        return found

    def weight(self, layer: Layer, operands: Operands) -> Tensor:
        """The dense weight, float64 [N, K]."""
        return Truth(layer, operands).weight()

    def forward(self, trial: Trial, x: Tensor) -> Tensor:
        """What the layer makes of x [M, K]: float64 [M, N]."""
        return trial.truth.output(x)

    # -- the whole

    @cached_property
    def found(self) -> Mapping[str, Rule]:
        """The rules under test."""
        return {rule.name: rule for rule in self.registry.rules.rules if rule.name in self.rules}

    def parts(self) -> Sequence[str]:
        return [name for name in self.rules if name in self.found]

    def layers_of(self, part: str) -> Sequence[Layer]:
        pool = layers_of_rule(self.registry, self.found[part], self.layers, self.fits)
        given = [layer for layer in pool if layer in self.layers]
        rest = [layer for layer in pool if layer not in self.layers]
        if len(rest) < self.most_layers:
            rest += [layer for layer in varied(pool) if self.fits(layer)]
        return [*given, *covering(rest, self.most_layers - len(given))]

    def admitted_capabilities(self) -> Mapping[str, str]:
        """Capabilities of layers that the rules take, each with a layer that shows it."""
        found: dict[str, str] = {}
        for part in self.parts():
            for layer in layers_of_rule(self.registry, self.found[part], self.layers, self.fits):
                for name in layer.capabilities & (LAYER_CAPABILITIES.keys() - OF_KERNELS):
                    found.setdefault(name, f"{part} takes {layer}")
        return found

    def trial(self, part: str, layer: Layer) -> Trial:
        """The layer with the scheme that the rule gives it."""
        scheme = scheme_of(self.registry, self.found[part], layer)
        return Trial(layer, scheme, tolerance=self.tolerance[layer.dtype])

    def stored(self, trial: Trial) -> dict[str, Any]:
        """What a checkpoint holds of the trial's layer."""
        return {name: tensor.contiguous() for name, tensor in self.written(trial.layer, trial.operands).items()}

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "rules": list(self.rules)}
