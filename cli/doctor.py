"""``quantdispatch doctor``: what is installed, what is missing, what is broken.

Imports none of it: what must be tried is tried in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
import warnings
from typing import Any

from ..registry.environment import Environment
from ..registry.registry import get_registry
from .doctor_native import native_report, print_native
from .output import Output

#: distribution, what is lost without it, what to install
OPTIONAL = (
    ("torch", "loading, running, verifying (plans work)", "torch"),
    ("transformers", "run, verify, load and explain --meta", "quantdispatch[transformers]"),
    ("compressed-tensors", "verify, and reading through plain transformers", "quantdispatch[transformers]"),
    ("triton", "Triton kernels (CUDA and ROCm)", "triton"),
    ("huggingface_hub", "hub ids as SOURCE", "huggingface_hub"),
    ("google-re2", "linear-time patterns (a time limit serves instead)", "google-re2"),
)
_STATE_STYLES = {"ok": "green", "conflict": "yellow", "broken": "bold red"}


def doctor_command(*, as_json: bool) -> int:
    """0, or 1 when a plugin is broken."""
    report = _report()
    output = Output()
    if as_json:
        output.json(report)
    else:
        _print(output, report)
    return 1 if any(plugin["state"] == "broken" for plugin in report["plugins"]) else 0


def _report() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # broken plugins have their own lines below
        registry = get_registry()
    environment = Environment.detect("cpu")
    return {
        "version": 1,
        "quantdispatch": _version("quantdispatch"),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "packages": [
            {"name": name, "version": _version(name), "lost": lost, "install": install}
            for name, lost, install in OPTIONAL
        ],
        "devices": _devices(),
        "isa": sorted(
            n.removeprefix("isa.") for n, v in environment.facts.items() if n.startswith("isa.") and v is True
        ),
        "backends": {
            backend: sum(kernel.backend == backend for kernel in registry.kernels)
            for backend in dict.fromkeys(kernel.backend for kernel in registry.kernels)
        },
        "native": native_report(),
        "rules": len(registry.rules.rules),
        "plugins": [plugin.to_json() for plugin in registry.plugins],
        "problems": [problem.to_json() for problem in registry.problems],
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    """The CPU and each GPU family present, as ``explain --device`` describes them."""
    from ..registry.errors import ConfigError

    found = []
    for device in ("cpu", "cuda", "rocm"):
        try:
            found.append(Environment.detect(device).describe())
        except ConfigError:  # its way to say that there is none
            continue
    return found


def _print(output: Output, report: dict[str, Any]) -> None:
    output.line(
        (f"quantdispatch {report['quantdispatch']}", "bold"), f" · python {report['python']} · {report['platform']}"
    )
    output.line()
    output.table([(name, value) for name, value in _facts(report)])
    output.line()
    output.line(("packages", "bold"))
    output.table([_package_row(package) for package in report["packages"]], indent="    ")
    output.line()
    print_native(output, report["native"])
    output.line()
    output.line(("plugins", "bold"), "" if report["plugins"] else "    none installed")
    for plugin in report["plugins"]:
        counts = f"{len(plugin['rules'])} rules, {len(plugin['kernels'])} kernels"
        state = (f"{plugin['state']:<8}", _STATE_STYLES.get(plugin["state"], ""))
        output.line("    ", state, f"  {plugin['name']} ({plugin['distribution']} {plugin['version']}, {counts})")
        if plugin["error"]:
            output.line("              ", plugin["error"])
    for problem in report["problems"]:
        if problem["code"] != "broken-plugin":  # stands above, with its plugin
            output.line(("problem   ", "yellow"), f"{problem['code']}: {problem['message']}")


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    kernels = ", ".join(
        f"{name} ({count} kernel{'s' if count != 1 else ''})" for name, count in report["backends"].items()
    )
    return [
        ("devices", ", ".join(report["devices"])),
        ("isa", " ".join(report["isa"]) or "none that a kernel asks for"),
        ("backends", kernels or "none"),
        ("rules", str(report["rules"])),
    ]


def _package_row(package: dict[str, Any]) -> list[str | tuple[str, str]]:
    if package["version"] is not None:
        return [package["name"], (package["version"], "green")]
    return [
        package["name"],
        ("missing", "yellow"),
        f"without it no {package['lost']}; pip install {shlex.quote(package['install'])}",
    ]
