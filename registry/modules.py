"""Which modules a checkpoint has, as far as the names and shapes of its tensors tell.

A safetensors file names tensors, not classes. A module with a 2-D ``weight``, or a packed one, is taken for a Linear
unless its name says otherwise; what was inferred is said in the plan and can be overridden with ``modules=``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .scheme import TensorInfo
from .stored_tensors import Described

LINEAR = ("Linear",)
EMBEDDING = ("Embedding",)

_EMBEDDINGS = frozenset(
    {
        *("embed_tokens", "embed_tokens_per_layer", "tok_embeddings", "word_embeddings", "token_embedding"),
        *("position_embeddings", "position_embedding", "pos_embedding", "token_type_embeddings", "embed_positions"),
        *("wte", "wpe", "embed_in", "embedding", "embeddings", "shared", "relative_attention_bias"),
    }
)
_HEADS = frozenset({"lm_head", "embed_out"})
#: some decoders call their head plainly ``output`` or ``head``; deeper down that is the name of many other things
_SHORT_HEAD = re.compile(r"(?:model\.)?(?:output|head)")
_EXPERT = re.compile(r"(?:^|\.)experts\.\d+\.")
#: the projections that fill the cache of the attention module above them
PROJECTIONS = frozenset(
    {
        *("k_proj", "v_proj", "qkv_proj", "kv_b_proj", "kv_a_proj_with_mqa", "query_key_value", "Wqkv", "c_attn"),
        *("wk", "wkv", "wv", "wkv_b"),
    }
)
#: towers whose attention keeps no cache
_CACHELESS = frozenset(
    {
        "visual",
        "vision_tower",
        "vision_model",
        "vision_encoder",
        "audio_tower",
        "audio_model",
        "audio_encoder",
        "encoder",
    }
)
#: models whose projections are of a class of transformers with a transposed 2-D weight, which is not a Linear
_CONV1D_MODELS = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "gpt2-double-heads"})
_CONV1D = frozenset({"c_attn", "c_proj", "c_fc", "q_attn"})

#: what quantization stores beside or instead of ``weight``
QUANTIZED_NAMES = frozenset(
    {
        *("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "weight_global_scale"),
        *("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point"),
        *("weight_scale_inv", "weight_scale_2", "input_scale_inv", "activation_scale"),
        *("compressed", "bitmask", "row_offsets"),
        *("q_scale", "k_scale", "v_scale", "q_zero_point", "k_zero_point", "v_zero_point", "prob_output_scale"),
    }
)
CACHE_NAMES = frozenset({"k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point"})
#: what balances the load of experts: it is stored beside the weight of a router, which is a class of its own
_ROUTER_BIAS = "e_score_correction_bias"
_QUANTIZED_SUFFIXES = ("_packed", "_zero_point", "_g_idx", "_global_scale", "_scale_inv")
_QUANTIZED_DTYPES = frozenset({"I8", "U8", "F8_E4M3", "F8_E5M2", "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "I32", "I16"})


@dataclass(slots=True)
class Module:
    """One module. ``kind``: as in :data:`.facts.KINDS`, or ``None`` for what is never quantized (norms, convolutions).

    ``classes``: the MRO as class names, as far as known. ``inferred``: how kind and class were found, for people.
    ``tensors``: by local name; empty where there are none to look at.
    """

    name: str
    kind: str | None
    classes: tuple[str, ...]
    inferred: str = ""
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)


def classify(
    name: str,
    own: Mapping[str, Described],
    conv1d: bool,
    attention: tuple[str, ...],
    matrices: frozenset[str] = frozenset(),
) -> tuple[str | None, tuple[str, ...], str]:
    """Kind, classes and how they were found, of a module from its name and what it stores.

    ``conv1d``: see :func:`has_conv1d`; ``attention``: the class of attention modules; ``matrices``: names of tensors
    that hold weights in formats of plugins.
    """
    weight = own.get("weight")
    if "weight_packed" in own:
        what = "weight_packed"
    elif matrices and not matrices.isdisjoint(own):
        what = min(matrices.intersection(own))
    elif weight is not None and len(weight.shape) == 2 and _ROUTER_BIAS not in own:
        what = "2-D weight"
    elif CACHE_NAMES.intersection(own) and weight is None:
        return "attention", attention, "attention, from its cache scales"
    else:
        return None, (), ""
    kind, classes = named_kind(name)
    if kind == "linear" and conv1d and name.rpartition(".")[2] in _CONV1D:
        return None, ("Conv1D",), ""
    return kind, classes, f"{classes[0]}, from its {what}"


def has_conv1d(config: Mapping[str, Any]) -> bool:
    """Is the model one whose projections are stored transposed, and are no Linear?"""
    return any(part.get("model_type") in _CONV1D_MODELS for part in config_parts(config))


def is_head(name: str) -> bool:
    """Does the name say that this is the output projection onto the vocabulary?"""
    return name.rpartition(".")[2] in _HEADS or _SHORT_HEAD.fullmatch(name) is not None


def named_kind(name: str) -> tuple[str, tuple[str, ...]]:
    """Kind and class of a module that has a weight matrix, from its name alone."""
    last = name.rpartition(".")[2]
    if last in _EMBEDDINGS or name in ("embed", "model.embed"):
        return "embedding", EMBEDDING
    if is_head(name):
        return "lm_head", LINEAR
    return ("moe" if _EXPERT.search(name) or last == "experts" else "linear"), LINEAR


def kind_of_classes(name: str, classes: Sequence[str]) -> str | None:
    """The kind of a module whose MRO is known. Only these classes are ever quantized."""
    if "Embedding" in classes:
        return "embedding"
    if "Linear" in classes or "LinearBase" in classes:
        kind, _ = named_kind(name)
        return "linear" if kind == "embedding" else kind
    return "attention" if any("attention" in c.lower() for c in classes) else None


def modules_above(names: Iterable[str]) -> Iterator[str]:
    """Every module above any of those, once; it may be one of them."""
    seen: set[str] = set()
    for name in names:
        while (name := name.rpartition(".")[0]) and name not in seen:
            seen.add(name)
            yield name


def given_modules(given: Mapping[str, str | Sequence[str]]) -> dict[str, Module]:
    """``modules=`` as modules without tensors. Raises ``ConfigError`` for what is not a name and class names."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            "modules maps module names to class names", field="modules", observed=given, required="a dict", code="QD524"
        )
    modules = {}
    for name, value in given.items():
        classes = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
        if not isinstance(name, str) or not classes or not all(isinstance(c, str) and c for c in classes):
            raise ConfigError(
                "modules maps module names to class names", field="modules", observed={name: value},
                required="{'model.layers.0.mlp.down_proj': 'Linear'} or a tuple of class names, most derived first",
                code="QD524",
            )  # fmt: skip
        kind = kind_of_classes(name, classes)
        if kind is None and isinstance(value, str):
            kind = named_kind(name)[0]  # one name says nothing about what it derives from
        modules[name] = Module(name, kind, classes, f"{classes[0]}, as given")
    return modules


def is_cached_attention(name: str) -> bool:
    """Does a module of this name attend with a cache? ``attn`` has to stand in the last part of it."""
    last = name.lower().rpartition(".")[2]
    return ("attn" in last or "attention" in last) and "linear" not in last and not in_tower(name)


def in_tower(name: str) -> bool:
    """Is the module part of a vision or audio tower?"""
    return not _CACHELESS.isdisjoint(name.lower().split("."))


def quantized_names(tensors: Mapping[str, Described], more: Container[str] = ()) -> list[str]:
    """Local names of a module's tensors that only quantization stores; ``more``: those of formats of plugins."""
    found = [
        name
        for name, entry in tensors.items()
        if name in QUANTIZED_NAMES
        or name in more
        or name.endswith(_QUANTIZED_SUFFIXES)
        or (name == "weight" and entry.dtype in _QUANTIZED_DTYPES)
        or (name.endswith("_scale") and (base := tensors.get(name[:-6])) and base.dtype in _QUANTIZED_DTYPES)
    ]
    return sorted(found)


def config_parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A config.json and the configs of its parts, the language model's first."""
    # a dict given to plan() may have keys that no JSON has
    nested = [
        part
        for key, part in config.items()
        if isinstance(key, str) and key.endswith("_config") and "quant" not in key and isinstance(part, Mapping)
    ]
    return [*sorted(nested, key=lambda part: "vocab_size" not in part), config]


def attention_class(config: Mapping[str, Any]) -> str:
    """``LlamaAttention`` for ``LlamaForCausalLM``: the class that transformers' models name so."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    return f"{first.partition('For')[0] if isinstance(first, str) else ''}Attention"
