"""Enough of pydantic for the quant args, where it is not installed: a bare machine with a GPU has PyTorch and
Triton, and nothing can be fetched there."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class BaseModel:
    """Fields from annotations and defaults; the two validators that the args have, by the names they have there."""

    def __init__(self, **values: Any) -> None:
        given = type(self)._normalise(values) if hasattr(type(self), "_normalise") else values
        names = [name for name in type(self).__annotations__ if name != "model_config"]
        unknown = set(given) - set(names)
        if unknown:
            raise TypeError(f"unknown fields {sorted(unknown)}")
        for name in names:
            self.__dict__[name] = given.get(name, getattr(type(self), name, None))
        if hasattr(self, "_infer_and_check"):
            self._infer_and_check()

    def model_copy(self, update: dict[str, Any]) -> Any:
        return type(self)(**{**self.__dict__, **update})


def install() -> bool:
    """Stand in where pydantic is missing; ``True`` when that was so."""
    if find_spec("pydantic") is not None:
        return False
    module = ModuleType("pydantic")
    module.__dict__.update(
        BaseModel=BaseModel, ConfigDict=dict, ValidationError=ValueError, model_validator=lambda **_: lambda f: f
    )
    sys.modules["pydantic"] = module
    return True
