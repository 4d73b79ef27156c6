"""AutoAWQ and GPTQ checkpoints: configs translated, tensors read, weights run by the kernels of ``wNa16_int``.

Imported by every process that plans, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantdispatch import Absent, Args, Rule, When, hookimpl

from .formats import AWQ_BITS, AWQ_FORMATS, GPTQ_BITS, GPTQ_FORMATS, GPTQ_WORDS

_KINDS = {"linear", "lm_head", "moe"}
_INTEGERS: dict[str, Any] = {"type": "int", "dynamic": False, "scale_dtype": None, "symmetric": {True, False}}


def _weights(formats: set[str], **args: Any) -> When:
    return When(kind=_KINDS, format=formats, inputs=Absent, outputs=Absent, weights=Args(**_INTEGERS, **args))


@hookimpl
def quantdispatch_rules() -> Iterator[Rule]:
    yield Rule(
        name="wNa16_int-awq",
        summary="int4 weights as AutoAWQ stores them, channel or group",
        when=_weights(AWQ_FORMATS, num_bits=AWQ_BITS, strategy={"channel", "group"}, actorder=None),
        scheme="quantdispatch_awq.schemes:AWQInt",
    )
    yield Rule(
        name="wNa16_int-gptq",
        summary="int2, 3, 4 and 8 weights as GPTQ stores them, channel or group; groups in any order of columns",
        # zero points of 3 bits straddle words, and what GPTQModel subtracts from such words is not known here
        when=tuple(
            _weights(formats, num_bits=bits, **way)
            for formats, bits in ((GPTQ_FORMATS - {GPTQ_WORDS}, GPTQ_BITS), ({GPTQ_WORDS}, GPTQ_BITS - {3}))
            for way in (
                {"strategy": "group", "actorder": {None, "group"}},
                {"strategy": "channel", "actorder": None},
            )
        ),
        scheme="quantdispatch_awq.schemes:GPTQInt",
    )


@hookimpl
def quantdispatch_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    method = config.get("quant_method")
    method = method.strip().lower() if isinstance(method, str) else None
    if method not in ("awq", "gptq"):
        return None
    from .translation import translate_awq, translate_gptq  # only a file of theirs needs it

    return translate_awq(config) if method == "awq" else translate_gptq(config)
