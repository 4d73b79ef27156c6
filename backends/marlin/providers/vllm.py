"""Marlin from vLLM: ``torch.ops._C`` and ``torch.ops._moe_C``.

The recorded schemas are those of vLLM's ``torch_bindings.cpp`` (and ``csrc/moe``), newest first. Older releases have
the activation order in the op (``g_idx``, ``perm``, ``is_k_full``): columns are sorted outside here, so they are given
nothing. Releases before ``b_bias`` are not served.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from . import ProviderMismatch, Routing, Weight
from .signatures import Signature

_DENSE_HEAD = "Tensor a, Tensor? c, Tensor b_q_weight, Tensor? b_bias, Tensor b_scales, "
_DENSE_TAIL = "int b_type_id, SymInt size_m, SymInt size_n, SymInt size_k, "
_FLAGS = "bool use_atomic_add, bool use_fp32_reduce, bool is_zp_float"
_ORDER = "Tensor? g_idx, Tensor? perm, "
_SCALES = "Tensor? a_scales, Tensor? global_scale, Tensor? b_zeros, "
#: (name, arguments) of the dense product
DENSE = (
    (
        "marlin_gemm",
        f"{_DENSE_HEAD}{_SCALES}Tensor workspace, {_DENSE_TAIL}{_FLAGS}",
    ),
    (
        "marlin_gemm",
        f"{_DENSE_HEAD}{_SCALES}{_ORDER}Tensor workspace, {_DENSE_TAIL}bool is_k_full, {_FLAGS}",
    ),
    (
        "gptq_marlin_gemm",
        f"{_DENSE_HEAD}{_SCALES}{_ORDER}Tensor workspace, {_DENSE_TAIL}bool is_k_full, {_FLAGS}",
    ),
    (
        "gptq_marlin_gemm",
        f"{_DENSE_HEAD}Tensor? global_scale, Tensor? b_zeros, {_ORDER}Tensor workspace, {_DENSE_TAIL}"
        f"bool is_k_full, {_FLAGS}",
    ),
)
_TOKENS = (
    "Tensor sorted_token_ids, Tensor expert_ids, Tensor num_tokens_post_padded, Tensor topk_weights, "
    "int moe_block_size, int top_k, bool mul_topk_weights, "
)
_SIZES = "int b_type_id, int size_m, int size_n, int size_k, "
_THREADS = "int thread_k, int thread_n, int blocks_per_sm"
MOE = (
    ("moe_wna16_marlin_gemm", f"{_DENSE_HEAD}{_SCALES}Tensor workspace, {_TOKENS}{_SIZES}{_FLAGS}, {_THREADS}"),
    (
        "moe_wna16_marlin_gemm",
        f"{_DENSE_HEAD}{_SCALES}{_ORDER}Tensor workspace, {_TOKENS}{_SIZES}bool is_k_full, {_FLAGS}, {_THREADS}",
    ),
    (
        "moe_wna16_marlin_gemm",
        f"{_DENSE_HEAD}Tensor? global_scale, Tensor? b_zeros, {_ORDER}Tensor workspace, {_TOKENS}bool is_ep, {_SIZES}"
        f"bool is_k_full, {_FLAGS}",
    ),
)
#: the shared objects that register the ops, under the names they have had
LIBRARIES = ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm._C", "vllm._moe_C")
#: what is the same in every call
_CONSTANT = {
    "c": None, "a_scales": None, "g_idx": None, "perm": None, "is_k_full": True, "is_ep": False,
    "use_atomic_add": False, "use_fp32_reduce": True, "is_zp_float": False,
    "thread_k": -1, "thread_n": -1, "blocks_per_sm": -1,
}  # fmt: skip


class VllmMarlin:
    """The ops, and the order of arguments that each was found to have."""

    adds_bias = True

    def __init__(self, dense: Any = None, moe: Any = None) -> None:
        """``dense``, ``moe``: where the ops are, ``torch.ops._C`` and ``torch.ops._moe_C`` unless given."""
        if dense is None:
            load_libraries()
        self._dense = dense or torch.ops._C
        self._moe = moe or torch.ops._moe_C
        self._gemm, self._order = bind(self._dense, DENSE)
        # the releases that take no scales of x read the factor of fp4 in the dtype of x
        self.wide_factor = "a_scales" in self._order and "g_idx" not in self._order
        self._experts: tuple[Any, tuple[str, ...]] | None = None

    def gemm(self, x: Tensor, weight: Weight) -> Tensor:
        values = {**_CONSTANT, **_of_weight(weight), "a": x, "size_m": x.shape[0]}
        result: Tensor = self._gemm(*[values[name] for name in self._order])
        return result

    def check_moe(self) -> None:
        if self._experts is None:
            self._experts = bind(self._moe, MOE)

    def moe_gemm(self, x: Tensor, weight: Weight, routing: Routing, top_k: int, weighted: bool) -> Tensor:
        self.check_moe()
        assert self._experts is not None
        op, order = self._experts
        values = {**_CONSTANT, **_of_weight(weight), **of_routing(routing, top_k, weighted)}
        values |= {"a": x, "size_m": x.shape[0], "b_bias": None}
        # rows of empty places are never written
        values["c"] = x.new_zeros(x.shape[0] * top_k, weight.n)
        result: Tensor = op(*[values[name] for name in order])
        return result


def load_libraries() -> None:
    """Let the provider's shared objects register their ops; which of them a release has is its own business."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def bind(namespace: Any, recorded: tuple[tuple[str, str], ...]) -> tuple[Any, tuple[str, ...]]:
    """The op of ``namespace`` that has one of the recorded signatures, and its arguments in order.

    Raises :class:`ProviderMismatch` naming the op, and the argument in which it differs from the nearest record.
    """
    faults = []
    for name, arguments in recorded:
        packet = getattr(namespace, name, None)
        if packet is None:
            faults.append((0, f"there is no {name}"))
            continue
        op = packet.default
        ours, theirs = Signature.of_schema(f"{name}({arguments}) -> Tensor"), Signature.of_schema(op._schema)
        difference = ours.difference(theirs)
        if difference is None:
            return op, ours.names
        alike = next((i for i, pair in enumerate(zip(*_both(ours, theirs), strict=False)) if pair[0] != pair[1]), 99)
        faults.append((alike, f"{name}: {difference}"))
    raise ProviderMismatch(
        "vLLM's Marlin op is not as it was recorded",
        observed=max(faults, key=lambda fault: fault[0])[1],
        required=" or ".join(dict.fromkeys(name for name, _ in recorded)),
        remedy="install a vLLM whose signature is known, or use another backend",
    )


def _both(ours: Signature, theirs: Signature) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return ours.arguments, theirs.arguments


def _of_weight(weight: Weight) -> Mapping[str, Any]:
    return {
        "b_q_weight": weight.codes, "b_bias": weight.bias, "b_scales": weight.scales, "global_scale": weight.whole,
        "b_zeros": weight.zeros, "workspace": weight.locks, "b_type_id": weight.kind.id, "size_n": weight.n,
        "size_k": weight.k,
    }  # fmt: skip


def of_routing(routing: Routing, top_k: int, weighted: bool) -> Mapping[str, Any]:
    """The arguments of an MoE op that say which row goes to which expert."""
    return {
        "sorted_token_ids": routing.rows, "expert_ids": routing.experts, "num_tokens_post_padded": routing.used,
        "topk_weights": routing.weights, "moe_block_size": routing.block, "top_k": top_k, "mul_topk_weights": weighted,
    }  # fmt: skip
