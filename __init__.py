"""Declarative, explainable dispatch from compressed-tensors checkpoints to quantization schemes and kernels.

``quantdispatch.plan`` says which scheme and which kernel run every layer of a checkpoint, and why;
``quantdispatch.load`` builds the model that does it. Importing this package imports neither torch nor pydantic: every
name below is looked up when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .engines.loading import load as load
    from .registry.domains import at_least as at_least
    from .registry.domains import at_most as at_most
    from .registry.domains import between as between
    from .registry.domains import not_in as not_in
    from .registry.environment import Environment as Environment
    from .registry.errors import CheckpointError as CheckpointError
    from .registry.errors import ConfigError as ConfigError
    from .registry.errors import NoKernelFound as NoKernelFound
    from .registry.errors import NoSchemeFound as NoSchemeFound
    from .registry.errors import PlanError as PlanError
    from .registry.errors import PluginError as PluginError
    from .registry.errors import QuantDispatchError as QuantDispatchError
    from .registry.facts import KernelSpec as KernelSpec
    from .registry.facts import LayerFacts as LayerFacts
    from .registry.hookspecs import hookimpl as hookimpl
    from .registry.kernels import Backend as Backend
    from .registry.kernels import Kernel as Kernel
    from .registry.operands import Operands as Operands
    from .registry.plan import Plan as Plan
    from .registry.plan import plan as plan
    from .registry.predicates import Args as Args
    from .registry.predicates import Needs as Needs
    from .registry.predicates import When as When
    from .registry.rules import Rule as Rule
    from .registry.scheme import LayerShape as LayerShape
    from .registry.scheme import Scheme as Scheme
    from .registry.scheme import StoredTensor as StoredTensor
    from .registry.values import ABSENT

    Absent = ABSENT

_ERRORS = (
    *("QuantDispatchError", "ConfigError", "CheckpointError", "NoSchemeFound", "NoKernelFound", "PluginError"),
    "PlanError",
)
_HOME = {
    "plan": "registry.plan",
    "Plan": "registry.plan",
    "load": "engines.loading",
    "Rule": "registry.rules",
    "When": "registry.predicates",
    "Needs": "registry.predicates",
    "Args": "registry.predicates",
    "Absent": "registry.values",
    "hookimpl": "registry.hookspecs",
    "Kernel": "registry.kernels",
    "Backend": "registry.kernels",
    "KernelSpec": "registry.facts",
    "LayerFacts": "registry.facts",
    "Scheme": "registry.scheme",
    "StoredTensor": "registry.scheme",
    "LayerShape": "registry.scheme",
    "Operands": "registry.operands",
    "Environment": "registry.environment",
    **dict.fromkeys(("at_least", "at_most", "between", "not_in"), "registry.domains"),
    **dict.fromkeys(_ERRORS, "registry.errors"),
}
_RENAMED = {"Absent": "ABSENT"}

__all__ = [  # noqa: PLE0604
    "__version__",
    *sorted(_HOME),
]


if not TYPE_CHECKING:  # or a checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{home}", __name__), _RENAMED.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
