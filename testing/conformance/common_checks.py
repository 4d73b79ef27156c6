"""Checks that are the same of a backend and of a scheme."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

from .checks import Nonconformance, NotApplicable
from .subject import Conformance

_LIGHT = """
import sys
from quantdispatch.testing import registry_with
registry = registry_with(*sys.argv[1:])
heavy = {"torch", "transformers", "triton", "vllm", "numpy"} & set(sys.modules)
sys.exit(f"collecting imports {', '.join(sorted(heavy))}" if heavy else 0)
"""


def declarations(subject: Conformance) -> None:
    """The class itself says what can be meant: its kit, capabilities and expected failures."""
    faults = list(subject.undeclared())
    if faults:
        raise Nonconformance("; ".join(faults))


def collects(subject: Conformance) -> None:
    """The plugins are collected, and nothing of them is left out. Raises their ``PluginError``."""
    if not subject.registry or not subject.parts():
        raise Nonconformance(
            f"{subject.name}: nothing of that name is registered by {_named(subject) or 'the package'}"
        )


def is_light(subject: Conformance) -> None:
    """Registering imports nothing heavy: every process that plans does it."""
    names = _named(subject)
    if len(names) < len(subject.plugins):
        raise NotApplicable("plugins that are no modules cannot be imported elsewhere")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT, *names], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise Nonconformance(f"{', '.join(names)}: {done.stderr.strip().splitlines()[-1]}")


def _named(subject: Conformance) -> list[str]:
    names = [plugin.__name__ if isinstance(plugin, ModuleType) else plugin for plugin in subject.plugins]
    return [name for name in names if isinstance(name, str)]


def capabilities_hold(subject: Conformance, admitted: dict[str, str], possible: frozenset[str]) -> None:
    """Raises where capabilities among ``possible`` are declared and not ``admitted``, or the other way round."""
    declared = set(subject.capabilities) & possible
    undeclared = [
        f"{text}, and {name!r} is not among its capabilities: declare it, or narrow the requirement"
        for name, text in sorted(admitted.items())
        if name in possible and name not in declared
    ]
    unmet = [f"{name!r} is declared, and nothing admits a layer with it" for name in sorted(declared - set(admitted))]
    if undeclared or unmet:
        raise Nonconformance("; ".join((*undeclared, *unmet)))
