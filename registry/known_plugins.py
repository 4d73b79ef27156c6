"""Distributions that are known to bring a rule for layers that no built-in rule accepts, or to translate another
method's config: what to install."""

from __future__ import annotations

from dataclasses import dataclass

from .facts import LayerFacts
from .predicates import Args, When
from .values import ABSENT as Absent


@dataclass(frozen=True)
class KnownPlugin:
    """``when``: the layers that its rule accepts; ``brings``: in words."""

    distribution: str
    when: When
    brings: str

    @property
    def remedy(self) -> str:
        return f"pip install {self.distribution} brings a rule for {self.brings}"


KNOWN_PLUGINS = (
    KnownPlugin(
        "quantdispatch-asym-moe",
        When(
            kind="moe",
            format="pack-quantized",
            inputs=Absent,
            outputs=Absent,
            weights=Args(
                type="int",
                num_bits={4, 8},
                strategy={"channel", "group"},
                symmetric=False,
                dynamic=False,
                actorder={None, "weight", "static"},
            ),
        ),
        "routed experts with zero points",
    ),
)


#: distribution that translates a foreign ``quant_method``
TRANSLATORS = {"awq": "quantdispatch-awq", "gptq": "quantdispatch-awq"}


def known_plugin(facts: LayerFacts) -> KnownPlugin | None:
    """The plugin whose rule accepts the layer, or ``None``."""
    return next((p for p in KNOWN_PLUGINS if p.when.test(facts.flat).status == "yes"), None)
