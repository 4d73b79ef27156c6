"""Names in files and names at run time: which module of a transformers model a checkpoint module became.

transformers 5 renames on load (prefixes of base models, moved submodules) and merges some weights. We ask its own
machinery and keep no table of our own, so that names agree with those of the weights that it loads itself.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from ...registry.errors import CheckpointError
from ...registry.plan import Plan
from .routed import Place, find_place


class RuntimeNames:
    """What transformers makes of a checkpoint's names for ``model``, whose weights are not loaded yet."""

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        conversions = get_model_conversion_mapping(model)
        self._renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
        self._converters = [c for c in conversions if isinstance(c, WeightConverter)]
        self._prefix: str = model.base_model_prefix
        self._expected: dict[str, torch.Tensor] = model.state_dict()
        self._modules = {module for module, _ in model.named_modules()}

    def module(self, name: str) -> str | Place | None:
        """The run-time name of a checkpoint module that has a ``weight``, its place among stacked experts, or ``None``
        if the model has no such module.

        Raises ``CheckpointError`` where transformers merges the module with others in another way.
        """
        key, pattern = self._rename(f"{name}.weight", self._expected)
        if pattern is None:
            return key.removesuffix(".weight") if key in self._expected else None
        return find_place(name, key, pattern, self._converters) if key in self._expected else None

    def container(self, name: str) -> str | None:
        """The run-time name of a checkpoint module without a ``weight`` of its own, or ``None``."""
        from transformers.core_model_loading import rename_source_key

        mark = ".k_scale"
        renamed = rename_source_key(f"{name}{mark}", self._renamings, self._converters, self._prefix, {})[0]
        for found in (renamed.removesuffix(mark), name):
            prefixed = f"{self._prefix}.{found}" if self._prefix else found
            for candidate in (found, prefixed, found.removeprefix(f"{self._prefix}.")):
                if candidate in self._modules:
                    return candidate
        return None

    def parameter(self, tensor: str) -> tuple[str, torch.Size] | None:
        """Run-time name and shape of an unquantized tensor, or ``None`` if it is merged with others or not wanted."""
        key, pattern = self._rename(tensor, self._expected)
        return None if pattern is not None or key not in self._expected else (key, self._expected[key].shape)

    def unowned(self, tensor: str) -> str:
        """The name under which transformers reports ``tensor`` when the model has no parameter for it."""
        return self._rename(tensor, {})[0]

    def _rename(self, key: str, expected: dict[str, torch.Tensor]) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        renamed, pattern = rename_source_key(key, self._renamings, self._converters, self._prefix, expected)
        if renamed not in expected and key in expected:
            # a renaming that was not meant for this key: transformers tries without, and so do we
            renamed, pattern = rename_source_key(key, [], [], self._prefix, expected)
        return renamed, pattern


def plain_linear(model: nn.Module, name: str, runtime: str) -> nn.Linear:
    """The module that packed weights will replace. Raises ``CheckpointError`` if it is no plain ``nn.Linear``."""
    module = model.get_submodule(runtime)
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        raise CheckpointError(
            f"{runtime} is a {type(module).__name__} in the model, which packed weights cannot replace", layer=name,
            field=runtime, observed=type(module).__name__, required="torch.nn.Linear", code="QD672",
        )  # fmt: skip
    return module


def expect_leftover(model: Any, names: list[str]) -> None:
    """Keep transformers from reporting our tensors as unexpected. Set on this model only, and taken back."""
    theirs = set(model._keys_to_ignore_on_load_unexpected or ())
    # modules and local names apart: one alternative a tensor would make the pattern four times as long to compile
    modules, locals_ = ({re.escape(name.rpartition(".")[i]) for name in names} for i in (0, 2))
    ours = {rf"^(?:{'|'.join(sorted(modules))})\.(?:{'|'.join(sorted(locals_))})$"} if names else set()
    model._keys_to_ignore_on_load_unexpected = theirs | ours


def check_shapes(names: RuntimeNames, result: Plan, owned: set[str]) -> None:
    """Unquantized tensors against the model's: older versions of transformers do not look for quantized models."""
    assert result.checkpoint is not None
    for tensor, entry in result.checkpoint.tensors.items():
        expected = None if tensor in owned else names.parameter(tensor)
        if expected is not None and tuple(expected[1]) != tuple(entry.shape):
            raise CheckpointError(
                f"tensor {tensor} has another shape than the model's {expected[0]}",
                layer=tensor.rpartition(".")[0] or tensor, field=tensor, observed=list(entry.shape),
                required=list(expected[1]), code="QD670",
            )  # fmt: skip
