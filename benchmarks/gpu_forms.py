"""What ``gpu_check`` tries: forms of layers, the kernel that a record binds to each, and a run's limits and results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from . import gpu_pydantic

WITHOUT_PYDANTIC = gpu_pydantic.install()

import torch  # noqa: E402
import triton  # noqa: E402

from quantdispatch.backends.triton import kernels as records  # noqa: E402
from quantdispatch.backends.triton.launch import family_of  # noqa: E402
from quantdispatch.registry.args import QuantArgs  # noqa: E402
from quantdispatch.registry.kernels import ordered, select  # noqa: E402
from quantdispatch.registry.lazy import load_target  # noqa: E402

from . import gpu_layers  # noqa: E402

#: relative norm of the difference: bf16 rounds results to 1.7e-3, and weights once more where they are made in 16 bits
LIMIT = {"float16": 2e-3, "bfloat16": 6e-3}
#: scheme, weights, inputs
Form = tuple[str, QuantArgs, QuantArgs | None]


@dataclass
class Run:
    """One run: where, until when, and what came out."""

    device: str
    dry: bool
    deadline: float
    results: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    failed: int = 0

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


def _int(bits: int, strategy: Any, symmetric: bool = True, dynamic: bool = False, **more: Any) -> QuantArgs:
    way: dict[str, Any] = {"strategy": strategy}
    if isinstance(strategy, int):
        way = {"strategy": "group", "group_size": strategy}
    return QuantArgs(num_bits=bits, type="int", symmetric=symmetric, dynamic=dynamic, **way, **more)


def _fp8(strategy: Any, dynamic: bool = False) -> QuantArgs:
    way: dict[str, Any] = {"strategy": strategy}
    if isinstance(strategy, int):
        way = {"strategy": "group", "group_size": strategy}
    if isinstance(strategy, tuple):
        way = {"strategy": "block", "block_structure": list(strategy)}
    return QuantArgs(num_bits=8, type="float", dynamic=dynamic, **way)


def _mx(bits: int, dynamic: bool = False) -> QuantArgs:
    return QuantArgs(num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype="uint8", dynamic=dynamic)


def _nv(dynamic: Any = False) -> QuantArgs:
    return QuantArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, dynamic=dynamic)


TOKEN8 = _int(8, "token", dynamic=True)
TOKEN8_ASYMMETRIC = _int(8, "token", False, True)
FORMS: tuple[Form, ...] = (
    ("wNa16_int", _int(4, 128), None),
    ("wNa16_int", _int(4, 32, False), None),
    ("wNa16_int", _int(4, "channel", False), None),
    ("wNa16_int", _int(4, 128, False, actorder="group"), None),
    ("wNa16_int", _int(2, 64, False), None),
    ("wNa16_int", _int(8, "channel"), None),
    ("wNa16_int", _int(8, 128, False), None),
    ("w8a16_fp8", _fp8("channel"), None),
    ("w8a16_fp8", _fp8((128, 128)), None),
    ("w4a16_nvfp4", _nv(), None),
    ("w4a16_mxfp4", _mx(4), None),
    ("w8a16_mxfp8", _mx(8), None),
    ("w8a8_fp8", _fp8("channel"), _fp8("token", True)),
    ("w8a8_fp8", _fp8("tensor"), _fp8("tensor")),
    ("w8a8_fp8", _fp8((128, 128)), _fp8(128, True)),
    ("wNa8_int", _int(8, "channel"), TOKEN8),
    ("wNa8_int", _int(8, "channel"), TOKEN8_ASYMMETRIC),
    ("wNa8_int", _int(8, "channel"), _int(8, "tensor")),
    ("wNa8_int", _int(8, "channel"), _int(8, "tensor", False)),
    ("wNa8_int", _int(4, 128), TOKEN8),
    ("w4a8_fp8", _int(4, 128), _fp8("token", True)),
    ("w4a4_nvfp4", _nv(), _nv("local")),
    ("w4a4_mxfp4", _mx(4), _mx(4, True)),
    ("w8a8_mxfp8", _mx(8), _mx(8, True)),
)


def facts(device: str) -> dict[str, Any]:
    """What records ask of the environment. In the interpreter: as if it were an sm90."""
    numbers = [int(part) for part in triton.__version__.split(".")[:2]]
    family = family_of(0) if device.startswith("cuda") else "sm90"
    kind = "rocm" if torch.version.hip else "cuda"
    return {"device": kind, "family": family, "version.triton": numbers[0] * 100 + numbers[1]}


def bound(layer: gpu_layers.Layer, device: str) -> tuple[str, Any]:
    """The name and the implementation of the Triton kernel for a layer; the reason and ``None`` where there is none."""
    selection = select(layer.spec, facts(device), ordered(records(), {}))
    if selection.kernel is None:
        return "; ".join(map(str, selection.trace)) or "no record", None
    return selection.kernel.name, load_target(selection.kernel.target)(layer.spec)
