"""``enable`` and ``disable``: let plain ``from_pretrained`` load compressed-tensors checkpoints through quantdispatch.

transformers' registry refuses a name that is taken, so the entries of its two tables are replaced, and put back.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from transformers.quantizers import auto

from .config import PRIVATE_METHOD, CompressedTensorsConfig
from .quantizer import QuantDispatchHfQuantizer

METHOD = "compressed-tensors"

_replaced: list[tuple[Any, Any]] = []
_depth = 0


class Enabled:
    """What :func:`enable` returns: leaving its ``with`` block undoes that call and no other."""

    def __init__(self) -> None:
        self._active = True

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            self._active = False
            _leave()


def enable() -> Enabled:
    """From here on ``AutoModel*.from_pretrained`` keeps compressed-tensors checkpoints packed.

    Enough as a line of its own; as ``with enable():`` it ends with the block. Calling it again is harmless.
    """
    global _depth
    if not is_enabled():
        _replaced.append((auto.AUTO_QUANTIZER_MAPPING.get(METHOD), auto.AUTO_QUANTIZATION_CONFIG_MAPPING.get(METHOD)))
        auto.AUTO_QUANTIZER_MAPPING[METHOD] = QuantDispatchHfQuantizer
        auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = CompressedTensorsConfig
    _depth += 1
    return Enabled()


def disable() -> None:
    """Undo every :func:`enable`: transformers is as it was. Harmless when not enabled."""
    global _depth
    _depth = 0
    _restore()


def is_enabled() -> bool:
    """Do plain transformers loaders use quantdispatch at present?"""
    return auto.AUTO_QUANTIZER_MAPPING.get(METHOD) is QuantDispatchHfQuantizer


def _leave() -> None:
    global _depth
    _depth = max(0, _depth - 1)
    if _depth == 0:
        _restore()


def _restore() -> None:
    while _replaced:
        quantizer, config = _replaced.pop()
        # somebody may have put another one there since: that one is theirs to undo
        if is_enabled() and quantizer is not None:
            auto.AUTO_QUANTIZER_MAPPING[METHOD] = quantizer
        if auto.AUTO_QUANTIZATION_CONFIG_MAPPING.get(METHOD) is CompressedTensorsConfig and config is not None:
            auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = config


def register_private() -> None:
    """Make :data:`PRIVATE_METHOD` known to transformers, once."""
    auto.AUTO_QUANTIZER_MAPPING.setdefault(PRIVATE_METHOD, QuantDispatchHfQuantizer)
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING.setdefault(PRIVATE_METHOD, CompressedTensorsConfig)
