"""Is this an SGLang, and a device, that the adapter was made for?"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from quantdispatch.engines.adapters.guard import Guard, Needed, missing

GUARD = Guard(
    "SGLang", "QUANTDISPATCH_SGLANG", first=(0, 5, 23), beyond=(0, 5, 24), log="sglang.srt.plugins.quantdispatch"
)
_LAYERS = "sglang.srt.layers"
_TENSORS = f"{_LAYERS}.quantization.compressed_tensors"
_EXPERTS = ("layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype")

#: what the adapter calls or derives from, as it is in SGLang 0.5.23
NEEDED: Needed = {
    f"{_LAYERS}.quantization": {
        "QUANTIZATION_METHODS": None,
        "BASE_QUANTIZATION_METHODS": None,
        "CPU_QUANTIZATION_METHODS": None,
        "get_quantization_config": ("quantization",),
    },
    f"{_TENSORS}.compressed_tensors": {
        "CompressedTensorsConfig.from_config": ("config",),
        "CompressedTensorsConfig.get_quant_method": ("layer", "prefix"),
        "CompressedTensorsConfig.apply_weight_name_mapper": ("hf_to_sglang_mapper",),
        "CompressedTensorsConfig._quantization_scheme_map_from_config": ("config",),
        "CompressedTensorsFusedMoEMethod": ("quantization_config",),
        "CompressedTensorsKVCacheMethod.is_supported_scheme": ("kv_cache_scheme",),
    },
    f"{_TENSORS}.schemes": {
        "CompressedTensorsWNA16MoE.create_weights": _EXPERTS,
        "CompressedTensorsWNA16MoE.process_weights_after_loading": ("layer",),
    },
    f"{_LAYERS}.quantization.base_config": {
        "LinearMethodBase.create_weights": (
            "layer", "input_size_per_partition", "output_partition_sizes", "input_size", "output_size", "params_dtype",
        ),
        "FusedMoEMethodBase.create_weights": _EXPERTS,
        "FusedMoEMethodBase.create_moe_runner": ("layer", "moe_runner_config"),
        "FusedMoEMethodBase.apply": ("layer", "dispatch_output"),
    },
    f"{_LAYERS}.quantization.marlin_utils": {"marlin_zero_points": ("zp", "size_k", "size_n", "num_bits")},
    f"{_LAYERS}.parameter": {"BasevLLMParameter": ("data", "weight_loader")},
    f"{_LAYERS}.linear": {"LinearBase": None, "QKVParallelLinear": None, "RowParallelLinear": None},
    f"{_LAYERS}.vocab_parallel_embedding": {"ParallelLMHead": None, "VocabParallelEmbedding": None},
    f"{_LAYERS}.moe.fused_moe_triton": {
        "FusedMoE._weight_loader_impl": ("param", "loaded_weight", "weight_name", "shard_id", "expert_id"),
    },
    f"{_LAYERS}.moe.token_dispatcher": {"StandardCombineInput": ("hidden_states",)},
    "sglang.srt.utils": {},
    "sglang.srt.plugins.hook_registry": {"HookRegistry.register": ("target", "hook", "hook_type")},
}  # fmt: skip
#: devices that neither quantdispatch's kernels nor its knowledge of SGLang's classes cover
FOREIGN = ("npu", "xpu", "mps", "hpu", "musa")


def obstacle() -> str | None:
    """Why the adapter cannot work with the installed SGLang, or ``None``."""
    return GUARD.release(installed()) or missing(NEEDED) or foreign_device()


def installed() -> str | None:
    """SGLang's version."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def foreign_device() -> str | None:
    """The kind of device that SGLang runs on here, where quantdispatch knows nothing of it."""
    utils = import_module("sglang.srt.utils")
    for name in FOREIGN:
        asks = getattr(utils, f"is_{name}", None)
        if asks is not None and asks():
            return f"it knows no {name} devices"
    return None
