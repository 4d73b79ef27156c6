"""Our quantizer for transformers: plans the checkpoint, puts packed modules in place, and fills them.

transformers loads everything that is not quantized: embeddings, norms, ignored layers, tied weights, rotary buffers.
What is quantized never passes through its loader: it is read from the files here, one layer at a time.
"""

from __future__ import annotations

import os
import re
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
from ..binding import require_matrices
from ..memory import release_free_memory
from ..modules import QuantLinear
from ..progress import on_terminal, track
from ..tensors import dtype_name, read_tensor
from .config import CompressedTensorsConfig, Prepared
from .naming import RuntimeNames, plain_linear
from .placing import fill_dense, make_dense, packed_linear, refuse_tied, reserve
from .routed import Place, RoutedExperts

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
                field="quantization_config", remedy="leave quantization_config out, or give a quantized checkpoint",
            )  # fmt: skip
        super().__init__(quantization_config, **kwargs)
        self._pending: list[Pending] = []
        self._device_map: Any = None
        self._plan: Plan | None = None
        self._placeholders: list[QuantLinear] = []
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
                remedy="leave it out, or call quantdispatch.engines.transformers.disable() first",
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
        require_matrices(self._plan.layers.values())
        names = RuntimeNames(model)
        whole = type(model).__name__ in (getattr(model.config, "architectures", None) or ())
        ours: list[Resolution] = []
        routed: dict[str, RoutedExperts] = {}
        for layer in self._plan.layers.values():
            runtime = names.module(layer.name)
            if isinstance(runtime, Place):
                routed.setdefault(runtime.experts, RoutedExperts(runtime.experts)).add(runtime, layer)
                continue
            if layer.scheme_object is None or layer.scheme == "dense":
                self._dense.add(runtime)
                continue
            if runtime is None:
                if whole:
                    raise CheckpointError(
                        f"{type(model).__name__} has no module for this layer", layer=layer.name,
                        remedy="the checkpoint is of another architecture, or its names are",
                    )  # fmt: skip
                continue  # a part of the model was asked for; transformers reports what it leaves unused
            self._replace(model, layer, runtime, dtype)
            ours.append(layer)
        for experts in routed.values():
            ours += self._replace_experts(model, experts, dtype)
        owned = [names.unowned(f"{layer.name}.{local}") for layer in ours for local in layer.tensors]
        if self._prepared:
            _check_shapes(names, self._plan, {f"{p.layer.name}.{t}" for p in self._pending for t in p.layer.tensors})
        self._theirs_ignored = model._keys_to_ignore_on_load_unexpected
        _expect_leftover(model, owned)
        # As long as it loads, transformers may treat what is not quantized like that of any other model: with this
        # flag set, versions up to 5.20 keep the file's dtype for every tensor that they rename.
        self.pre_quantized = False
        return model

    def _make_plan(self, files: list[str] | None, dtype: torch.dtype) -> Plan:
        if not files:
            raise ConfigError("quantized weights come from safetensors files, and none were given", field="state_dict")
        folder = os.path.dirname(files[0])
        result = plan(folder, device=self._device_kind(), dtype=dtype_name(dtype), strict=True)
        shards = open_checkpoint(folder).shards if result.checkpoint is None else result.checkpoint.shards
        expected = {os.path.join(folder, shard) for shard in shards}
        if {os.path.realpath(f) for f in files} != {os.path.realpath(f) for f in expected}:
            raise ConfigError(
                "transformers reads other files than the checkpoint's own", field="variant",
                observed=", ".join(sorted(map(os.path.basename, files))), required=", ".join(sorted(shards)),
                remedy="leave out variant, or save the variant as a checkpoint of its own",
            )  # fmt: skip
        return result

    def _replace(self, model: nn.Module, layer: Resolution, runtime: str, dtype: torch.dtype) -> None:
        linear = plain_linear(model, layer.name, runtime)
        refuse_tied(layer, runtime, getattr(model, "all_tied_weights_keys", {}))
        model.set_submodule(runtime, self._packed(linear, layer, runtime, dtype))

    def _packed(self, linear: nn.Linear, layer: Resolution, runtime: str, dtype: torch.dtype) -> nn.Module:
        """The module that stands at ``runtime`` until its tensors are read; an unquantized expert stays as it is."""
        self._pending.append(Pending(runtime, layer))
        if layer.scheme == "dense":
            return linear
        packed = packed_linear(linear, layer, dtype, self._prepared.backend if self._prepared else None)
        if isinstance(self._device_map, str):
            reserve(packed, layer)
            self._placeholders.append(packed)
        return packed

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
        order = sorted(self._pending, key=lambda p: min((t.file, t.start) for t in p.layer.tensors.values()))
        handled = 0
        for pending in track(order, "Packing weights", show=show):
            module = model.get_submodule(pending.runtime)
            stored = {local: read_tensor(entry) for local, entry in pending.layer.tensors.items()}
            device = _device_of(self._device_map, pending.runtime)
            if not isinstance(module, QuantLinear):
                fill_dense(module, stored, device)
                continue
            module.load_stored(stored, device)
            if module.layer_shape.packing == "padded":
                self.quantization_config.repacked = True
            if self.quantization_config.dequantize:
                model.set_submodule(pending.runtime, module.dequantize())
            handled += sum(entry.nbytes for entry in pending.layer.tensors.values())
            if handled > RELEASE_EVERY:
                release_free_memory()
                handled = 0
        if self.quantization_config.dequantize:
            make_dense(model)
        release_free_memory()
        if not self.quantization_config.dequantize:
            model.quantdispatch_plan = self._plan
            # no gradient passes a packed layer: what is left asks for none, so that a plain call needs no no_grad()
            model.requires_grad_(False)
        self._pending, self._plan, self._prepared, self.quantization_config.prepared = [], None, None, None
        return model

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        make_dense(model, dtype)
        model.__dict__.pop("quantdispatch_plan", None)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return model

    def get_state_dict_and_metadata(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The first that ``save_pretrained`` calls: linear layers that are dense, and were not in the checkpoint or not
        dense there (a new head, a layer dequantized by itself), have to be ignored by whoever reads what is saved."""
        known = {*self._dense, *(key.removesuffix(".weight") for key in getattr(model, "all_tied_weights_keys", {}))}
        added = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in known]
        if added:
            ignored = self.quantization_config.raw.get("ignore") or []
            self.quantization_config.raw["ignore"] = [*ignored, *(name for name in added if name not in ignored)]
        return super().get_state_dict_and_metadata(model, *args, **kwargs)

    # -- what transformers asks

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def get_weight_conversions(self) -> list[Any]:
        return []

    # -- devices

    def _set_device_map(self, device_map: Any) -> None:
        if device_map is None and self._device_map is not None:
            return
        if isinstance(device_map, Mapping):
            kinds = {_kind(device) for device in device_map.values()}
            if "disk" in kinds or len(kinds) > 1:
                raise ConfigError(
                    "packed weights cannot be offloaded", field="device_map", observed=sorted(kinds),
                    required="devices of one kind", remedy="leave cpu and disk out of a map with accelerators",
                )  # fmt: skip
        self._device_map = device_map

    def _device_kind(self) -> str:
        if isinstance(self._device_map, Mapping):
            return _kind(next(iter(self._device_map.values())))
        if isinstance(self._device_map, str) and torch.cuda.is_available():
            return "cuda"
        return "cpu"


def _kind(device: Any) -> str:
    if isinstance(device, int):
        return "cuda"
    return device if device == "disk" else torch.device(device).type


def _device_of(device_map: Any, name: str) -> torch.device:
    """The device of the longest prefix of ``name`` in the map."""
    if not isinstance(device_map, Mapping):
        return torch.device("cpu")
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return torch.device(device_map.get(name, "cpu"))


def _expect_leftover(model: Any, names: list[str]) -> None:
    """Keep transformers from reporting our tensors as unexpected. Set on this model only, and taken back."""
    theirs = set(model._keys_to_ignore_on_load_unexpected or ())
    # modules and local names apart: one alternative a tensor would make the pattern four times as long to compile
    modules, locals_ = ({re.escape(name.rpartition(".")[i]) for name in names} for i in (0, 2))
    ours = {rf"^(?:{'|'.join(sorted(modules))})\.(?:{'|'.join(sorted(locals_))})$"} if names else set()
    model._keys_to_ignore_on_load_unexpected = theirs | ours


def _check_shapes(names: RuntimeNames, result: Plan, owned: set[str]) -> None:
    """Unquantized tensors against the model's: older versions of transformers do not look for quantized models."""
    assert result.checkpoint is not None
    for tensor, entry in result.checkpoint.tensors.items():
        expected = None if tensor in owned else names.parameter(tensor)
        if expected is not None and tuple(expected[1]) != tuple(entry.shape):
            raise CheckpointError(
                f"tensor {tensor} has another shape than the model's {expected[0]}", field=tensor,
                observed=list(entry.shape), required=list(expected[1]),
            )  # fmt: skip
