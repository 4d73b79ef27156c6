"""vLLM 0.32.0: all its cases, and those of heads, embeddings, attention and the cache: sections (a3) and (a4)."""

from __future__ import annotations

from ..domains import not_in
from ..predicates import Args
from ..values import ABSENT as Absent
from .case import Engine, EngineCase, Fault, Seen
from .parts import OUTPUTS, SCALES, UNQUANTIZED_INPUTS, both, read_as
from .vllm_linear import LINEAR, PARSING
from .vllm_moe import MOE
from .vllm_parts import INT_WEIGHTS

_ANY_INT = Seen(weights=Args(**INT_WEIGHTS))
_BY_CLASS = Fault("takes no class for the head, loads it as unquantized and finds its tensors unknown", Seen())
_RAISES = Fault("takes the embedding's method for the head, whose apply() raises", Seen())
_EMBEDDING_FAULTS = (
    read_as("pack-quantized"),
    Fault("loads no zero points of the weights", Seen(weights=Args(symmetric=False))),
    Fault(
        "unpacks 3, 5, 6 and 7 bits as compressed-tensors wrote them up to 0.17, padded",
        Seen(weights=Args(num_bits={3, 5, 6, 7})),
    ),
    Fault("cannot unpack weights of other than 2 to 8 bits", Seen(weights=Args(num_bits=not_in(set(range(2, 9)))))),
    SCALES,
    OUTPUTS,
)


def _head() -> tuple[EngineCase, ...]:
    """The chain of linear layers, but a ``ValueError`` counts as no scheme: then the rule of embeddings is asked."""
    cases = [
        EngineCase(
            "found by its class", Seen(target="class"), "UnquantizedEmbeddingMethod", same_as=(), faults=(_BY_CLASS,)
        )
    ]
    for case in LINEAR:
        asked = both(case.predicate, _ANY_INT)
        if case.error == "ValueError" and not all(box.empty for box in asked.boxes):
            cases.append(
                EngineCase(
                    f"{case.name}, asked as an embedding",
                    asked,
                    "CompressedTensorsEmbeddingWNA16Int",
                    faults=(_RAISES,),
                )
            )
        cases.append(case)
    return tuple(cases)


EMBEDDING = (
    EngineCase(
        "integers per channel or group",
        _ANY_INT,
        "CompressedTensorsEmbeddingWNA16Int",
        same_as=("wNa16_int",),
        faults=(*_EMBEDDING_FAULTS, UNQUANTIZED_INPUTS),
    ),
    EngineCase("anything else", Seen(), error="ValueError"),
)

#: The config's scheme is looked at whatever it says of ``dynamic`` (a4).
CACHE = (
    EngineCase("a strategy that is left out", Seen(strategy_given=False), error="ValueError"),
    EngineCase(
        "fp8, one scale for the cache or for each head",
        Seen(inputs=Args(type="float", num_bits=8, strategy={"tensor", "attn_head"}, symmetric=True)),
        "CompressedTensorsKVCacheMethod",
        same_as=("kv_fp8",),
        faults=(
            Fault(
                "uses stored scales, though they are to be made at run time", Seen(inputs=Args(dynamic={True, "local"}))
            ),
            Fault(
                "gives the cache plain scales, whatever the scale dtype",
                Seen(inputs=Args(scale_dtype=not_in({None, "bfloat16", "float16", "float32"}))),
            ),
        ),
    ),
    EngineCase("anything else", Seen(), error="NotImplementedError"),
)

ATTENTION = (
    EngineCase(
        "a group for attention alone",
        Seen(attention_group=True),
        "Attention",
        faults=(Fault("drops the group: queries, keys and values stay unquantized", Seen()),),
    ),
    EngineCase("a group without weights", Seen(weights=Absent), error="ValidationError"),
    EngineCase("a group with weights", Seen(), error="ValidationError"),
)

VLLM = Engine(
    "vllm",
    "vLLM 0.32.0",
    {
        "linear": (*PARSING, *LINEAR),
        "moe": (*PARSING, *MOE),
        "lm_head": (*PARSING, *_head()),
        "embedding": (*PARSING, *EMBEDDING),
        "kv_cache": CACHE,
        "attention": ATTENTION,
    },
    faults=(
        Fault("transforms linear layers only", Seen(kind={"moe", "lm_head", "embedding"}, online_transforms=True)),
    ),
    devices=("cpu", "cuda"),
)
