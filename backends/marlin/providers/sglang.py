"""Marlin from SGLang: functions of ``sglang.kernels.ops`` that compile their kernel with nvcc at the first call.

The recorded arguments are those of SGLang 0.5.23. The functions take the activation order (``g_idx``, ``perm``):
columns are sorted outside here, so they are given nothing. The dense one has no bias.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from . import ProviderMismatch, Routing, Weight
from .signatures import Signature, usual
from .vllm import of_routing

#: (module, function, its arguments in order)
DENSE = (
    "sglang.kernels.ops.gemm.gptq_marlin",
    "gptq_marlin_gemm",
    (
        "a", "c", "b_q_weight", "b_scales", "global_scale", "b_zeros", "g_idx", "perm", "workspace", "b_q_type",
        "size_m", "size_n", "size_k", "is_k_full", "use_atomic_add", "use_fp32_reduce", "is_zp_float",
    ),
)  # fmt: skip
MOE = (
    "sglang.kernels.ops.moe.moe_wna16_marlin",
    "moe_wna16_marlin_gemm",
    (
        "a", "c_or_none", "b_q_weight", "b_bias_or_none", "b_scales", "global_scale_or_none", "b_zeros_or_none",
        "g_idx_or_none", "perm_or_none", "workspace", "sorted_token_ids", "expert_ids", "num_tokens_post_padded",
        "topk_weights", "moe_block_size", "top_k", "mul_topk_weights", "is_ep", "b_q_type", "size_m", "size_n",
        "size_k", "is_k_full", "use_atomic_add", "use_fp32_reduce", "is_zp_float", "expert_ids_are_sorted",
        "zero_inactive_output", "has_inactive_prefix_count",
    ),
)  # fmt: skip
_CONSTANT = {
    "c": None, "b_bias": None, "g_idx": None, "perm": None, "is_ep": False, "is_k_full": True, "use_atomic_add": False,
    "use_fp32_reduce": True, "is_zp_float": False, "expert_ids_are_sorted": False, "zero_inactive_output": False,
    "has_inactive_prefix_count": False,
}  # fmt: skip
Find = Callable[[str], Any]


class SglangMarlin:
    """The functions, checked against the record; they are called by position, as recorded."""

    adds_bias = False
    #: it is read in the dtype of x
    wide_factor = False

    def __init__(self, find: Find = importlib.import_module) -> None:
        """``find``: a module by its name."""
        self._find = find
        self._gemm = bind(find, DENSE)
        self._experts: Callable[..., Tensor] | None = None

    def gemm(self, x: Tensor, weight: Weight) -> Tensor:
        values = {**_CONSTANT, **_of_weight(weight), "a": x, "size_m": x.shape[0]}
        return self._gemm(*[values[usual(name)] for name in DENSE[2]])

    def check_moe(self) -> None:
        if self._experts is None:
            self._experts = bind(self._find, MOE)

    def moe_gemm(self, x: Tensor, weight: Weight, routing: Routing, top_k: int, weighted: bool) -> Tensor:
        self.check_moe()
        assert self._experts is not None
        values = {**_CONSTANT, **_of_weight(weight), **of_routing(routing, top_k, weighted)}
        values |= {"a": x, "size_m": x.shape[0]}
        return self._experts(*[values[usual(name)] for name in MOE[2]])


def bind(find: Find, recorded: tuple[str, str, tuple[str, ...]]) -> Callable[..., Tensor]:
    """The function, if it takes what was recorded. Raises :class:`ProviderMismatch` naming what differs."""
    module, name, arguments = recorded
    try:
        function: Callable[..., Tensor] = getattr(find(module), name)
    except (ImportError, AttributeError) as error:
        fault: str | None = f"{type(error).__name__}: {error}"
    else:
        fault = Signature.of_names(arguments).difference(Signature.of_function(function))
        if fault is None:
            return function
    raise ProviderMismatch(
        "SGLang's Marlin function is not as it was recorded", observed=f"{module}.{name}: {fault}",
        required="the arguments of SGLang 0.5.23", remedy="install that version, or use another backend",
    )  # fmt: skip


def _of_weight(weight: Weight) -> Mapping[str, Any]:
    return {
        "b_q_weight": weight.codes, "b_scales": weight.scales, "global_scale": weight.whole, "b_zeros": weight.zeros,
        "workspace": weight.locks, "b_type_id": weight.kind, "size_n": weight.n, "size_k": weight.k,
    }  # fmt: skip
