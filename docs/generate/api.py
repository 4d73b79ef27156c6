"""docs/api.md: every public name with its signature and docstring."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

#: packages whose ``__all__`` is the public interface, and what each is for
PACKAGES = {
    "quantdispatch": "Plans, models, and what plugins are made of.",
    "quantdispatch.engines.transformers": "Plain transformers, loading packed weights.",
    "quantdispatch.testing": "For the tests of plugins and dispatch tables; [testing](testing.md) shows them in use.",
}
OWN = "quantdispatch"
_PROPERTIES = (property, functools.cached_property)
_DESCRIPTORS = (*_PROPERTIES, classmethod, staticmethod)


def public() -> Iterator[tuple[str, str, Any]]:
    """(package, name, object) of everything public."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__, key=str.lower):
            yield package, name, getattr(module, name)


def members(thing: Any) -> Iterator[tuple[str, Any]]:
    """Public methods, properties and class methods of a class, those of our own base classes included."""
    if not inspect.isclass(thing):
        return
    seen = set()
    for base in thing.__mro__:
        if base.__module__.split(".")[0] != OWN:
            continue
        for name, value in vars(base).items():
            plain = name.startswith("_") or name in seen
            if not plain and (inspect.isroutine(value) or isinstance(value, _DESCRIPTORS)):
                seen.add(name)
                yield name, getattr(thing, name)


def undocumented() -> list[str]:
    """Names of public things, and members of public classes, without a docstring of their own or of a base."""
    missing = []
    for package, name, thing in public():
        parts = [(name, thing), *((f"{name}.{member}", value) for member, value in members(thing))]
        missing += [f"{package}.{label}" for label, value in parts if _speaks(value) and not _own_words(value)]
    return missing


def _speaks(thing: Any) -> bool:
    """Constants have no docstring: the page shows their value."""
    return inspect.isclass(thing) or callable(thing) or isinstance(thing, _PROPERTIES)


def _own_words(thing: Any) -> str:
    """The docstring; what ``dataclass`` writes in its place, the signature, does not count."""
    text = inspect.getdoc(thing) or ""
    name = getattr(thing, "__name__", "")
    return "" if inspect.isclass(thing) and text.startswith(f"{name}(") and "\n" not in text else text


def page() -> Iterator[str]:
    yield from ("# The Python interface", "")
    yield "Names that stand here stay; what does not may change with any release."
    last = ""
    for package, name, thing in public():
        if package != last:
            yield from ("", f"## {package}", "", PACKAGES[package])
            last = package
        if name == "__version__":
            continue
        yield from ("", f"### {name}", "", *_entry(name, thing))
        for label, member in members(thing):
            if label in vars(thing) or not _of_a_public_base(thing, label):
                yield from ("", *_member(label, member))


def _of_a_public_base(thing: Any, label: str) -> bool:
    """Does the page say it already, where a base class has its entry?"""
    bases = [value for _, _, value in public() if inspect.isclass(value) and value is not thing]
    return any(issubclass(thing, base) and hasattr(base, label) for base in bases)


def _entry(name: str, thing: Any) -> Iterable[str]:
    if not _speaks(thing):
        return [
            f"A constant, `{thing!r}`: see [hooks](hooks.md)." if name == "hookimpl" else f"A constant, `{thing!r}`."
        ]
    kind = "class " if inspect.isclass(thing) else ""
    return ["```python", f"{kind}{name}{signature(thing)}", "```", "", *markdown(_own_words(thing))]


def _member(label: str, member: Any) -> Iterable[str]:
    head = f"`.{label}`" if isinstance(member, _PROPERTIES) else f"`.{label}{signature(member)}`"
    first, *rest = markdown(_own_words(member)) or [""]
    return [f"* {head}: {first}", *(f"  {line}" if line else "" for line in rest)]


def signature(thing: Any) -> str:
    """As it is written, without the package's own module names. Empty for what has none."""
    if inspect.isclass(thing) and issubclass(thing, BaseException) and "__init__" not in vars(thing):
        return f"({thing.__base__.__name__})"
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<factory>|<object object at 0x[0-9a-f]+>", "...", text)
    return text.replace("'", "").replace("quantdispatch.", "")


def markdown(text: str) -> list[str]:
    """A docstring's lines as Markdown: roles of Sphinx and doubled backquotes are plain code there."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    lines = []
    indented = False
    for line in text.replace("``", "`").replace("<", "\\<").splitlines():
        code = line.startswith("    ") and (indented or not lines or not lines[-1])
        if code != indented and (code or line):
            while indented and not lines[-1]:
                lines.pop()
            lines.append("```python" if code else "```")
            indented = code
        lines.append(line[4:].replace("\\<", "<") if indented else line)
    return [*lines, "```"] if indented else lines
