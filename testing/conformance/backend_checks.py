"""What is asked of a backend's kernels, but for their numbers and their life: records and requirements."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ...registry.kernels import run_probe
from ...registry.lazy import load_target
from . import common_checks
from .checks import Checks, Nonconformance, NotApplicable
from .layers import LAYER_CAPABILITIES, Layer

if TYPE_CHECKING:
    from .backend import BackendConformance

CHECKS = Checks()

CHECKS("load/declarations", "subject")(common_checks.declarations)
CHECKS("load/collects", "subject")(common_checks.collects)
CHECKS("load/is-light", "subject")(common_checks.is_light)


@CHECKS("load/target", "part")
def target(subject: BackendConformance, part: str) -> None:
    """What the record names is there, and has the methods of its op."""
    kernel = subject.records[part]
    found: Any = load_target(kernel.target)
    needed = ("pack", "unpack", *(("quantize", "dequantize") if kernel.op == "kv_cache" else ("apply",)))
    missing = [name for name in needed if not callable(getattr(found, name, None))]
    if missing:
        raise Nonconformance(f"{kernel.target} has no {', '.join(missing)}")


@CHECKS("load/probe", "part")
def probe(subject: BackendConformance, part: str) -> None:
    """The probe answers: with nothing where the kernel works, with a reason where it does not."""
    kernel = subject.records[part]
    if kernel.probe is None or not subject.probed:
        raise NotApplicable("the record has no probe" if subject.probed else "a stand-in takes the provider's place")
    reason: object = run_probe(kernel.probe)
    if reason is not None and not isinstance(reason, str):
        raise Nonconformance(f"{kernel.probe} answers {reason!r}, required None or a text")


@CHECKS("load/binds", "sample")
def binds(subject: BackendConformance, part: str, layer: Layer) -> None:
    """It is bound to a layer, and holds no tensors: those live in the module's buffers."""
    impl = subject.trial(layer, part).impl(subject.records[part])
    torch = importlib.import_module("torch")
    held = [name for name, value in vars(impl).items() if isinstance(value, torch.Tensor)]
    if held:
        raise Nonconformance(f"the bound kernel holds tensors: {', '.join(held)}; they belong into the state")


@CHECKS("table/layers", "part")
def layers(subject: BackendConformance, part: str) -> None:
    """Its record admits some layer, so that the rest of the kit has something to try."""
    if not subject.chosen_layers(part):
        boxes = subject.records[part].predicate.boxes
        raise Nonconformance(
            f"{part} admits none of the usual layers on {subject.device}: give `layers` that it takes, or correct "
            f"the record or `environment`; it requires {boxes[0]}{' or ...' if len(boxes) > 1 else ''}"
        )


@CHECKS("table/capabilities", "subject")
def capabilities(subject: BackendConformance) -> None:
    """What the records admit is what the class declares, no more and no less: a requirement too wide shows here."""
    admitted = dict(subject.admitted_capabilities())
    common_checks.capabilities_hold(subject, admitted, frozenset(LAYER_CAPABILITIES))


@CHECKS("table/chosen", "sample")
def chosen(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Asked for by its backend's name, it is a candidate, and the backend serves the layer."""
    from ...registry.environment import Environment

    environment = Environment.detect(subject.device, subject.environment)
    selection = subject.registry.select(subject.trial(layer, part).spec, environment, backend=subject.backend)
    answers = {candidate.kernel.name: candidate for candidate in selection.trace}
    if selection.kernel is None or answers[part].status != "yes":
        raise Nonconformance(f"a plan with backend {subject.backend!r} does not take it: {answers.get(part)}")


@CHECKS("table/unknown-sizes", "sample")
def unknown_sizes(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Of a config without tensors, where sizes are unknown, it answers yes or if: it is not ruled out."""
    trial = subject.trial(layer, part)
    spec = trial.asked(trial.scheme.kernel_spec(None, layer.dtype))
    verdict = subject.records[part].predicate.test({**spec.flat, **subject.facts})
    if verdict.status == "no":
        reasons = "; ".join(map(str, verdict.mismatches))
        raise Nonconformance(f"with sizes unknown it says no ({reasons}), and with [{layer.n}, {layer.k}] yes")
