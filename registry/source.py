"""What a plan is made from: a checkpoint folder, a config.json, a hub id, or a config as a dict."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import CONFIG, Checkpoint, has_weights, open_checkpoint, read_config
from .config import METHOD, parse_config
from .config_json import parse_json_file
from .config_locate import all_quantization_configs
from .config_models import QuantConfig
from .config_reading import join
from .environment import Environment
from .errors import ConfigError, UnreadableCheckpointError
from .headers import unreadable
from .hub import is_hub_id, open_hub
from .plugin_formats import with_stored_names
from .problem import Problem
from .registry import Registry


@dataclass(frozen=True)
class Source:
    """``label``: for people. ``raw``: the config.json. ``checkpoint``: ``None`` where there are no tensors."""

    label: str
    raw: Mapping[str, Any]
    checkpoint: Checkpoint | None = None


def open_source(source: str | os.PathLike[str] | Mapping[str, Any]) -> Source:
    """Raises ``ConfigError`` or ``UnreadableCheckpointError`` (both exit code 2)."""
    if isinstance(source, Mapping):
        return Source("(a config)", source)
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        raise ConfigError(
            "no source to plan", field="source", observed=source,
            required="a checkpoint folder, a config.json, a hub id or a dict", code="QD520",
        )  # fmt: skip
    text = os.fspath(source)
    path = Path(text)
    try:
        folder = path.stat().st_mode & 0o170000 == 0o040000
    except FileNotFoundError:
        return _from_hub(text)
    except ValueError:  # a NUL character
        raise UnreadableCheckpointError(
            f"{text!r} is not a path", field="source", observed=repr(text), required="a path without NUL characters",
            code="QD601",
        ) from None  # fmt: skip
    except OSError as error:
        raise unreadable(text, error) from None
    if not folder:
        return Source(text, parse_json_file(path))
    if not has_weights(path):
        return Source(text, read_config(path / CONFIG))
    checkpoint = open_checkpoint(path)
    return Source(text, checkpoint.config, checkpoint)


def _from_hub(text: str) -> Source:
    if not is_hub_id(text):
        raise UnreadableCheckpointError(
            f"there is no file or folder {text}", field="source", observed=text, required="a path, or a hub id",
            remedy="give a checkpoint folder, a config.json or a hub id (owner/name)", code="QD601",
        )  # fmt: skip
    checkpoint = open_hub(text)
    return Source(text, checkpoint.config, checkpoint if checkpoint.tensors else None)


def read_quantization(
    raw: Mapping[str, Any], registry: Registry, environment: Environment | None = None
) -> tuple[QuantConfig, list[Problem]]:
    """The quantization config, through the plugin that translates it where the method is foreign.

    Raises ``ConfigError`` as :func:`.config.parse_config` does; it says what engines would run on ``environment``.
    """
    block, path = next(all_quantization_configs(raw), (None, ""))
    if block is not None and block.get("quant_method") not in (None, METHOD):
        try:
            rewritten, plugin = registry.rewrite_config(block)
        except ConfigError as error:
            error.field = join(path, error.field) if error.field and path else error.field or path or None
            raise
        if plugin is not None:
            config = parse_config(rewritten, formats=registry.formats, at=path)
            config = with_stored_names(config.model_copy(update={"translated_by": plugin}), registry)
            text = f"a {block.get('quant_method')} config, translated by {plugin}"
            return config, [Problem("translated", text, "note", path), *_problems(config)]
    try:
        config = with_stored_names(parse_config(raw, formats=registry.formats), registry)
    except ConfigError as error:
        from .peers.refused import explain_refused  # only an error needs it

        explain_refused(error, raw, environment)
        raise
    return config, _problems(config)


def _problems(config: QuantConfig) -> list[Problem]:
    return [Problem(p.code, p.message, "warning", p.path) for p in config.problems]
