"""Module names and classes from the transformers model itself, built on meta: no weights are read or allocated."""

from __future__ import annotations

import os
from typing import Any

from ..registry.errors import ConfigError
from ..registry.modules import kind_of_classes
from .run import require_engine


def modules_on_meta(source: str) -> dict[str, tuple[str, ...]]:
    """Checkpoint module name to the class names of its MRO, most derived first.

    ``source``: folder, config.json or hub id. Modules that transformers merges at run time (experts) come under the
    names that they have in files, as ``Linear``. Raises ``ConfigError`` for a model that the installed transformers
    cannot build.
    """
    require_engine()
    import torch

    model = _build(source)
    from transformers.core_model_loading import revert_weight_conversion

    modules = [(name, module) for name, module in model.named_modules() if name]
    with torch.device("meta"):
        # each module goes through transformers' own renaming as if it had one weight, whose length tells which it is
        tagged = {f"{name}.weight": torch.empty(i + 1) for i, (name, _) in enumerate(modules)}
        renamed = revert_weight_conversion(model, tagged)
        stored = revert_weight_conversion(model, dict(model.state_dict()))
    found: dict[str, tuple[str, ...]] = {}
    for key, tag in renamed.items():
        module = modules[tag.shape[0] - 1][1]
        name = key.removesuffix(".weight")
        bases = [c for c in type(module).__mro__ if issubclass(c, torch.nn.Module) and c is not torch.nn.Module]
        classes = tuple(c.__name__ for c in bases)
        if _matters(name, classes, module):
            found[name] = classes
    for key, tensor in stored.items():
        name = key.removesuffix(".weight")
        if name != key and tensor.dim() == 2:
            found.setdefault(name, ("Linear",))
    return found


def _matters(name: str, classes: tuple[str, ...], module: Any) -> bool:
    """Could it be quantized, or taken for a linear layer by its weight? Blocks and norms would only be noise."""
    weight = module._parameters.get("weight")
    return kind_of_classes(name, classes) is not None or (weight is not None and weight.dim() == 2)


def _build(source: str) -> Any:
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=os.path.exists(source))
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # the plain model's names and classes are wanted
        names = [name for name in (config.architectures or []) if hasattr(transformers, name)]
        if not names:
            named = ", ".join(config.architectures or []) or "none"
            raise ConfigError(
                "transformers has no such architecture", field="architectures", observed=named,
                required="a class that it has, such as LlamaForCausalLM", code="QD531",
            )  # fmt: skip
        with torch.device("meta"):
            return getattr(transformers, names[0])._from_config(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"transformers {transformers.__version__} cannot build this model: {reason}",
            field="model_type",
            observed=reason,
            required=f"a model that transformers {transformers.__version__} has",
            remedy="leave --meta out, or install a transformers that knows the model",
            code="QD531",
        ) from error
