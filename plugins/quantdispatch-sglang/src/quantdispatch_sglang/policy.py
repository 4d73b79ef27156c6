"""Who computes a module: SGLang's own class, or quantdispatch's kernels. Knows nothing of SGLang's code.

SGLang's class is taken where it computes what the args say. That is asked of a config in which the layer's group is the
only one, because that is the config that SGLang's dispatch is given then: what its class gets wrong because of other
groups, of the top-level format or of the order of targets does not arise.
"""

from __future__ import annotations

from collections.abc import Mapping

from quantdispatch.engines.adapters.layers import Members, facts_of
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.errors import NoKernelFound
from quantdispatch.registry.peers.compare import decide, wrong
from quantdispatch.registry.peers.facts import Sight, View, capability_of
from quantdispatch.registry.peers.sglang import SGLANG
from quantdispatch.registry.resolution import Resolution
from quantdispatch.registry.resolver import DENSE

ENGINE = "sglang"
OURS, THEIRS, NOTHING = "ours", "theirs", "dense"
#: of AMD devices it is not known which of SGLang's classes run; the class that it returns is compared all the same
_ASSUMED = 90


def choose(module: Members, environment: Environment, settings: Mapping[str, str]) -> tuple[str, str | None]:
    """``("dense", None)``: nothing of the module is quantized. ``("theirs", "CompressedTensorsWNA16")``: that class of
    SGLang's computes all of it as the config says. ``("ours", None)``: quantdispatch's kernels do.

    ``settings``: SGLang's, see :func:`settings_of`. Raises the error of a member that does not resolve, unless only a
    kernel of ours is missing and SGLang has a class.
    """
    classes = [sglang_class(layer, environment, settings) for layer in module.layers]
    for layer, own in zip(module.layers, classes, strict=True):
        if layer.error is not None and not (isinstance(layer.error, NoKernelFound) and own is not None):
            raise layer.error
    if not module.quantized:
        return NOTHING, None
    if module.alike and classes[0] is not None:
        return THEIRS, classes[0]
    return OURS, None


def sglang_class(layer: Resolution, environment: Environment, settings: Mapping[str, str]) -> str | None:
    """The name of SGLang's class with the numeric contract of the layer's scheme on this device, or ``None``."""
    if environment.device == "cpu" or layer.scheme is None or layer.scheme == DENSE or layer.rule is None:
        return None
    facts = facts_of(layer)
    if layer.transforms or ENGINE in layer.rule.differs_for(facts):
        return None
    told = layer.rule.equivalents_for(facts).get(ENGINE)
    if told:
        return told[0]
    capability = _ASSUMED if environment.device == "rocm" else capability_of(environment.device, environment.arch)
    view = View(facts, Sight.of(facts))
    case = decide(SGLANG, view, "cuda", capability, settings)
    if case is None or case.runs is None or layer.scheme not in case.same_as:
        return None
    return None if wrong(SGLANG, case, view.on("cuda", capability, settings)) else case.runs


def settings_of(runner: str, fp4_gemm: str) -> dict[str, str]:
    """``--moe-runner-backend`` and ``--fp4-gemm-backend`` as what is known of SGLang tells them apart."""
    known = {name: {setting[name] for setting in SGLANG.settings} for name in SGLANG.settings[0]}
    given = {"runner": runner, "fp4_gemm": fp4_gemm}
    return {name: value if value in known[name] else SGLANG.settings[0][name] for name, value in given.items()}
