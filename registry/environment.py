"""The environment as facts: device, architecture, instruction sets, installed packages.

Every decision takes these as arguments, so a plan for ``cuda:sm90`` or ``rocm:gfx942`` can be made and tested on a
machine that has neither. Nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .gpus import family_of
from .values import ABSENT, PRESENT, UNKNOWN

#: instruction sets that kernels ask for, as ``isa.<name>``, from the flags of /proc/cpuinfo
ISA = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16", "asimd", "bf16", "i8mm")
PACKAGES = ("torch", "triton", "transformers", "compressed-tensors", "vllm", "sglang", "humming-kernels")
#: the package's own compiled kernels, which an installation may lack: ``package.<name>`` is the package's version
NATIVE = "quantdispatch-native"
_NATIVE_FOLDER = Path(__file__).parents[1] / "backends" / "cpu" / "native"
_NATIVE_FILES = ("_kernels.native.so", "_kernels.native.dll")
#: packages of which kernels take a range of versions: ``version.<name>`` is major * 100 + minor, 3.6 is 306
VERSIONED = ("torch", "triton", "vllm", "sglang")
_DEVICE = re.compile(r"(cpu|cuda|rocm)(?::(?:(sm\d{2,3}[af]?)|(gfx[0-9a-f]{3,4})|(\d+)))?")


@dataclass(frozen=True)
class Environment:
    """A device and what is installed beside it. ``facts`` are what kernels' requirements test."""

    device: str
    arch: str
    items: tuple[tuple[str, Any], ...]

    @property
    def facts(self) -> Mapping[str, Any]:
        """All of it by name, as requirements test it: ``device``, ``arch``, ``isa.avx2``, ``package.triton``."""
        return {"device": self.device, "arch": self.arch, **dict(self.items)}

    @classmethod
    def detect(cls, device: str = "cpu", overrides: Mapping[str, Any] | None = None) -> Environment:
        """``device``: ``cpu``, ``cuda`` or ``rocm`` (the one present), ``cuda:sm90``, ``rocm:gfx942``.

        ``overrides``: facts to assume instead of what is found: package versions (``{"triton": "3.9.0"}``, ``None`` or
        ``False`` for not installed), ``isa.*`` flags, ``threads``, ``rows``: tokens a call that kernels of a GPU are
        ranked for, 1 for decoding. Raises ``ConfigError`` for a device or fact that is not known.
        """
        kind, arch = parse_device(device)
        facts: dict[str, Any] = {f"package.{name}": _version(name) for name in PACKAGES}
        facts[f"package.{NATIVE}"] = _native_version()
        flags = _cpu_flags() if kind == "cpu" else frozenset()
        facts |= {f"isa.{name}": UNKNOWN if flags is None else name in flags for name in ISA}
        facts["threads"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        facts["rows"] = 1
        if not isinstance(overrides, Mapping | None):
            raise ConfigError(
                "environment maps facts to values", field="environment", observed=overrides,
                required="a dict such as {'triton': '3.9.0'}", code="QD523",
            )  # fmt: skip
        for name, value in (overrides or {}).items():
            fact = _override_name(name, facts)
            if not isinstance(value, str | int | float | None):
                raise ConfigError(
                    f"environment fact {name!r} has no such value", field="environment", observed=value,
                    required="a version or another string, a number, true, false or None", code="QD523",
                )  # fmt: skip
            missing = value is None or (value is False and fact.startswith("package."))
            facts[fact] = ABSENT if missing else value
        facts["family"] = ABSENT if kind == "cpu" else family_of(arch)
        facts |= {f"version.{name}": _number(facts[f"package.{name}"]) for name in VERSIONED}
        return cls(kind, arch, tuple(sorted(facts.items())))

    def describe(self) -> str:
        """One phrase for people: ``cpu (avx512_bf16, 2 threads)`` or ``cuda sm90``."""
        if self.device != "cpu":
            return f"{self.device} {self.arch}"
        facts = self.facts
        best = next(
            (n for n in ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "asimd") if facts[f"isa.{n}"]),
            self.arch,
        )
        threads = facts["threads"]
        return f"cpu ({best}, {threads} thread{'s' if threads != 1 else ''})"

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON has them; what is absent or unknown is ``null``."""
        shown = {k: (None if v in (ABSENT, UNKNOWN) else v) for k, v in self.items}
        return {"device": self.device, "arch": self.arch, **shown}


def parse_device(device: str) -> tuple[str, str]:
    """``"cuda:sm90"`` to ``("cuda", "sm90")``. Raises ``ConfigError`` for what is not a device."""
    match = _DEVICE.fullmatch(device.strip().lower()) if isinstance(device, str) else None
    kind = match.group(1) if match else ""
    wrong_family = match is not None and (
        (kind != "cuda" and match.group(2)) or (kind != "rocm" and match.group(3)) or (kind == "cpu" and match.group(4))
    )
    if match is None or wrong_family:
        raise ConfigError(
            f"unknown device {device!r}",
            field="device",
            observed=device,
            required="cpu, cuda, cuda:sm90, rocm, rocm:gfx942",
            remedy="name the architecture to ask about a device that is not here",
            code="QD521",
        )
    if kind == "cpu":
        return kind, platform.machine().lower() or "unknown"
    arch = match.group(2) or match.group(3) or _present_arch(kind, int(match.group(4) or 0))
    if arch is None:
        example = "cuda:sm90" if kind == "cuda" else "rocm:gfx942"
        raise ConfigError(
            f"no {kind} device is present",
            field="device",
            observed=device,
            required=f"a device that is here, or an architecture such as {example}",
            remedy=f"ask about one by name: {example}",
            code="QD522",
        )
    return kind, arch


def _override_name(name: str, facts: Mapping[str, Any]) -> str:
    for full in (name, f"package.{name}"):
        if full in facts:
            return full
    if isinstance(name, str) and name.startswith(("isa.", "package.")):
        return name
    raise ConfigError(
        f"unknown environment fact {name!r}", field="environment", observed=name,
        required=f"one of {', '.join(sorted(facts))}", code="QD523",
    )  # fmt: skip


def _number(version: Any) -> Any:
    """``"3.9.0+git"`` as 309; ``ABSENT`` where nothing is installed, ``UNKNOWN`` where the version is no number."""
    if version is ABSENT:
        return ABSENT
    found = re.match(r"v?(\d+)\.(\d+)", str(version))
    return int(found.group(1)) * 100 + min(int(found.group(2)), 99) if found else UNKNOWN


@cache
def _version(package: str) -> Any:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT


def native_library() -> Path | None:
    """The file of the package's own compiled kernels, or ``None`` where it was installed without a compiler."""
    return next((file for name in _NATIVE_FILES if (file := _NATIVE_FOLDER / name).is_file()), None)


def _native_version() -> Any:
    """The package's version where there are native kernels. Whether they load and compute is for their probe to say."""
    if native_library() is None:
        return ABSENT
    version = _version("quantdispatch")
    return PRESENT if version is ABSENT else version


@cache
def _cpu_flags() -> frozenset[str] | None:
    """The processor's flags, or ``None`` where the system does not list them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(line.group(1).split()) if line else None


@cache
def _present_arch(kind: str, index: int) -> str | None:
    """The architecture of the ``index``-th device through the driver's own library; no GPU has verified this path."""
    if kind == "rocm":
        return _rocm_arch(index)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    # cuDeviceGetAttribute: 75 and 76 are COMPUTE_CAPABILITY_MAJOR and _MINOR in cuda.h
    ok = (
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), index) == 0
        and driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device) == 0
        and driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) == 0
    )
    return f"sm{major.value}{minor.value}" if ok else None


def _rocm_arch(index: int) -> str | None:
    """The ``index``-th GPU node of the kernel driver's topology; no GPU has verified this path."""
    versions = []
    for node in sorted(
        Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties"), key=lambda p: int(p.parent.name)
    ):
        found = re.search(r"^gfx_target_version (\d+)$", node.read_text(), re.MULTILINE)
        if found and int(found.group(1)):
            versions.append(int(found.group(1)))
    if index >= len(versions):
        return None
    # 90402 is gfx942: major * 10000 + minor * 100 + stepping, the last two in hexadecimal digits
    value = versions[index]
    return f"gfx{value // 10000}{value // 100 % 100:x}{value % 100:x}"
