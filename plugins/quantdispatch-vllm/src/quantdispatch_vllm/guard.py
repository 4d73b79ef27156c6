"""Is this a vLLM that the adapter was made for?"""

from __future__ import annotations

from importlib.metadata import packages_distributions, version

from quantdispatch.engines.adapters.guard import Guard, Needed, missing

from .settings import ENABLED

GUARD = Guard("vLLM", ENABLED, first=(0, 32), beyond=(0, 33), log="vllm.plugins.quantdispatch")
_LAYERS = "vllm.model_executor.layers"
_CREATED = (
    "layer", "input_size_per_partition", "output_partition_sizes", "input_size", "output_size", "params_dtype",
)  # fmt: skip

#: what the adapter calls or derives from, as it is in vLLM 0.32
NEEDED: Needed = {
    f"{_LAYERS}.quantization": {
        "register_quantization_config": ("quantization",),
        "get_quantization_config": ("quantization",),
    },
    f"{_LAYERS}.quantization.compressed_tensors.compressed_tensors": {
        "CompressedTensorsConfig.from_config": ("config",),
        "CompressedTensorsConfig.get_quant_method": ("layer", "prefix"),
        "CompressedTensorsConfig.apply_vllm_mapper": ("hf_to_vllm_mapper",),
        "CompressedTensorsConfig.maybe_update_config": ("model_name",),
        "CompressedTensorsConfig._get_scheme_from_parts": (
            "weight_quant", "input_quant", "output_quant", "format", "layer_name",
        ),
        "CompressedTensorsConfig._quantization_scheme_map_from_config": ("config",),
        "CompressedTensorsConfig._check_scheme_supported": ("min_capability",),
        "CompressedTensorsLinearMethod.create_weights": _CREATED,
        "CompressedTensorsKVCacheMethod": ("quant_config",),
    },
    f"{_LAYERS}.linear": {
        "LinearBase": None,
        "LinearMethodBase": None,
        "UnquantizedLinearMethod": (),
        "register_weight_loader_v2_supported_method": ("cls",),
    },
    f"{_LAYERS}.vocab_parallel_embedding": {
        "ParallelLMHead": None,
        "VocabParallelEmbedding": None,
        "UnquantizedEmbeddingMethod.tie_weights": ("layer", "embed_tokens"),
    },
    f"{_LAYERS}.fused_moe": {"RoutedExperts": None},
    f"{_LAYERS}.fused_moe.fused_moe_method_base": {
        "FusedMoEMethodBase.apply": (
            "layer", "x", "topk_weights", "topk_ids", "shared_experts", "shared_experts_input",
        ),
        "FusedMoEMethodBase.create_weights": (
            "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype",
        ),
    },
}  # fmt: skip


def obstacle() -> str | None:
    """Why the adapter cannot work with the installed vLLM, or ``None``."""
    return GUARD.release(installed()) or missing(NEEDED)


def installed() -> str | None:
    """The version of whatever distribution brings the package vllm."""
    names = packages_distributions().get("vllm")
    if not names:
        return None
    return version(next((name for name in names if name.startswith("vllm")), names[0]))
