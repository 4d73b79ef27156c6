"""Is this an SGLang that the adapter was made for? If not it has to start as it would without us, and say why."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

#: the first release that the adapter is made for, and the first that it is not
FIRST, BEYOND = (0, 5, 23), (0, 5, 24)
_WARNED = "QUANTDISPATCH_SGLANG_WARNED"
_LAYERS = "sglang.srt.layers"
_CONFIG = f"{_LAYERS}.quantization.compressed_tensors.compressed_tensors"

#: what the adapter calls or derives from: attribute paths, each with parameters that it needs where it is called
NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    f"{_LAYERS}.quantization": {
        "QUANTIZATION_METHODS": (),
        "BASE_QUANTIZATION_METHODS": (),
        "CPU_QUANTIZATION_METHODS": (),
        "get_quantization_config": ("quantization",),
    },
    _CONFIG: {
        "CompressedTensorsConfig.from_config": ("config",),
        "CompressedTensorsConfig.get_quant_method": ("layer", "prefix"),
        "CompressedTensorsConfig.apply_weight_name_mapper": ("hf_to_sglang_mapper",),
        "CompressedTensorsFusedMoEMethod": (),
        "CompressedTensorsKVCacheMethod.is_supported_scheme": ("kv_cache_scheme",),
    },
    f"{_LAYERS}.quantization.compressed_tensors.schemes": {
        "CompressedTensorsWNA16MoE.create_weights": ("layer", "num_experts", "hidden_size"),
        "CompressedTensorsWNA16MoE.process_weights_after_loading": ("layer",),
    },
    f"{_LAYERS}.quantization.base_config": {
        "LinearMethodBase.create_weights": ("layer", "output_partition_sizes", "params_dtype"),
        "FusedMoEMethodBase.create_weights": ("num_experts", "hidden_size", "intermediate_size_per_partition"),
        "FusedMoEMethodBase.create_moe_runner": ("layer", "moe_runner_config"),
        "FusedMoEMethodBase.apply": ("layer", "dispatch_output"),
    },
    f"{_LAYERS}.quantization.marlin_utils": {"marlin_zero_points": ("zp", "size_k", "size_n", "num_bits")},
    f"{_LAYERS}.parameter": {"BasevLLMParameter": ("data", "weight_loader")},
    f"{_LAYERS}.linear": {"LinearBase": (), "QKVParallelLinear": (), "RowParallelLinear": ()},
    f"{_LAYERS}.vocab_parallel_embedding": {"ParallelLMHead": (), "VocabParallelEmbedding": ()},
    f"{_LAYERS}.moe.fused_moe_triton": {
        "FusedMoE._weight_loader_impl": ("param", "loaded_weight", "weight_name", "shard_id", "expert_id"),
    },
    f"{_LAYERS}.moe.token_dispatcher": {"StandardCombineInput": ("hidden_states",)},
    "sglang.srt.distributed.utils": {"get_group_rank_size": ("group",)},
}
#: devices that neither quantdispatch's kernels nor its knowledge of SGLang's classes cover
FOREIGN = ("npu", "xpu", "mps", "hpu", "musa")


def obstacle() -> str | None:
    """Why the adapter cannot work with the installed SGLang, or ``None``."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        return "no SGLang is installed"
    numbers = _numbers(found)
    window = ".".join(map(str, FIRST))
    if numbers is None:
        return f"SGLang has version {found!r}, which is none to compare; {window} is needed"
    if numbers < FIRST:
        return f"SGLang {found} is too old; {window} is needed"
    if numbers >= BEYOND:
        return f"SGLang {found} is newer than this adapter, which is for {window}; a newer adapter may know it"
    return missing(NEEDED) or foreign_device()


def missing(needed: Mapping[str, Mapping[str, tuple[str, ...]]]) -> str | None:
    """The first thing that is not there, or not as it was, in words."""
    for module, attributes in needed.items():
        try:
            root = import_module(module)
        except Exception as error:  # a broken installation may raise anything
            return f"{module} cannot be imported: {type(error).__name__}: {error}"
        for path, parameters in attributes.items():
            found: object = root
            for name in path.split("."):
                found = getattr(found, name, None)
            if found is None:
                return f"{module} has no {path}"
            lacking = [name for name in parameters if name not in _parameters(found)]
            if lacking:
                return f"{module}.{path} takes no {', '.join(lacking)}"
    return None


def foreign_device() -> str | None:
    """The kind of device that SGLang runs on here, where quantdispatch knows nothing of it."""
    utils = import_module("sglang.srt.utils")
    for name in FOREIGN:
        asks = getattr(utils, f"is_{name}", None)
        if asks is not None and asks():
            return f"it knows no {name} devices"
    return None


def warn_once(reason: str) -> None:
    """One line, however many processes SGLang starts: they inherit the environment."""
    if os.environ.get(_WARNED) == "1":
        return
    os.environ[_WARNED] = "1"
    logging.getLogger("sglang.srt.plugins.quantdispatch").warning(
        "quantdispatch is left out: %s. SGLang goes on without it; QUANTDISPATCH_SGLANG=0 silences this.",
        " ".join(reason.split()),
    )


def _numbers(text: str) -> tuple[int, int, int] | None:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def _parameters(function: object) -> frozenset[str]:
    if isinstance(function, type) and hasattr(function, "_fields"):
        return frozenset(function._fields)
    target = function.__init__ if isinstance(function, type) else function
    try:
        return frozenset(inspect.signature(target).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return frozenset()
