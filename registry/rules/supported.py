"""What the built-in rules are meant to cover, as data: ``rules --check`` looks for legal layers in it without a rule.

A region says which layers somebody may expect to resolve: each preset and each combination that compressed-tensors 0.20
writes. It is declared on its own, not derived from the rules, so that a hole in them shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..domains import between
from ..predicates import Args, Predicate, When, union
from ..values import ABSENT as Absent


@dataclass(frozen=True)
class Supported:
    """A region of layers, by a name that a reader understands."""

    name: str
    when: Predicate | Iterable[When]

    @property
    def predicate(self) -> Predicate:
        return union(self.when, When)


#: routed experts are projections too; a scheme of theirs computes one expert's projection
MATRICES = {"linear", "lm_head", "moe"}
WEIGHT_ONLY = MATRICES | {"embedding"}
#: asymmetric integer weights of routed experts come as a plugin, ``quantdispatch-asym-moe``
ASYMMETRIC = {"linear", "lm_head"}
#: that a scale is stored in; ``None``: in the dtype of the model
SCALES = {None, "bfloat16", "float16", "float32"}
DONE = {None, "weight", "static"}

_INT_WAYS: tuple[dict[str, Any], ...] = (
    {"strategy": {"tensor", "channel", "block"}, "actorder": DONE},
    {"strategy": "group", "actorder": DONE | {"group"}},
)
_INT_FORMATS = {"pack-quantized", "int-quantized"}
#: how activations are scaled: at run time per token, tensor or group; or with one stored scale
_ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {"strategy": "token", "dynamic": True},
    {"strategy": "tensor"},
    {"strategy": "group", "dynamic": True},
)


def _int(bits: Any, inputs: Iterable[Any], outputs: Any = Absent, *, embedding: bool = False) -> list[When]:
    extra = {"embedding"} if embedding else set()
    return [
        When(
            kind=kinds | extra,
            format=_INT_FORMATS,
            weights=Args(type="int", num_bits=bits, symmetric=symmetric, dynamic=False, scale_dtype=SCALES, **way),
            inputs=given,
            outputs=outputs,
        )
        for symmetric, kinds in ((True, MATRICES), (False, ASYMMETRIC))
        for way in _INT_WAYS
        for given in inputs
    ]


def _int_inputs(bits: int) -> list[Args]:
    return [Args(type="int", num_bits=bits, scale_dtype=SCALES, **way) for way in _ACTIVATIONS]


def _fp8_inputs(*ways: dict[str, Any]) -> list[Args]:
    return [Args(type="float", num_bits=8, symmetric=True, scale_dtype=SCALES, **way) for way in ways]


def _float(format_: str, inputs: Iterable[Any], **weights: Any) -> list[When]:
    wanted = {"type": "float", "symmetric": True, "dynamic": False, "actorder": DONE, **weights}
    return [
        When(
            kind=WEIGHT_ONLY if given is Absent else MATRICES,
            format=format_,
            weights=Args(**wanted),
            inputs=given,
            outputs=Absent,
        )
        for given in inputs
    ]


_STATIC_INT8 = Args(type="int", num_bits=8, strategy="tensor", dynamic=False, scale_dtype=SCALES)
_TOKEN, _TENSOR, _GROUP = _ACTIVATIONS
_FP8: dict[str, Any] = {"num_bits": 8, "scale_dtype": SCALES}
_NVFP4: dict[str, Any] = {
    "type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "symmetric": True,
    "scale_dtype": {None, "float8_e4m3fn"},
}  # fmt: skip


def _mx(bits: int) -> dict[str, Any]:
    return {
        "type": "float", "num_bits": bits, "strategy": "group", "group_size": 32, "symmetric": True,
        "scale_dtype": "uint8",
    }  # fmt: skip


def _mx_inputs(bits: int) -> Args:
    return Args(**_mx(bits), dynamic=True)


SUPPORTED: tuple[Supported, ...] = (
    Supported("unquantized", When(kind=WEIGHT_ONLY, weights=Absent, inputs=Absent, outputs=Absent)),
    Supported("int1 to int8 weights", _int(between(1, 8), [Absent], embedding=True)),
    Supported("int1 to int8 weights, int8 inputs", _int(between(1, 8), _int_inputs(8))),
    Supported("int1 to int8 weights, int4 inputs", _int(between(1, 8), _int_inputs(4))),
    Supported(
        "int1 to int8 weights, static int8 inputs and outputs", _int(between(1, 8), [_STATIC_INT8], _STATIC_INT8)
    ),
    Supported("int4 weights, fp8 inputs", _int(4, _fp8_inputs(_TOKEN, _TENSOR))),
    Supported(
        "fp8 weights, fp8 inputs",
        _float("float-quantized", _fp8_inputs(_TOKEN, _TENSOR), strategy={"tensor", "channel"}, **_FP8)
        + _float("float-quantized", _fp8_inputs(_TOKEN, {**_GROUP, "group_size": 128}), strategy="block", **_FP8)
        + _float("float-quantized", _fp8_inputs(_TOKEN, _GROUP), strategy="group", **_FP8),
    ),
    Supported(
        "fp8 weights",
        _float("float-quantized", [Absent], strategy={"tensor", "channel", "group", "block"}, **_FP8),
    ),
    Supported(
        "NVFP4",
        _float("nvfp4-pack-quantized", [Absent, Args(**_NVFP4, dynamic="local")], **_NVFP4),
    ),
    Supported(
        "MXFP4",
        _float("mxfp4-pack-quantized", [Absent, _mx_inputs(4), _mx_inputs(8), *_fp8_inputs(_TOKEN, _GROUP)], **_mx(4)),
    ),
    Supported("MXFP6", _float("mxfp6-pack-quantized", [Absent, _mx_inputs(8)], **_mx(6))),
    Supported("MXFP8", _float("mxfp8-quantized", [Absent, _mx_inputs(8)], **_mx(8))),
    Supported(
        "fp8 keys and values",
        When(
            kind={"kv_cache", "attention"},
            weights=Absent,
            inputs=Args(
                type="float",
                num_bits=8,
                strategy={"tensor", "attn_head"},
                symmetric=True,
                dynamic=False,
                scale_dtype=SCALES,
            ),
            outputs=Absent,
        ),
    ),
)
