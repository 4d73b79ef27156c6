"""What an engine's config and the checkpoint's files say, in the engine's names and words."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...registry.errors import QuantDispatchError
from ...registry.plan import plan
from ...registry.resolution import Resolution


def planned_layers(
    model: str,
    rename: Callable[[str], str | None] | None,
    *,
    device: str,
    dtype: str,
    log: logging.Logger,
    block: Mapping[str, Any] | None = None,
) -> dict[str, Resolution]:
    """Layers as a plan of the folder ``model`` resolves them, by the engine's names; none where its files are not at
    hand or cannot be planned.

    ``rename``: a stored tensor's name to the engine's, ``None`` for those it has no use for. ``block``: what the engine
    goes by; settings can give it another one than the folder has, and then the folder says nothing.
    """
    if not os.path.isdir(model):
        return {}
    try:
        planned = plan(model, device=device, dtype=dtype, strict=False)
    except QuantDispatchError as error:  # files that the engine reads and a plan does not
        log.debug("no plan of %s: %s", model, error)
        return {}
    stored = planned.raw.get("quantization_config")
    if planned.checkpoint is None or stored is None or (block is not None and stored != block):
        return {}
    if rename is None:
        return dict(planned.layers)
    names = {name: rename(f"{name}.weight") for name in planned.layers}
    return {new.removesuffix(".weight"): planned.layers[old] for old, new in names.items() if new is not None}


def readable_groups(
    config: Mapping[str, Any], read: Callable[[dict[str, Any]], Mapping[str, Any]], log: logging.Logger
) -> dict[str, Any]:
    """An engine's own map of targets, of the groups that it can ``read``: others are quantdispatch's to compute."""
    found: dict[str, Any] = {}
    for name, group in config.get("config_groups", {}).items():
        try:
            found |= read({**config, "config_groups": {name: group}})
        except Exception as refusal:  # assertions, pydantic's errors and others
            log.debug("the engine cannot read group %s: %s", name, refusal)
    return found
