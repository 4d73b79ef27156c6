"""Where in a config.json the quantization config stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .config_json import RepeatedKeys
from .config_reading import join, wrong
from .errors import ConfigError

# ``compression_config`` is what writers before 2025 used; ``quantization`` is where Mistral's params.json has it.
BLOCK_KEYS = ("quantization_config", "compression_config", "quantization")
# Language models first: other parts of a multimodal model are rarely quantized.
_PREFERRED = ("text_config", "llm_config", "language_config", "thinker_config")
# thinker_config.text_config.quantization_config is the deepest that writers produce.
_MAX_DEPTH = 3


def find_quantization_config(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str] | None:
    """The quantization block of a config.json and its key path, or ``None`` when there is none.

    Looked for as ``quantization_config`` or ``compression_config``, at the top and then inside nested ``*_config``
    objects; an object that is a block itself is found under the empty path. The method is not looked at: a foreign
    block is found too. Raises ``ConfigError`` when a block is something else than an object.
    """
    return next(all_quantization_configs(raw), None)


def all_quantization_configs(raw: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every quantization block, the one that counts first."""
    if not isinstance(raw, Mapping):
        raise wrong("", raw, "an object")
    if is_bare_block(raw):
        yield _unwrap(raw, "")
        return
    yield from _blocks_below(raw, "", 0)


def is_bare_block(raw: Mapping[str, Any]) -> bool:
    """Whether an object is a quantization block rather than a config.json that holds one."""
    if "config_groups" in raw:
        return True
    return "quant_method" in raw and not any(_looks_like_block(raw.get(key), key) for key in BLOCK_KEYS)


def _looks_like_block(value: Any, key: str) -> bool:
    if key != "quantization":
        return value is not None
    # This short name is common enough in foreign files to ask for more than the name.
    return isinstance(value, Mapping) and "config_groups" in value


def _blocks_below(raw: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[Mapping[str, Any], str]]:
    for key in BLOCK_KEYS:
        value = raw.get(key)
        if not _looks_like_block(value, key):
            continue
        where = join(path, key)
        if not isinstance(value, Mapping):
            raise wrong(where, value, "an object")
        if isinstance(raw, RepeatedKeys) and key in raw.repeated:
            raise wrong(where, value, "each key once", message="given more than once")
        yield _unwrap(value, where)
    if depth == _MAX_DEPTH:
        return
    for key in sorted(_nested_keys(raw), key=lambda key: (_PREFERRED.index(key) if key in _PREFERRED else 99, key)):
        yield from _blocks_below(raw[key], join(path, key), depth + 1)


def _nested_keys(raw: Mapping[str, Any]) -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(key, str) and key.endswith("_config") and key not in BLOCK_KEYS and isinstance(value, Mapping):
            yield key


def _unwrap(block: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], str]:
    """Transformers of 2024 saved the block once more inside itself, beside ``sparsity_config``."""
    inner = block.get("quantization_config")
    if "config_groups" in block or not isinstance(inner, Mapping) or "config_groups" not in inner:
        return block, path
    outer = {key: value for key, value in block.items() if key != "quantization_config"}
    return {**outer, **inner}, join(path, "quantization_config")


def no_config_error() -> ConfigError:
    return ConfigError(
        "no quantization_config: the checkpoint does not say that it is quantized",
        field="quantization_config",
        observed="none",
        required="an object with quant_method and config_groups",
        remedy="load it as an ordinary model, or pass the config.json of the quantized checkpoint",
        code="QD503",
    )
