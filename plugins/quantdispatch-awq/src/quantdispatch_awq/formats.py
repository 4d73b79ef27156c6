"""The names of the formats, and what they can hold. A format is all that tells how tensors are laid out.

``awq-gemm``, ``awq-gemv``: AutoAWQ (``modules/linear/gemm.py``, ``gemv.py``). ``gptq``: AutoGPTQ, GPTQModel, optimum;
zero points are stored less one. ``gptq-v2``: zero points as they are. ``gptq-words``: what GPTQModel calls ``gptq``
where weights are asymmetric: ones are subtracted from whole words, so a zero point of 0 borrows from its neighbour.
"""

from __future__ import annotations

GEMM, GEMV = "awq-gemm", "awq-gemv"
GPTQ, GPTQ_V2, GPTQ_WORDS = "gptq", "gptq-v2", "gptq-words"

AWQ_FORMATS = {GEMM, GEMV}
GPTQ_FORMATS = {GPTQ, GPTQ_V2, GPTQ_WORDS}
AWQ_BITS = 4
#: GPTQModel stores 5, 6 and 7 bits in planes of bits, another layout
GPTQ_BITS = {2, 3, 4, 8}

#: which column of eight each nibble of a word holds, from the lowest on
GEMM_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def gemv_width(groups: int, group_size: int) -> int:
    """Words of zero points a row: 8 groups a word, and whole units of 1, 2 or 4 words; the rest stays zero."""
    unit = 1 if group_size >= 128 else 2 if group_size == 64 else 4
    words = -(-groups // 8)
    return -(-words // unit) * unit
