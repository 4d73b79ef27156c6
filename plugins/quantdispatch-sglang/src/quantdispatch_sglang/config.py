"""SGLang's config of compressed-tensors checkpoints, with quantdispatch's registry in place of its chains of ``if``.

It derives from SGLang's class, because models and other code ask for that class, and keeps its state what SGLang's is.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from sglang.srt.layers import quantization
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
    CompressedTensorsKVCacheMethod,
)
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from quantdispatch.engines.adapters.checkpoint import planned_layers, readable_groups
from quantdispatch.engines.adapters.fusion import USUAL, member_names
from quantdispatch.engines.adapters.layers import LayerTable, Members
from quantdispatch.engines.adapters.report import Report
from quantdispatch.registry.errors import ConfigError
from quantdispatch.registry.modules import in_tower
from quantdispatch.registry.plan import DTYPES

from . import device, policy
from .linear import QuantDispatchLinearMethod, first
from .report import LOG
from .theirs import SingleGroups, args_json
from .vocabulary import QuantDispatchEmbeddingMethod, QuantDispatchHeadMethod

METHOD = "compressed-tensors"
#: what SGLang adds to the block for itself
_SGLANGS_OWN = ("packed_modules_mapping", "hf_config", "linear_fp8_config", "requantization_method")
#: fused by models that do not say so
_FUSIONS: Mapping[str, tuple[str, ...]] = {**USUAL, "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa")}
#: made again where they are needed
_MADE = ("_table", "_report", "_single", "_mapper", "_entries")
_IN_MODEL = ("layers.", "embed_tokens")
_LOADERS = ("DefaultModelLoader", "LayeredModelLoader")
_reports: weakref.WeakSet[Report] = weakref.WeakSet()


def take_over() -> None:
    """Every checkpoint of compressed-tensors is read by :class:`QuantDispatchConfig` from here on."""
    import_module(f"{__package__}.routed")  # what is imported for a model with experts must fail here if it does
    for loader in _LOADERS:
        HookRegistry.register(f"sglang.srt.model_loader.loader.{loader}.load_model", _say, HookType.AFTER)
    for methods in (
        quantization.QUANTIZATION_METHODS,
        quantization.BASE_QUANTIZATION_METHODS,
        quantization.CPU_QUANTIZATION_METHODS,
    ):
        methods[METHOD] = QuantDispatchConfig


def _say(result: Any, *args: Any, **kwargs: Any) -> None:
    """After a model is loaded. ``None`` is returned, so that the result stays."""
    if device.speaks():
        for report in list(_reports):
            report.say()


class QuantDispatchConfig(CompressedTensorsConfig):  # type: ignore[misc]
    """``raw``: the block of config.json as it was before SGLang changed it; ``model``: the folder or hub id."""

    raw: dict[str, Any]
    model: str = ""
    #: the block stands in the config of the language model, and says nothing of the towers beside it
    text_only: bool = False

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: str | None) -> str | None:
        """Checkpoints of compressed-tensors are ours, whatever else would claim them, unless another method was asked
        for by name."""
        name = hf_quant_cfg.get("quant_method") if isinstance(hf_quant_cfg, Mapping) else None
        return METHOD if name == METHOD and user_quant in (None, METHOD) else None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantDispatchConfig:
        """Raises ``ConfigError`` for a block that cannot be read."""
        raw = {key: deepcopy(value) for key, value in config.items() if key not in _SGLANGS_OWN}
        table = LayerTable(raw)
        cache = table.config.kv_cache_scheme
        theirs = {
            **config,
            "config_groups": {
                group.name: {
                    "targets": list(group.targets),
                    "weights": args_json(group.weights),
                    "input_activations": args_json(group.inputs),
                    "format": table.config.effective_format(group),
                }
                for group in table.config.groups
                if group.weights is not None
            },
            "ignore": list(table.config.ignore),
            "format": table.config.format,
            "sparsity_config": None,
            # SGLang compares words, and does not know what a word that is missing stands for
            "kv_cache_scheme": None if cache is None else {"dynamic": False, **(args_json(cache) or {})},
        }
        self: QuantDispatchConfig = super().from_config(theirs)
        self.raw = raw
        whole = config.get("hf_config")
        self.model = str(getattr(whole, "_name_or_path", "") or "")
        self.text_only = not _has_block(whole) and _has_block(getattr(whole, "text_config", None))
        return self

    @classmethod
    def _quantization_scheme_map_from_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """SGLang's own map, of the groups that it can read."""
        return readable_groups(config, super()._quantization_scheme_map_from_config, LOG)

    def apply_weight_name_mapper(self, hf_to_sglang_mapper: Any) -> None:
        super().apply_weight_name_mapper(hf_to_sglang_mapper)
        self.__dict__["_mapper"] = hf_to_sglang_mapper
        self.__dict__.pop("_table", None)
        self.__dict__.pop("_entries", None)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and other processes make their own table."""
        mapper = self.__dict__.get("_mapper")
        kept = {name: value for name, value in self.__dict__.items() if name not in _MADE}
        return kept if mapper is None else {**kept, "_mapper": mapper}

    # -- what layers are

    @property
    def table(self) -> LayerTable:
        made = self.__dict__.get("_table")
        if made is None:
            where, dtype = device.current_device(), _dtype()
            mapper = self.__dict__.get("_mapper")
            rename = mapper and mapper._map_name
            stored = planned_layers(self.model, rename, device=where, dtype=dtype, log=LOG, block=self.raw)
            made = self.__dict__["_table"] = LayerTable(self._renamed(), device=where, dtype=dtype, stored=stored)
        return made

    @property
    def report(self) -> Report:
        made: Report | None = self.__dict__.get("_report")
        if made is None:
            made = self.__dict__["_report"] = Report(LOG, self.model)
            _reports.add(made)
        return made

    @property
    def single(self) -> SingleGroups:
        return self.__dict__.setdefault("_single", SingleGroups())

    def _renamed(self) -> dict[str, Any]:
        """The block with the names of layers in it as SGLang has them, as SGLang does it for its own."""
        mapper = self.__dict__.get("_mapper")
        if mapper is None:
            return self.raw
        groups = {
            name: {**group, "targets": mapper.apply_list(list(group["targets"]))}
            if isinstance(group, Mapping) and group.get("targets")
            else group
            for name, group in (self.raw.get("config_groups") or {}).items()
        }
        return {**self.raw, "config_groups": groups, "ignore": mapper.apply_list(list(self.raw.get("ignore") or []))}

    def resolve(self, prefix: str, kind: str, module: Any) -> Members:
        """What SGLang's module is made of: itself where the checkpoint or an entry of the config has its name, else the
        members that such a module usually has."""
        table, classes = self.table, [c.__name__ for c in type(module).__mro__ if issubclass(c, torch.nn.Module)]
        members: tuple[str, ...] = (prefix,)
        if prefix not in table.stored:
            members = member_names(prefix, {**_FUSIONS, **(self.packed_modules_mapping or {})})
        if len(members) > 1 and not any(member in table.stored for member in members):
            whole = table.layer(self._entry_of(prefix), kind, classes)
            if whole.name in (whole.target, whole.ignored_by):
                members = (prefix,)
        return table.resolve(prefix, kind, classes, [self._entry_of(member) for member in members])

    @property
    def _names(self) -> frozenset[str]:
        made: frozenset[str] | None = self.__dict__.get("_entries")
        if made is None:
            made = self.__dict__["_entries"] = _names_in(self.table)
        return made

    def _entry_of(self, name: str) -> str:
        """The layer's name, or what an entry of the config calls it that leaves the first parts of its name away: that
        of a part of a model may be written so, and SGLang takes it so. Where there are tensors they tell."""
        if self.table.stored:
            return name
        entries = self._names
        parts = name.split(".")
        suffixes = (".".join(parts[first:]) for first in range(len(parts)))
        return next((suffix for suffix in suffixes if suffix in entries), name)

    def _whole_name(self, prefix: str) -> str:
        """Many models of SGLang leave away the ``model.`` that the checkpoint's names begin with."""
        if not prefix.startswith(_IN_MODEL):
            return prefix
        if self.table.stored:
            known = any(name.startswith(_IN_MODEL) for name in self.table.stored)
        else:
            known = any(name.startswith(_IN_MODEL) for name in self._names)
        return prefix if known else f"model.{prefix}"

    # -- what SGLang asks

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        prefix = self._whole_name(prefix)
        if isinstance(layer, LinearBase):
            if self.linear_fp8_config is not None:  # an extension of SGLang's, which goes before any scheme there
                return Fp8LinearMethod(self.linear_fp8_config)
            if self.text_only and _beside(prefix):
                return UnquantizedLinearMethod()
            return self._method(layer, prefix, "linear", QuantDispatchLinearMethod, UnquantizedLinearMethod)
        if isinstance(layer, ParallelLMHead):
            return self._method(layer, prefix, "lm_head", QuantDispatchHeadMethod, None)
        if isinstance(layer, VocabParallelEmbedding):
            # some models build their embedding without telling its name
            module = self.resolve(prefix or "model.embed_tokens", "embedding", layer)
            module.check()
            return QuantDispatchEmbeddingMethod(self, module, self.report) if module.quantized else None
        if isinstance(layer, RadixAttention):
            return self._cache(prefix)
        if isinstance(layer, FusedMoE):
            from .routed import experts_method

            return experts_method(self, layer, prefix)
        return None

    def _method(self, layer: torch.nn.Module, prefix: str, kind: str, ours: type, dense: type | None) -> Any:
        module = self.resolve(prefix, kind, layer)
        _refuse_transforms(module)
        choice, wanted = policy.choose(module, self.table.environment, device.current_settings())
        if choice == policy.NOTHING:
            for resolved in module.layers:
                self.report.note(resolved.name, resolved.scheme, "sglang")
            return dense() if dense is not None else None
        theirs = None
        if choice == policy.THEIRS and wanted is not None:
            theirs = self.single.method(layer, prefix, module.first, wanted)
        if theirs is None or wanted is None:
            module.check()
            return ours(self, module, self.report)
        for resolved in module.layers:
            self.report.note(resolved.name, resolved.scheme, f"sglang {wanted}")
        if module.first.error is None:  # else only SGLang has a kernel
            first(theirs, wanted, ours(self, module, self.report))
        return theirs

    def _cache(self, prefix: str) -> Any:
        """A quantized cache is SGLang's to keep: it can do so with one static scale. Any other stays unquantized, and
        that is said."""
        cache = self.table.cache(prefix)
        if cache is None:
            return None
        if CompressedTensorsKVCacheMethod.is_supported_scheme(self.kv_cache_scheme):
            return CompressedTensorsKVCacheMethod(self)
        if "cache" not in self.report.remarks:
            scheme = cache.inputs.describe() if cache.inputs is not None else cache.scheme
            self.report.remarks["cache"] = f"left unquantized, SGLang has none of {scheme}"
            LOG.warning("the cache stays unquantized: SGLang keeps fp8 with one static scale, not %s", scheme)
        return None


def _beside(name: str) -> bool:
    """Is the module of a tower, or of what joins one to the language model?"""
    return in_tower(name) or any("projector" in part for part in name.split("."))


def _has_block(config: Any) -> bool:
    names = ("quantization_config", "compression_config")
    if isinstance(config, Mapping):
        return any(config.get(name) for name in names)
    return any(getattr(config, name, None) for name in names)


def _names_in(table: LayerTable) -> frozenset[str]:
    """Whole names of layers in the config's targets and in what it ignores. A class has no dot, nor has a head."""
    targets = [target for group in table.config.groups for target in group.targets if "." in target]
    return frozenset(e for e in (*targets, *table.config.ignore) if not e.startswith("re:") and not e[:1].isupper())


def _refuse_transforms(module: Members) -> None:
    for layer in module.layers:
        if layer.transforms:
            raise ConfigError(
                "has transforms at run time, which SGLang does not apply", layer=layer.name, field="transform_config",
                observed=", ".join(layer.transforms), required="none",
                remedy="load the model with transformers, or fold the transforms into the weights", code="QD516",
            )  # fmt: skip


def _dtype() -> str:
    name = str(torch.get_default_dtype()).removeprefix("torch.")
    return name if name in DTYPES else "bfloat16"
