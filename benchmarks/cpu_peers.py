"""Other kernels for the same layers, where they are installed. Only their speed is asked for: their answers depend on
layouts of their own, and random bits in those cost as much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .cpu_layers import Op, spec


@dataclass(frozen=True)
class Peer:
    weight: dict[str, Any]
    call: Callable[[Any, dict[str, Any]], Any]


def linear_peers(op: Op, made: Any) -> dict[str, Peer]:
    """By name: ``torch_int4`` (the op in ATen) and ``vllm`` (``cpu_gemm_wna16``), both for int4 weights alone."""
    if op.type != "int" or op.bits != 4 or op.int8_inputs:
        return {}
    peers = {"torch_int4": _torch_int4(op, made)}
    vllm = _vllm(op, made)
    return peers if vllm is None else {**peers, "vllm": vllm}


def _torch_int4(op: Op, made: Any) -> Peer:
    from quantdispatch.backends.cpu.int4 import Int4Linear

    n, k = made.codes.shape
    kernel = Int4Linear(spec(op, n, k))
    return Peer(kernel.pack(made), kernel.apply)


def _vllm(op: Op, made: Any) -> Peer | None:
    import torch

    try:
        from vllm import _custom_ops as ops

        multiply = ops.cpu_gemm_wna16
    except (ImportError, AttributeError, OSError):  # not there, or built without it
        return None
    n, k = made.codes.shape
    weight = {
        # [N / 16, 2 K]: eight codes a word, in blocks of 16 outputs
        "packed": torch.randint(-(1 << 31), 1 << 31, (n // 16, k * 2), dtype=torch.int64).to(torch.int32),
        "scales": made.scale.t().contiguous(),
    }
    if made.zero_point is not None:
        weight["zeros"] = torch.full((k // op.group, n // 8), 0x77777777, dtype=torch.int32)
    amx = torch.cpu._is_amx_tile_supported()

    def call(x: Any, state: dict[str, Any]) -> Any:
        return multiply(
            input=x, q_weight=state["packed"], scales=state["scales"], zeros=state.get("zeros"),
            bias=None, pack_factor=8, isa_hint="amx" if amx else "vec",
        )  # fmt: skip

    try:
        call(torch.zeros(1, k, dtype=torch.bfloat16), weight)
    except (AttributeError, RuntimeError, TypeError):  # of another version, or of another processor
        return None
    return Peer(weight, call)
