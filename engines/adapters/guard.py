"""Is an engine one that an adapter was made for? If not it has to start as it would without us, and say why.

The engine calls an adapter in each of its processes, mostly before anything of it is imported, so that nothing here
imports torch.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from ...registry.lazy import load_target

#: module to attribute paths, each with the parameters that an adapter calls or overrides it with. ``None``: it only has
#: to be there
Needed = Mapping[str, Mapping[str, tuple[str, ...] | None]]
_FREE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Guard:
    """``engine``: as messages call it. ``switch``: the environment variable that leaves the engine as it is where it is
    ``0``. ``first``, ``beyond``: the first release that the adapter is made for, and the first that it is not. ``log``:
    a logger that the engine shows."""

    engine: str
    switch: str
    first: tuple[int, ...]
    beyond: tuple[int, ...]
    log: str

    def register(self, obstacle: Callable[[], str | None], take_over: str) -> None:
        """Call what ``take_over`` (``"module:function"``) names, unless the adapter is switched off or there is an
        obstacle. Never raises: whatever is wrong with the engine, it starts as without us, with one warning."""
        if os.environ.get(self.switch, "1") == "0":
            return
        try:
            reason = obstacle()
            if reason is None:
                load_target(take_over)()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self.warn_once(reason)

    def release(self, found: str | None) -> str | None:
        """Why the release ``found`` is not one to adapt to, or ``None``."""
        window = ".".join(map(str, self.first))
        if found is None:
            return f"no {self.engine} is installed"
        match = re.match(r"\d+(?:\.\d+)+", found)
        if match is None:
            return f"{self.engine} has version {found!r}, which is none to compare; {window} is needed"
        width = max(len(self.first), len(self.beyond))
        given = [int(part) for part in match[0].split(".")]
        numbers = tuple((given + [0] * width)[:width])
        if numbers < self.first:
            return f"{self.engine} {found} is too old; {window} is needed"
        if numbers >= self.beyond:
            return (
                f"{self.engine} {found} is newer than this adapter, which is for {window}; a newer adapter may know it"
            )
        return None

    def warn_once(self, reason: str) -> None:
        """One line, however many processes the engine starts: they inherit the environment."""
        told = f"{self.switch}_WARNED"
        if os.environ.get(told) == "1":
            return
        os.environ[told] = "1"
        logging.getLogger(self.log).warning(
            "quantdispatch is left out: %s. %s goes on without it; %s=0 silences this.",
            " ".join(reason.split()), self.engine, self.switch,
        )  # fmt: skip


def missing(needed: Needed) -> str | None:
    """The first thing that is not there, or not as it was, in words."""
    for module, attributes in needed.items():
        try:
            root: object = import_module(module)
        except Exception as error:  # a broken installation may raise anything
            return f"{module} cannot be imported: {type(error).__name__}: {error}"
        for path, expected in attributes.items():
            found = root
            for name in path.split("."):
                found = getattr(found, name, None)
            if found is None:
                return f"{module} has no {path}"
            changed = None if expected is None else _changed(found, expected)
            if changed is not None:
                return f"{module}.{path} {changed}"
    return None


def _changed(found: object, expected: tuple[str, ...]) -> str | None:
    """What is not ``expected`` of the parameters of a function or of the fields of a named tuple."""
    parameters, own = _parameters(found)
    if parameters is None:
        return "has parameters that cannot be read"
    lacking = [name for name in expected if name not in parameters]
    if lacking:
        return f"takes no {', '.join(lacking)}"
    wanted = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in _FREE and name not in (*expected, *own)
    ]
    return f"wants {', '.join(wanted)}, which is new" if wanted else None


def _parameters(found: object) -> tuple[Mapping[str, inspect.Parameter] | None, tuple[str, ...]]:
    """Parameters by name, and the first one's where it is the object that a method is of."""
    # of a class that is made otherwise than it is called, such as torch's parameters, __init__ says what it takes
    plain = isinstance(found, type) and not hasattr(found, "_fields")
    try:
        parameters = inspect.signature(found.__init__ if plain else found).parameters  # type: ignore
    except (TypeError, ValueError):
        return None, ()
    return parameters, ("self",) if "self" in parameters else ()
