"""Our quantizer for transformers: plans the checkpoint, puts packed modules in place, and fills them.

transformers loads everything that is not quantized: embeddings, norms, ignored layers, tied weights, rotary buffers.
What is quantized never passes through its loader: it is read from the files here, one layer at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.quantizers.base import HfQuantizer
from transformers.utils import logging as hf_logging
from transformers.utils.quantization_config import QuantizationMethod

from ...registry.checkpoint import open_checkpoint
from ...registry.errors import CheckpointError, ConfigError
from ...registry.plan import Plan, Resolution, plan
from ..binding import device_name
from ..dense import quicken
from ..memory import release_free_memory
from ..modules import QuantLinear
from ..packed import PackedLayer
from ..progress import on_terminal, track
from ..tensors import dtype_name, read_tensor
from ..transform_loading import TransformLoader, matrices, own_tensors, say_folded
from .cache import AttentionCache
from .config import CompressedTensorsConfig, Prepared
from .devices import device_of, kind_of
from .naming import RuntimeNames, check_shapes, expect_leftover, plain_linear
from .placing import check_heads, fill_dense, make_dense, packed_linear, place_cache, refuse_tied, reserve
from .routed import Place, RoutedExperts
from .tables import packed_embedding, partners, share, untie

#: stored bytes after which freed memory goes back to the system
RELEASE_EVERY = 16_000_000


@dataclass(frozen=True)
class Pending:
    """A packed module in place, and where its tensors are."""

    runtime: str
    layer: Resolution


class QuantDispatchHfQuantizer(HfQuantizer):  # type: ignore[misc]
    """Serves one ``from_pretrained`` call, then stays with the model for ``dequantize`` and ``save_pretrained``."""

    requires_calibration = True  # only checkpoints that are quantized already
    quantization_config: CompressedTensorsConfig

    def __init__(self, quantization_config: CompressedTensorsConfig, **kwargs: Any) -> None:
        if not kwargs.get("pre_quantized", True):
            raise ConfigError(
                "the checkpoint is not quantized: quantdispatch loads checkpoints that are, it does not quantize",
                field="quantization_config", observed="none in config.json", required="a quantized checkpoint",
                remedy="leave quantization_config out, or give a quantized checkpoint",
                code="QD503",
            )  # fmt: skip
        super().__init__(quantization_config, **kwargs)
        self._pending: list[Pending] = []
        self._transformed: dict[str, Resolution] = {}
        #: run-time names of all modules that were given transforms
        self._rotated: list[str] = []
        self._device_map: Any = None
        self._plan: Plan | None = None
        self._placeholders: list[PackedLayer] = []
        self._theirs_ignored: Any = None
        self._dense: set[str | None] = set()
        self._prepared: Prepared | None = getattr(quantization_config, "prepared", None)
        if self._prepared:
            quantization_config.quant_method = QuantizationMethod.COMPRESSED_TENSORS
        self._from_file = self.pre_quantized

    # -- before transformers loads

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Called with the device map as given, and once more when an "auto" map has been worked out."""
        if self.quantization_config.use_optimized_inference:
            raise ConfigError(
                "use_optimized_inference asks for transformers' own fp8 kernels, and quantdispatch is enabled",
                field="use_optimized_inference",
                observed=True,
                required=False,
                remedy="leave it out, or call quantdispatch.engines.transformers.disable() first",
                code="QD533",
            )
        self._set_device_map(device_map)
        while self._placeholders:
            self._placeholders.pop()._buffers.clear()

    def _process_model_before_weight_loading(
        self,
        model: Any,
        dtype: torch.dtype | None = None,
        device_map: Any = None,
        checkpoint_files: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        self._set_device_map(device_map)
        dtype = dtype or torch.get_default_dtype()
        self._plan = self._prepared.plan if self._prepared else self._make_plan(checkpoint_files, dtype)
        names = RuntimeNames(model)
        whole = type(model).__name__ in (getattr(model.config, "architectures", None) or ())
        ours: dict[str, Resolution] = {}
        routed: dict[str, RoutedExperts] = {}
        stored: dict[str | None, Resolution] = {}
        for layer in self._plan.layers.values():
            runtime = names.module(layer.name)
            if isinstance(runtime, Place):
                routed.setdefault(runtime.experts, RoutedExperts(runtime.experts)).add(runtime, layer)
                continue
            dense = layer.scheme_object is None or layer.scheme == "dense"
            if dense:
                self._dense.add(runtime)
                stored.setdefault(runtime, layer)
                if not layer.transforms:
                    continue
            if _op(layer) == "kv_cache":
                runtime = names.container(layer.name)
            if runtime is None:
                if whole:
                    raise CheckpointError(
                        f"{type(model).__name__} has no module for this layer", layer=layer.name,
                        field=layer.name, observed=type(model).__name__, required="a model with a module for it",
                        remedy="the checkpoint is of another architecture, or its names are", code="QD672",
                    )  # fmt: skip
                continue  # a part of the model was asked for; transformers reports what it leaves unused
            if dense:
                self._transformed[runtime] = layer
                continue
            stored[runtime] = layer
            ours[runtime] = layer
        for runtime, layer in ours.items():
            self._replace(model, layer, runtime, dtype, stored)
        loaded = list(ours.values())
        for experts in routed.values():
            loaded += self._replace_experts(model, experts, dtype)
        owned = [names.unowned(f"{layer.name}.{local}") for layer in loaded for local in layer.tensors]
        owned += [names.unowned(f"{layer.name}.{t}") for layer in self._transformed.values() for t in matrices(layer)]
        if self._prepared:
            check_shapes(names, self._plan, {f"{p.layer.name}.{t}" for p in self._pending for t in p.layer.tensors})
        self._theirs_ignored = model._keys_to_ignore_on_load_unexpected
        expect_leftover(model, owned)
        # As long as it loads, transformers may treat what is not quantized like that of any other model: with this
        # flag set, versions up to 5.20 keep the file's dtype for every tensor that they rename.
        self.pre_quantized = False
        return model

    def _make_plan(self, files: list[str] | None, dtype: torch.dtype) -> Plan:
        if not files:
            raise ConfigError(
                "quantized weights come from safetensors files, and none were given", field="state_dict",
                observed="tensors in memory", required="a checkpoint folder", code="QD533",
            )  # fmt: skip
        folder = os.path.dirname(files[0])
        device = device_name(torch.device(self._device_kind()))
        result = plan(folder, device=device, dtype=dtype_name(dtype), strict=True)
        shards = open_checkpoint(folder).shards if result.checkpoint is None else result.checkpoint.shards
        expected = {os.path.join(folder, shard) for shard in shards}
        if {os.path.realpath(f) for f in files} != {os.path.realpath(f) for f in expected}:
            raise ConfigError(
                "transformers reads other files than the checkpoint's own", field="variant",
                observed=", ".join(sorted(map(os.path.basename, files))), required=", ".join(sorted(shards)),
                remedy="leave out variant, or save the variant as a checkpoint of its own", code="QD533",
            )  # fmt: skip
        return result

    def _replace(
        self, model: Any, layer: Resolution, runtime: str, dtype: torch.dtype, stored: Mapping[str | None, Resolution]
    ) -> None:
        """``stored``: every layer of the checkpoint by its run-time name."""
        backend = self._prepared.backend if self._prepared else None
        if _op(layer) == "kv_cache":
            self._pending.append(Pending(place_cache(model, runtime, layer, dtype, backend), layer))
            return
        tied = partners(runtime, getattr(model, "all_tied_weights_keys", {}))
        if _op(layer) != "embedding":
            linear = plain_linear(model, layer.name, runtime)
            # what is stored quantized for each is used for each
            if not any(name in stored and _op(stored[name]) == "embedding" for name in tied):
                refuse_tied(layer, runtime, getattr(model, "all_tied_weights_keys", {}))
            model.set_submodule(runtime, self._packed(linear, layer, runtime, dtype))
            return
        sharing = sorted(tied - stored.keys())
        packed = packed_embedding(model.get_submodule(runtime), layer, dtype, backend, bool(sharing))
        self._hold(packed, layer, runtime)
        model.set_submodule(runtime, packed)
        for name in sharing:
            share(model, packed, name, layer)
        if tied:
            untie(model, {runtime, *tied})

    def _packed(self, linear: nn.Linear, layer: Resolution, runtime: str, dtype: torch.dtype) -> nn.Module:
        """The module that stands at ``runtime`` until its tensors are read; an unquantized expert stays as it is."""
        if layer.scheme == "dense":
            self._pending.append(Pending(runtime, layer))
            return linear
        packed = packed_linear(linear, layer, dtype, self._prepared.backend if self._prepared else None)
        self._hold(packed, layer, runtime)
        return packed

    def _hold(self, packed: PackedLayer, layer: Resolution, runtime: str) -> None:
        self._pending.append(Pending(runtime, layer))
        if isinstance(self._device_map, str):
            reserve(packed, layer)
            self._placeholders.append(packed)

    def _replace_experts(self, model: nn.Module, experts: RoutedExperts, dtype: torch.dtype) -> list[Resolution]:
        """Returns the layers that are ours to load."""
        if experts.all_dense:
            return []
        original = model.get_submodule(experts.module)
        experts.check(original)
        projections = {
            layer.name: self._packed(experts.linear(original, place, dtype), layer, experts.runtime(place), dtype)
            for place, layer in experts.members.values()
        }
        model.set_submodule(experts.module, experts.build(original, projections))
        return [layer for _, layer in experts.members.values()]

    # -- after

    def postprocess_model(self, model: Any, **kwargs: Any) -> Any:
        self.pre_quantized = self._from_file
        return super().postprocess_model(model, **kwargs)

    @torch.no_grad()
    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        model._keys_to_ignore_on_load_unexpected = self._theirs_ignored
        show = self._prepared.progress if self._prepared else hf_logging.is_progress_bar_enabled() and on_terminal()
        # in the order of the file, so that it is read front to back
        transforms = TransformLoader(self._plan)  # type: ignore[arg-type]
        order = sorted(self._pending, key=lambda p: min((t.file, t.start) for t in p.layer.tensors.values()))
        handled = 0
        for pending in track(order, "Packing weights", show=show):
            module = model.get_submodule(pending.runtime)
            stored = {local: read_tensor(entry) for local, entry in own_tensors(pending.layer).items()}
            device = device_of(self._device_map, pending.runtime)
            if not isinstance(module, PackedLayer):
                fill_dense(module, stored, device)
                transforms.attach(module, pending.layer, device)
                continue
            if isinstance(module, QuantLinear) and not module.spec.bias:
                stored.pop("bias", None)  # all zeros, as :func:`packed_linear` has seen
            module.load_stored(stored, device)
            transforms.attach(module, pending.layer, device)
            if module.layer_shape is not None and module.layer_shape.packing == "padded":
                self.quantization_config.repacked = True
            if isinstance(module, AttentionCache):
                check_heads(model, module, pending.runtime)
            elif isinstance(module, QuantLinear) and self.quantization_config.dequantize:
                model.set_submodule(pending.runtime, module.dequantize())
            handled += sum(entry.nbytes for entry in pending.layer.tensors.values())
            if handled > RELEASE_EVERY:
                release_free_memory()
                handled = 0
        self._rotated = [p.runtime for p in self._pending if p.layer.transforms] + list(self._transformed)
        for runtime, layer in self._transformed.items():
            transforms.attach_dense(model.get_submodule(runtime), layer, device_of(self._device_map, runtime))
        if self.quantization_config.dequantize:
            make_dense(model)
        release_free_memory()
        if not self.quantization_config.dequantize:
            if self._prepared is None or self._prepared.backend in (None, "cpu"):
                quicken(model)
            model.quantdispatch_plan = self._plan
            # no gradient passes a packed layer: what is left asks for none, so that a plain call needs no no_grad()
            model.requires_grad_(False)
        self._pending, self._plan, self._prepared, self.quantization_config.prepared = [], None, None, None
        self._transformed = {}
        return model

    def _dequantize(self, model: Any, dtype: torch.dtype | str | None = None) -> Any:
        # once it is saved, transformers keeps the config's dtype as a word
        make_dense(model, getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        model.__dict__.pop("quantdispatch_plan", None)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return model

    def get_state_dict_and_metadata(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The first that ``save_pretrained`` calls: linear layers that are dense, and were not in the checkpoint or not
        dense there (a new head, a layer dequantized by itself), have to be ignored by whoever reads what is saved, and
        so have those whose transforms became part of their weight."""
        known = {*self._dense, *(key.removesuffix(".weight") for key in getattr(model, "all_tied_weights_keys", {}))}
        added = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in known]
        say_folded(model, self._rotated, self.quantization_config.raw)
        if added and "config_groups" in self.quantization_config.raw:  # a foreign config's layers are told by tensors
            ignored = self.quantization_config.raw.get("ignore") or []
            self.quantization_config.raw["ignore"] = [*ignored, *(name for name in added if name not in ignored)]
        return super().get_state_dict_and_metadata(model, *args, **kwargs)

    # -- what transformers asks

    @property
    def is_trainable(self) -> bool:
        """Never: packed weights are no parameters."""
        return False

    @property
    def is_compileable(self) -> bool:
        return True

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """Always: ``save_pretrained`` writes a compressed-tensors checkpoint again."""
        return True

    def get_weight_conversions(self) -> list[Any]:
        return []

    # -- devices

    def _set_device_map(self, device_map: Any) -> None:
        if device_map is None and self._device_map is not None:
            return
        if isinstance(device_map, Mapping):
            kinds = {kind_of(device) for device in device_map.values()}
            if "disk" in kinds or len(kinds) > 1:
                raise ConfigError(
                    "packed weights cannot be offloaded", field="device_map", observed=sorted(kinds),
                    required="devices of one kind", remedy="leave cpu and disk out of a map with accelerators",
                    code="QD533",
                )  # fmt: skip
        self._device_map = device_map

    def _device_kind(self) -> str:
        if isinstance(self._device_map, Mapping):
            return kind_of(next(iter(self._device_map.values())))
        if isinstance(self._device_map, str) and torch.cuda.is_available():
            return "cuda"
        return "cpu"


def _op(layer: Resolution) -> str | None:
    return None if layer.spec is None or layer.scheme == "dense" else layer.spec.op
