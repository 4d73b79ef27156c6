"""SGLang's own classes for a layer, from a config that has the layer's group and nothing else.

The dispatch is SGLang's, and so is all that its classes read in a config: what other groups say, which of them has the
target ``Linear`` and what the top-level format is no longer matters.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from torch.nn import Module

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.resolution import Resolution

from .report import LOG


class SingleGroups:
    """Configs of one group each; layers that are quantized alike share one."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def method(self, module: Module, prefix: str, layer: Resolution, wanted: str) -> Any | None:
        """SGLang's method for ``module``, whose ``scheme`` it sets. ``None`` where it is not of the class ``wanted``,
        or where SGLang refuses: the module is then as it was."""
        # SGLang takes heads by name only
        target = prefix if layer.kind == "lm_head" else "Linear"
        try:
            method = CompressedTensorsConfig.get_quant_method(self._config(layer, target), module, prefix)
        except Exception as refusal:  # of every kind: assertions, KeyError, ImportError, RuntimeError
            LOG.debug("SGLang has no class for %s here (%s: %s)", prefix, type(refusal).__name__, refusal)
            module.scheme = None
            return None
        scheme = getattr(module, "scheme", None)
        found = type(method if scheme is None else scheme).__name__
        if found == wanted:
            return method
        LOG.debug("SGLang takes %s for %s here, and not %s", found, prefix, wanted)
        module.scheme = None
        return None

    def _config(self, layer: Resolution, target: str) -> Any:
        key = (layer.weights, layer.inputs, layer.format, target)
        known = self._known.get(key)
        if known is None:
            group = {
                "targets": [target],
                "weights": args_json(layer.weights),
                "input_activations": args_json(layer.inputs),
                "format": layer.format,
            }
            known = self._known[key] = CompressedTensorsConfig.from_config(
                {"format": layer.format, "config_groups": {"group_0": group}, "ignore": []}
            )
        return known


def args_json(args: QuantArgs | None) -> dict[str, Any] | None:
    """As a config.json has them: defaults are left to compressed-tensors, which is stricter about some of them."""
    return None if args is None else {name: value for name, value in args.to_json().items() if value is not None}
