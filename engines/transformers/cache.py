"""Key and value caches that hold float8: what the attention modules of a checkpoint with ``kv_cache_scheme`` get.

The caches stay transformers' own (dynamic, static, sliding, with beams and cropping): they hold whatever tensors they
are given. Attention is handed a view of its cache that stores keys and values in float8 and gives them back times their
scale, with the semantics of compressed-tensors' ``modeling/kvcache.py``. Without a cache both are still rounded to what
one would hold.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ...registry.errors import CheckpointError, ConfigError
from ..cache import QuantCache

#: under which name it is a child of its attention module
CHILD = "quantized_cache"
#: as the argument is called: since transformers 5.24, before, and in older models
ARGUMENTS = ("cache", "past_key_values", "past_key_value", "layer_past")


class AttentionCache(QuantCache):
    """A child of its attention module whose tensors are stored as if they were that module's own:
    ``self_attn.k_scale``."""

    def install(self, attention: nn.Module) -> None:
        """Raises ``CheckpointError`` for attention that gives no cache of its own a number."""
        name = type(attention).__name__
        parameters = inspect.signature(attention.forward).parameters
        argument = next((a for a in ARGUMENTS if a in parameters), None)
        if argument is None or not isinstance(getattr(attention, "layer_idx", None), int):
            raise CheckpointError(
                f"{name} keeps its keys and values in a way that a quantized cache does not serve",
                layer=self.layer_name, field="kv_cache_scheme",
                observed="no argument for a cache" if argument is None else "no layer_idx",
                required="attention that updates the cache it is given at its layer_idx", code="QD674",
            )  # fmt: skip
        self._argument, self._position = argument, list(parameters).index(argument)
        attention.add_module(CHILD, self)
        attention.register_forward_pre_hook(self._before_attention, with_kwargs=True)
        attention.register_load_state_dict_pre_hook(self._before_loading)  # type: ignore[no-untyped-call]

    def uninstall(self, attention: nn.Module) -> None:
        """Attention is as it was."""
        for hooks in (attention._forward_pre_hooks, attention._load_state_dict_pre_hooks):
            for key in [k for k, hook in hooks.items() if _owner(hook) is self]:
                del hooks[key]
                attention._forward_pre_hooks_with_kwargs.pop(key, None)
        delattr(attention, CHILD)

    def _before_attention(self, attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if len(args) > self._position:
            seen = Float8View(args[self._position], self)
            return (*args[: self._position], seen, *args[self._position + 1 :]), kwargs
        # whoever calls it may still use a name that transformers then replaces
        name = next((name for name in ARGUMENTS if name in kwargs), self._argument)
        return args, {**kwargs, name: Float8View(kwargs.get(name), self)}

    # -- stored as the attention module's own

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix.removesuffix(f"{CHILD}."), keep_vars)

    def _before_loading(self, attention: nn.Module, state_dict: Any, prefix: str, *rest: Any) -> None:
        """The attention module would find its scales unexpected: they are its child's."""
        required, optional = self.scheme.tensor_names()
        for name in required | optional:
            if "." not in name and prefix + name in state_dict:
                state_dict[f"{prefix}{CHILD}.{name}"] = state_dict.pop(prefix + name)


class Float8View:
    """Stands in for a cache during one call of attention. What is no update is the cache's own."""

    def __init__(self, cache: Any, owner: QuantCache) -> None:
        if hasattr(cache, "self_attention_cache"):
            raise ConfigError(
                "a quantized cache serves decoders, not the two caches of an encoder-decoder",
                field="cache", observed=type(cache).__name__, required="a cache of one kind", code="QD534",
            )  # fmt: skip
        self._cache = cache
        self._owner = owner

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """New states [batch, heads, length, head_dim] to all that the cache then has, in the dtype of the new ones."""
        owner = self._owner
        keys, values = owner.quantize("k", key_states), owner.quantize("v", value_states)
        if self._cache is not None:
            self._prepare(layer_idx)
            keys, values = self._cache.update(keys, values, layer_idx, *args, **kwargs)
        return owner.dequantize("k", keys, key_states.dtype), owner.dequantize("v", values, value_states.dtype)

    def _prepare(self, layer_idx: int) -> None:
        """A layer made before its first update has room for unquantized states: it gets room for float8."""
        layers = self._cache.layers
        layer = layers[layer_idx] if layer_idx < len(layers) else None
        if hasattr(layer, "_quantize"):
            raise ConfigError(
                "the checkpoint's scheme says how its cache is quantized, and generation asks for another quantization",
                field="cache_implementation", observed=type(layer).__name__, required="a cache that is not quantized",
                remedy="leave out cache_implementation", code="QD534",
            )  # fmt: skip
        keys = getattr(layer, "keys", None)
        if keys is None or keys.dtype == torch.float8_e4m3fn:
            return
        for name, part in (("keys", "k"), ("values", "v")):
            room = self._owner.quantize(part, getattr(layer, name))
            setattr(layer, name, room)
            if getattr(layer, "is_compileable", False) and not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(room)

    def __getattr__(self, name: str) -> Any:
        cache = self.__dict__.get("_cache")
        if cache is None:
            raise AttributeError(f"there is no cache, and no {name}")
        return getattr(cache, name)


def _owner(hook: Any) -> Any:
    """The object whose method a hook is; torch wraps those that take a module."""
    return getattr(getattr(hook, "hook", hook), "__self__", None)
