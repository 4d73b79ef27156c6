"""What several rule files are built of: the kinds of layers, and the ways to quantize weights and inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..domains import at_least
from ..predicates import Args, When
from ..values import ABSENT as Absent

#: layers with a matrix and inputs; a ``moe`` layer is one projection of one routed expert
MATRICES = {"linear", "lm_head", "moe"}
#: an embedding's inputs are indices: there is nothing to quantize but its weight
WEIGHT_ONLY = MATRICES | {"embedding"}
#: asymmetric integer weights of routed experts come as a plugin, ``quantdispatch-asym-moe``
ASYMMETRIC = {"linear", "lm_head"}
#: a scale in one of these; uint8 (an exponent) and float8 belong to the mx and nv formats
FLOAT_SCALES = {None, "bfloat16", "float16", "float32"}
#: orders that the writer has undone, so that nothing is left to do at run time
UNORDERED = {None, "weight", "static"}

TENSOR: dict[str, Any] = {"strategy": "tensor", "actorder": UNORDERED}
CHANNEL: dict[str, Any] = {"strategy": "channel", "actorder": UNORDERED}
BLOCK: dict[str, Any] = {"strategy": "block", "actorder": UNORDERED}
#: group activation ordering (``weight_g_idx``) is no longer written, but old checkpoints have it
GROUP: dict[str, Any] = {"strategy": "group", "group_size": at_least(1), "actorder": UNORDERED | {"group"}}
STRATEGIES = (TENSOR, CHANNEL, GROUP, BLOCK)

PACKED = {"pack-quantized"}
UNPACKED = {"int-quantized", "naive-quantized"}

TOKEN: dict[str, Any] = {"strategy": "token", "dynamic": True}
STATIC: dict[str, Any] = {"strategy": "tensor", "dynamic": False}
DYNAMIC: dict[str, Any] = {"strategy": "tensor", "dynamic": True}
GROUPS: dict[str, Any] = {"strategy": "group", "dynamic": True, "group_size": at_least(1)}


def int_args(bits: Any, ways: Iterable[dict[str, Any]], *, symmetric: Any = frozenset({True, False})) -> list[Args]:
    """Integer activations of ``bits``, quantized in each of ``ways``."""
    return [
        Args(type="int", num_bits=bits, symmetric=symmetric, scale_dtype=FLOAT_SCALES, actorder=None, **way)
        for way in ways
    ]


def fp8_args(ways: Iterable[dict[str, Any]]) -> list[Args]:
    """float8_e4m3 activations, quantized in each of ``ways``."""
    return [
        Args(type="float", num_bits=8, symmetric=True, scale_dtype=FLOAT_SCALES, actorder=None, **way) for way in ways
    ]


def int_boxes(
    bits: Any,
    formats: set[str],
    inputs: Iterable[Any] = (Absent,),
    outputs: Any = Absent,
    *,
    strategies: Iterable[dict[str, Any]] = STRATEGIES,
    symmetric_kinds: set[str] = MATRICES,
    asymmetric_kinds: set[str] = ASYMMETRIC,
) -> tuple[When, ...]:
    """Static integer weights of ``bits`` in each of ``strategies``, stored in ``formats``, with each of ``inputs``."""
    inputs = list(inputs)
    return tuple(
        When(
            kind=kinds,
            format=formats,
            weights=Args(
                type="int", num_bits=bits, symmetric=symmetric, dynamic=False, scale_dtype=FLOAT_SCALES, **strategy
            ),
            inputs=given,
            outputs=outputs,
        )
        for symmetric, kinds in ((True, symmetric_kinds), (False, asymmetric_kinds))
        for strategy in strategies
        for given in inputs
    )
