"""Engines that are not there: modules with what their adapters rely on, by the signatures that were recorded of them.

A record is a JSON object: module to attribute path to the signature without annotations, defaults as ``...``;
``null`` for what is no function.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

Record = Mapping[str, Mapping[str, str | None]]


def record(needed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str | None]]:
    """Of the engine that is installed."""
    found: dict[str, dict[str, str | None]] = {}
    for module, attributes in needed.items():
        found[module] = {}
        for path, parameters in attributes.items():
            value: Any = importlib.import_module(module)
            for name in path.split("."):
                value = getattr(value, name)
            found[module][path] = None if parameters is None else _signature(value)
    return found


def _signature(value: Any) -> str:
    plain = inspect.isclass(value) and not hasattr(value, "_fields")
    signature = inspect.signature(value.__init__ if plain else value)
    parameters = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else ...)
        for p in signature.parameters.values()
        if not (plain and p.name == "self")
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty)).replace("Ellipsis", "...")


def stand_ins(recorded: Record) -> dict[str, ModuleType]:
    """Modules by name, with parents."""
    made: dict[str, ModuleType] = {}
    for name, attributes in recorded.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        for path, signature in attributes.items():
            put(made[name], path, signature)
    return made


def put(module: ModuleType, path: str, signature: str | None) -> None:
    """``signature``: of a function, or of what makes an object where the path is a class's."""
    owner: Any = module
    *classes, last = path.split(".")
    for name in classes:
        if not hasattr(owner, name):
            setattr(owner, name, type(name, (), {}))
        owner = getattr(owner, name)
    if signature is None:
        setattr(owner, last, {} if last.isupper() else type(last, (), {}))
    elif not classes and last[:1].isupper():
        setattr(owner, last, type(last, (), {"__init__": _function("__init__", signature.replace("(", "(self, ", 1))}))
    else:
        function = _function(last, signature)
        setattr(owner, last, function if signature.startswith("(self") or not classes else staticmethod(function))


def _function(name: str, signature: str) -> Any:
    space: dict[str, Any] = {}
    exec(f"def {name}{signature.replace('(self, )', '(self)')}: ...", space)
    return space[name]


def change(module: ModuleType, path: str, signature: str) -> None:
    """``signature``: ``""`` for nothing there."""
    if signature:
        put(module, path, signature)
        return
    owner: Any = module
    *parents, last = path.split(".")
    for name in parents:
        owner = getattr(owner, name)
    delattr(owner, last)


def changes(recorded: Record, needed: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """(module, path, another signature or ``""`` for none at all, what the guard says of it)."""
    for module, attributes in recorded.items():
        for path, signature in attributes.items():
            yield module, path, "", f"{module} has no {path}"
            for name in needed[module][path] or () if signature is not None else ():
                changed = _without(signature, name)
                if changed is not None:
                    yield module, path, changed, f"{module}.{path} takes no {name}"
            if signature is not None:
                yield module, path, _with(signature, "brand_new"), f"{module}.{path} wants brand_new, which is new"


def _parameters(signature: str) -> list[str]:
    return [text.strip() for text in signature.strip("()").split(",") if text.strip()]


def _without(signature: str | None, name: str) -> str | None:
    own = _parameters(signature or "")
    kept = [text for text in own if text.partition("=")[0] != name]
    return f"({', '.join(kept)})" if len(kept) < len(own) else None


def _with(signature: str, name: str) -> str:
    own = _parameters(signature)
    plain = [text for text in own if "=" not in text and not text.startswith("*")]
    return f"({', '.join([*plain, name, *[text for text in own if text not in plain]])})"
