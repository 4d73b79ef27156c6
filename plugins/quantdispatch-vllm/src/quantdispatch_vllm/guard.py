"""Is this a vLLM that the adapter was made for? If not it has to start as it would without us, and say why."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import packages_distributions, version

#: the first release that the adapter is made for, and the first that it is not
FIRST, BEYOND = (0, 32), (0, 33)
_WARNED = "QUANTDISPATCH_VLLM_WARNED"
_LAYERS = "vllm.model_executor.layers"
_CONFIG = f"{_LAYERS}.quantization.compressed_tensors.compressed_tensors"

#: what the adapter calls or derives from: attribute paths, each with parameters that it needs where it is called
NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    f"{_LAYERS}.quantization": {"register_quantization_config": ("quantization",), "get_quantization_config": ()},
    _CONFIG: {
        "CompressedTensorsConfig.from_config": ("config",),
        "CompressedTensorsConfig.get_quant_method": ("layer", "prefix"),
        "CompressedTensorsConfig.apply_vllm_mapper": ("hf_to_vllm_mapper",),
        "CompressedTensorsConfig.maybe_update_config": ("model_name",),
        "CompressedTensorsConfig._get_scheme_from_parts": ("weight_quant", "input_quant", "output_quant", "format"),
        "CompressedTensorsConfig._quantization_scheme_map_from_config": ("config",),
        "CompressedTensorsConfig._check_scheme_supported": ("min_capability",),
        "CompressedTensorsLinearMethod.create_weights": ("layer", "output_partition_sizes", "params_dtype"),
        "CompressedTensorsKVCacheMethod": (),
    },
    f"{_LAYERS}.linear": {
        "LinearBase": (),
        "LinearMethodBase": (),
        "UnquantizedLinearMethod": (),
        "register_weight_loader_v2_supported_method": (),
    },
    f"{_LAYERS}.vocab_parallel_embedding": {
        "ParallelLMHead": (),
        "VocabParallelEmbedding": (),
        "UnquantizedEmbeddingMethod.tie_weights": ("layer", "embed_tokens"),
    },
    f"{_LAYERS}.fused_moe": {"RoutedExperts": ()},
    f"{_LAYERS}.fused_moe.fused_moe_method_base": {
        "FusedMoEMethodBase.apply": ("layer", "x", "topk_weights", "topk_ids"),
        "FusedMoEMethodBase.create_weights": ("num_experts", "hidden_size", "intermediate_size_per_partition"),
    },
}


def obstacle() -> str | None:
    """Why the adapter cannot work with the installed vLLM, or ``None``."""
    found = installed()
    if found is None:
        return "no vLLM is installed"
    numbers = _numbers(found)
    window = f"{FIRST[0]}.{FIRST[1]}"
    if numbers is None:
        return f"vLLM has version {found!r}, which is none to compare; {window} is needed"
    if numbers < FIRST:
        return f"vLLM {found} is too old; {window} is needed"
    if numbers >= BEYOND:
        return f"vLLM {found} is newer than this adapter, which is for {window}; a newer quantdispatch-vllm may know it"
    return missing(NEEDED)


def installed() -> str | None:
    """The version of whatever distribution brings the package vllm."""
    names = packages_distributions().get("vllm")
    if not names:
        return None
    return version(next((name for name in names if name.startswith("vllm")), names[0]))


def missing(needed: Mapping[str, Mapping[str, tuple[str, ...]]]) -> str | None:
    """The first thing that is not there, or not as it was, in words."""
    for module, attributes in needed.items():
        try:
            root = import_module(module)
        except Exception as error:  # a broken installation may raise anything
            return f"{module} cannot be imported: {type(error).__name__}: {error}"
        for path, parameters in attributes.items():
            found = root
            for name in path.split("."):
                found = getattr(found, name, None)
            if found is None:
                return f"{module} has no {path}"
            lacking = [name for name in parameters if name not in _parameters(found)]
            if lacking:
                return f"{module}.{path} takes no {', '.join(lacking)}"
    return None


def warn_once(reason: str) -> None:
    """One line, however many processes vLLM starts: they inherit the environment."""
    if os.environ.get(_WARNED) == "1":
        return
    os.environ[_WARNED] = "1"
    logging.getLogger("vllm.plugins.quantdispatch").warning(
        "quantdispatch is left out: %s. vLLM goes on without it; QUANTDISPATCH_VLLM=0 silences this.",
        " ".join(reason.split()),
    )


def _numbers(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return None if match is None else (int(match[1]), int(match[2]))


def _parameters(function: object) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return frozenset()
