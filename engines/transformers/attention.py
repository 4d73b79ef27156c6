"""Attention whose queries are quantized too: config groups without weights that target attention modules.

transformers looks up the function that computes attention by the name in the config. A module of such a group is given
a view of its config with the name of a function of ours, which rounds the queries to float8 and passes on to the one
that the config names: the order of compressed-tensors' ``modeling/attention.py``. The model's own config, and with it
the mask, stay as they are.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...registry.errors import CheckpointError
from ..cache import QuantCache
from .cache import CHILD

FUNCTION = "quantdispatch_quantized_queries"


class ConfigView:
    """A config as one attention module sees it. ``inside``: attention is being computed, by what the config names."""

    def __init__(self, config: Any) -> None:
        self.__dict__.update(config=config, inside=False)

    @property
    def _attn_implementation(self) -> Any:
        return self.config._attn_implementation if self.inside else FUNCTION

    def __getattr__(self, name: str) -> Any:
        if name in ("config", "inside") or name.startswith("__"):
            raise AttributeError(name)  # a copy or a pickle that is not filled yet
        return getattr(self.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "inside":
            self.__dict__[name] = value
        else:
            setattr(self.config, name, value)


def install_queries(attention: nn.Module, cache: QuantCache) -> None:
    """Raises ``CheckpointError`` for attention that does not look its function up: its queries cannot be reached."""
    forward = inspect.unwrap(type(attention).forward)
    code = getattr(forward, "__code__", None)
    if code is None or "ALL_ATTENTION_FUNCTIONS" not in code.co_names or "eager_attention_forward" not in code.co_names:
        raise CheckpointError(
            f"{type(attention).__name__} computes attention by itself, so that its queries cannot be quantized",
            layer=cache.layer_name, field="kv_cache_scheme", observed=type(attention).__name__,
            required="attention that transformers computes by interchangeable functions",
            code="QD674",
        )  # fmt: skip
    attention.__dict__["config"] = ConfigView(attention.config)


def uninstall_queries(attention: nn.Module) -> None:
    """Attention is as it was."""
    if isinstance(attention.config, ConfigView):
        attention.config = attention.config.config


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention with queries [batch, heads, length, head_dim] as float8 leaves them."""
    cache: Any = getattr(module, CHILD)
    config: Any = module.config
    eager = inspect.unwrap(type(module).forward).__globals__["eager_attention_forward"]
    config.inside = True
    try:
        function = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager)
        return function(module, cache.round("q", query), key, value, *args, **kwargs)
    finally:
        config.inside = False


ALL_ATTENTION_FUNCTIONS.register(FUNCTION, attend)
