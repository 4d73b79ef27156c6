"""What a nested quantization config speaks about.

``text_config.quantization_config`` was written with the language model alone, before a multimodal model was put around
it: it says nothing of towers and projectors, and its names are those that the layers have inside the language model.
"""

from __future__ import annotations

from collections.abc import Iterable

from .modules import in_tower, is_head

_LANGUAGE = ("language_model", "text_model", "llm", "language")
#: what a part of config.json describes, as modules are called
_PARTS: dict[str, tuple[str, ...]] = {
    "text_config": _LANGUAGE,
    "llm_config": _LANGUAGE,
    "language_config": _LANGUAGE,
    "thinker_config": ("thinker",),
    "talker_config": ("talker",),
    "vision_config": ("visual", "vision_tower", "vision_model"),
    "audio_config": ("audio_tower", "audio_model"),
}


class Scope:
    """The part of a model that a config at ``path`` (a key path in config.json) speaks about."""

    def __init__(self, path: str, names: Iterable[str]) -> None:
        self._parts: list[tuple[str, ...]] = []
        self._language = False
        names = list(names)
        for key in path.split(".")[:-1]:
            parts = _PARTS.get(key)
            self._language |= parts is _LANGUAGE
            if parts is not None and any(_cut(name, parts) is not None for name in names):
                self._parts.append(parts)
        self.whole = not self._parts and not self._language

    def inside(self, name: str) -> str | None:
        """The module's name within that part of the model, or ``None`` for one outside of it."""
        if self.whole:
            return name
        if self._language and in_tower(name):
            return None
        for parts in self._parts:
            cut = _cut(name, parts)
            if cut is None:
                # a head may stand beside the language model rather than in it
                return name if self._language and is_head(name) else None
            name = cut
        return name


def _cut(name: str, parts: tuple[str, ...]) -> str | None:
    """``language_model.model.norm`` -> ``model.norm``, ``model.language_model.norm`` -> ``model.norm``."""
    head, *rest = name.split(".")
    if head in parts:
        return ".".join(rest) or None
    if head == "model" and len(rest) > 1 and rest[0] in parts:
        return ".".join(["model", *rest[1:]])
    return None
