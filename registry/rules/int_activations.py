"""Integer weights with int8 inputs (W8A8, W4A8): one static scale, or dynamic per token or per tensor.

Formats as in :mod:`.int_weights`; the inputs' scale and zero point, where static, are stored beside the weights.
"""

from __future__ import annotations

from ..predicates import Args, When
from .int_weights import FLOAT_SCALES, PACKED, UNPACKED, boxes
from .rule import Rule

TOKEN_DYNAMIC = Args(
    type="int", num_bits=8, strategy="token", symmetric={True, False}, dynamic=True, scale_dtype=FLOAT_SCALES
)
TENSOR_ANY = Args(
    type="int", num_bits=8, strategy="tensor", symmetric={True, False}, dynamic={True, False}, scale_dtype=FLOAT_SCALES
)


W8 = When(weights=Args(num_bits=8, strategy={"tensor", "channel"}, symmetric=True))
W8_CHANNEL = When(weights=Args(num_bits=8, strategy="channel", symmetric=True))
W4_TOKEN = When(
    weights=Args(num_bits=4, strategy={"channel", "group"}, symmetric=True),
    inputs=Args(strategy="token", symmetric=True),
)

RULES = (
    Rule(
        name="wNa8_int",
        summary="int2 to int8 weights stored as int8, tensor, channel or group; int8 inputs, static or dynamic",
        when=boxes(UNPACKED, TOKEN_DYNAMIC) + boxes(UNPACKED, TENSOR_ANY),
        scheme="quantdispatch.schemes.wna8_int:WNA8Int",
        equivalents={
            "vllm": {"CompressedTensorsW8A8Int8": W8, "CompressedTensorsW4A8Int": W4_TOKEN},
            "sglang": {"CompressedTensorsW8A8Int8": W8},
        },
    ),
    Rule(
        name="wNa8_int-packed",
        summary="int2 to int8 weights, packed, tensor, channel or group; int8 inputs, static or dynamic",
        when=boxes(PACKED, TOKEN_DYNAMIC) + boxes(PACKED, TENSOR_ANY),
        scheme="quantdispatch.schemes.wna8_int:WNA8Int",
        differs={
            "sglang": {"expects int8 `weight`, finds packed `weight_packed`": W8_CHANNEL},
            "vllm": {
                "leaves inputs unquantized in every kernel but Humming's": When(
                    weights=Args(strategy={"channel", "group"}), inputs=Args(strategy="token", symmetric=True)
                )
            },
        },
    ),
)
