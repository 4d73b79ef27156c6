"""Integer weights with int8 inputs (W8A8, W4A8): one static scale, or dynamic per token or per tensor.

Formats as in :mod:`.int_weights`; the inputs' scale and zero point, where static, are stored beside the weights.
"""

from __future__ import annotations

from typing import Any

from ..domains import between
from ..predicates import Args, When
from ..values import ABSENT as Absent
from .int_weights import CHANNEL, FLOAT_SCALES, GROUP, KINDS
from .rule import Rule

TENSOR: dict[str, Any] = {"strategy": "tensor", "actorder": {None, "weight", "static"}}
TOKEN_DYNAMIC = Args(
    type="int", num_bits=8, strategy="token", symmetric={True, False}, dynamic=True, scale_dtype=FLOAT_SCALES
)
TENSOR_ANY = Args(
    type="int", num_bits=8, strategy="tensor", symmetric={True, False}, dynamic={True, False}, scale_dtype=FLOAT_SCALES
)


def _when(formats: set[str], strategies: tuple[dict[str, Any], ...]) -> When:
    boxes = [
        When(
            kind=KINDS,
            format=formats,
            weights=Args(
                type="int",
                num_bits=between(2, 8),
                symmetric={True, False},
                dynamic=False,
                scale_dtype=FLOAT_SCALES,
                **strategy,
            ),
            inputs=inputs,
            outputs=Absent,
        )
        for strategy in strategies
        for inputs in (TOKEN_DYNAMIC, TENSOR_ANY)
    ]
    result = boxes[0]
    for box in boxes[1:]:
        result = result | box  # type: ignore[assignment]
    return result


W8 = When(weights=Args(num_bits=8, strategy={"tensor", "channel"}, symmetric=True))
W4_TOKEN = When(
    weights=Args(num_bits=4, strategy={"channel", "group"}, symmetric=True),
    inputs=Args(strategy="token", symmetric=True),
)

RULES = (
    Rule(
        name="wNa8_int",
        summary="int2 to int8 weights stored as int8, tensor, channel or group; int8 inputs, static or dynamic",
        when=_when({"int-quantized", "naive-quantized"}, (TENSOR, CHANNEL, GROUP)),
        scheme="quantdispatch.schemes.wna8_int:WNA8Int",
        equivalents={
            "vllm": {"CompressedTensorsW8A8Int8": W8, "CompressedTensorsW4A8Int": W4_TOKEN},
            "sglang": {"CompressedTensorsW8A8Int8": W8},
        },
    ),
    Rule(
        name="wNa8_int-packed",
        summary="int2 to int8 weights, packed, channel or group; int8 inputs, static or dynamic",
        when=_when({"pack-quantized"}, (CHANNEL, GROUP)),
        scheme="quantdispatch.schemes.wna8_int:WNA8Int",
        differs={
            "sglang": {"expects int8 `weight`, finds packed `weight_packed`": W8},
            "vllm": {
                "leaves inputs unquantized in every kernel but Humming's": When(
                    inputs=Args(strategy="token", symmetric=True)
                )
            },
        },
    ),
)
