"""vLLM's config of compressed-tensors checkpoints, with quantdispatch's registry in the place of its chains of ``if``.

It derives from vLLM's class, because models and other code ask for that class, and keeps its state what vLLM's is:
configs are pickled to every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.platforms import current_platform

from quantdispatch.engines.adapters.checkpoint import planned_layers, readable_groups
from quantdispatch.engines.adapters.layers import LayerTable, Members
from quantdispatch.registry.config_models import ConfigGroup
from quantdispatch.registry.errors import ConfigError

from . import policy, settings
from .linear import QuantDispatchLinearMethod, VllmFirstLinearMethod
from .report import LOG, Report
from .vocabulary import DenseHeadMethod, QuantDispatchEmbeddingMethod, QuantDispatchHeadMethod

METHOD = "compressed-tensors"
#: what vLLM adds to the block for itself
_VLLMS_OWN = ("total_num_heads", "total_num_kv_heads")
#: not pickled: made again where it is needed
_MADE = ("_table", "_report", "_mapper")


def take_over() -> None:
    """Every checkpoint of compressed-tensors is read by :class:`QuantDispatchConfig` from here on."""
    settings.order()  # a wrong value is to be told before a model is loaded
    import_module(f"{__package__}.experts")  # what is imported for a model with experts must fail here if it does
    register_quantization_config(METHOD)(QuantDispatchConfig)


class QuantDispatchConfig(CompressedTensorsConfig):  # type: ignore[misc]
    """``raw``: the block of config.json as it was before vLLM changed it, ``None`` where the config was not made of one
    but by its parts, and is vLLM's own; ``model``: the folder or hub id."""

    raw: dict[str, Any] | None = None
    model: str = ""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantDispatchConfig:
        """Raises ``ConfigError`` for a block that cannot be read, or whose layers vLLM would get wrongly."""
        raw = {key: deepcopy(value) for key, value in config.items() if key not in _VLLMS_OWN}
        table = LayerTable(raw)
        theirs = {
            **config,
            "config_groups": {group.name: _as_dict(group) for group in table.config.groups if group.weights},
            "ignore": list(table.config.ignore),
            "format": table.config.format,
            "sparsity_config": None,
        }
        self: QuantDispatchConfig = super().from_config(theirs)
        self.raw = raw
        return self

    @classmethod
    def _quantization_scheme_map_from_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """vLLM's own map, of the groups that it can read."""
        return readable_groups(config, super()._quantization_scheme_map_from_config, LOG)

    def maybe_update_config(self, model_name: str, *args: Any, **kwargs: Any) -> None:
        self.model = model_name

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        super().apply_vllm_mapper(hf_to_vllm_mapper)
        self._mapper = hf_to_vllm_mapper

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _MADE}

    # -- what layers are

    @property
    def table(self) -> LayerTable:
        made = self.__dict__.get("_table")
        if made is None:
            device, dtype = current_device(), _dtype()
            mapper = self.__dict__.get("_mapper")
            stored = planned_layers(self.model, mapper and mapper._map_name, device=device, dtype=dtype, log=LOG)
            made = self.__dict__["_table"] = LayerTable(
                self._renamed(), device=device, dtype=dtype, fusions=self.packed_modules_mapping, stored=stored
            )
        return made

    @property
    def report(self) -> Report:
        return self.__dict__.setdefault("_report", Report(self.model))

    def _renamed(self) -> dict[str, Any]:
        """The block with the names of layers in it as vLLM has them, as vLLM does it for its own."""
        raw, mapper = self.raw or {}, self.__dict__.get("_mapper")
        if mapper is None:
            return dict(raw)

        def rename(entries: Any) -> list[str]:
            paths = [entry if "." not in entry or entry.startswith("re:") else None for entry in entries]
            return [
                kept if kept is not None else mapper._map_name(entry) or entry
                for kept, entry in zip(paths, entries, strict=True)
            ]

        groups = {
            name: {**group, "targets": rename(group["targets"])} if isinstance(group, Mapping) else rename(group)
            for name, group in (raw.get("config_groups") or {}).items()
        }
        return {**raw, "config_groups": groups, "ignore": rename(raw.get("ignore") or [])}

    # -- what vLLM asks

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if self.raw is None:
            return super().get_quant_method(layer, prefix)
        if isinstance(layer, LinearBase):
            return self._linear(layer, prefix)
        if isinstance(layer, ParallelLMHead):
            return self._head(layer, prefix)
        if isinstance(layer, VocabParallelEmbedding):
            return self._embedding(layer, prefix)
        if isinstance(layer, RoutedExperts):
            from .experts import experts_method

            return experts_method(self, layer, prefix)
        if isinstance(layer, Attention):
            cache = self.table.cache(prefix)
            if cache is not None and cache.error is not None:
                raise cache.error
        return super().get_quant_method(layer, prefix)

    def _linear(self, layer: LinearBase, prefix: str) -> Any:
        module = self.table.resolve(prefix, "linear", _classes(layer))
        if any(resolved.transforms for resolved in module.layers):
            return self._transformed(module, layer, prefix)
        choice = policy.choose(module, current_device(), settings.order())
        if choice == "dense":
            return UnquantizedLinearMethod()
        ours = QuantDispatchLinearMethod(module, current_device(), self.report)
        if choice == "theirs" and self._give_scheme(layer, module):
            return VllmFirstLinearMethod(self, ours)
        return ours

    def _give_scheme(self, layer: torch.nn.Module, module: Members) -> bool:
        """Put vLLM's own scheme object on the layer. Some choose their kernel when they are made, and refuse."""
        first = module.one()
        try:
            scheme = self._get_scheme_from_parts(
                weight_quant=_theirs(first.weights), input_quant=_theirs(first.inputs),
                output_quant=_theirs(first.outputs), format=first.format, layer_name=module.name,
            )  # fmt: skip
            self._check_scheme_supported(scheme.get_min_capability())
        except Exception as refusal:  # ValueError, NotImplementedError, bare assertions, and RuntimeError
            self.report.unable(module, refusal)
            return False
        if type(scheme).__name__ not in first.equivalents[policy.ENGINE]:
            return False
        layer.scheme = scheme
        return True

    def _transformed(self, module: Members, layer: LinearBase, prefix: str) -> Any:
        """Rotations at run time are vLLM's to apply; only what it computes as the config says can have them."""
        module.check()
        if not policy.known_to_vllm(module) and module.quantized:
            raise ConfigError(
                "has transforms at run time, which vLLM applies around its own schemes only, and it has none for "
                f"{module.first.scheme}", layer=prefix, field="transform_config",
                observed=module.first.scheme, required="a scheme that vLLM has",
                remedy="load the model with transformers, or fold the transforms into the weights", code="QD516",
            )  # fmt: skip
        return super().get_quant_method(layer, prefix)

    def _head(self, layer: ParallelLMHead, prefix: str) -> Any:
        module = self.table.resolve(prefix, "lm_head", _classes(layer))
        device = current_device()
        if self._tied() or not module.quantized:
            return DenseHeadMethod() if device == "cpu" and settings.order() != "last" else None
        if policy.choose(module, device, settings.order()) == "theirs" and self._give_scheme(layer, module):
            return VllmFirstLinearMethod(self, QuantDispatchHeadMethod(module, device, self.report))
        return QuantDispatchHeadMethod(module, device, self.report)

    def _embedding(self, layer: VocabParallelEmbedding, prefix: str) -> Any:
        module = self.table.resolve(self._embedding_name(prefix), "embedding", _classes(layer))
        module.check()
        if not module.quantized:
            return None
        return QuantDispatchEmbeddingMethod(module, current_device(), self.report)

    def _embedding_name(self, prefix: str) -> str:
        """Some models build their embedding without telling its name. Then it is the checkpoint's only one, or else
        goes by the usual name."""
        if prefix:
            return prefix
        known = [name for name, layer in self.table.stored.items() if layer.kind == "embedding"]
        return known[0] if len(known) == 1 else "model.embed_tokens"

    def _tied(self) -> bool:
        config = get_current_vllm_config_or_none()
        model = None if config is None else config.model_config
        return bool(model is not None and getattr(model.hf_text_config, "tie_word_embeddings", False))


def current_device() -> str:
    """The device in quantdispatch's words: ``cpu``, ``cuda:sm90``, ``rocm``."""
    if current_platform.is_cpu():
        return "cpu"
    if current_platform.is_rocm():
        return "rocm"
    capability = current_platform.get_device_capability()
    if current_platform.is_cuda() and capability is not None:
        return f"cuda:sm{capability.to_int()}"
    raise ConfigError(
        f"quantdispatch knows no device like {current_platform.device_name}", field="device",
        observed=current_platform.device_name, required="cpu, cuda or rocm",
        remedy=f"{settings.ENABLED}=0 leaves vLLM as it is", code="QD516",
    )  # fmt: skip


def _dtype() -> str:
    config = get_current_vllm_config_or_none()
    dtype = torch.get_default_dtype() if config is None or config.model_config is None else config.model_config.dtype
    return str(dtype).removeprefix("torch.")


def _classes(layer: torch.nn.Module) -> tuple[str, ...]:
    return tuple(c.__name__ for c in type(layer).__mro__ if issubclass(c, torch.nn.Module))[:-1]


def _as_dict(group: ConfigGroup) -> dict[str, Any]:
    sides = {"weights": group.weights, "input_activations": group.inputs, "output_activations": group.outputs}
    args = {side: None if value is None else value.to_json() for side, value in sides.items()}
    return {"targets": list(group.targets), "format": group.format, **args}


def _theirs(args: Any) -> QuantizationArgs | None:
    return None if args is None else QuantizationArgs.model_validate(args.to_json())
