"""What an op was recorded to take, compared with what the installed provider's op takes.

Positional arguments that moved would be read as something else, on a GPU with no error but wrong numbers. So names,
order and types are compared when a kernel is bound. What does not matter is left out: two spellings of a name, whether
an argument is marked as written to, and defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: other spellings that releases and forks have for the same argument
_SAME = {
    "input": "a", "output": "c", "b_qweight": "b_q_weight", "b_qzeros": "b_zeros", "b_q_type": "b_type_id",
    "b_q_type_id": "b_type_id", "is_full_k": "is_k_full", "num_tokens_past_padded": "num_tokens_post_padded",
}  # fmt: skip


def usual(name: str) -> str:
    """One spelling for each argument: ``c_or_none`` and ``output`` are ``c``."""
    name = name.removesuffix("_or_none")
    return _SAME.get(name, name)


@dataclass(frozen=True)
class Signature:
    """``arguments``: (name in its usual spelling, type as torch prints it; ``""`` where it does not say)."""

    arguments: tuple[tuple[str, str], ...]

    @classmethod
    def of_schema(cls, schema: Any) -> Signature:
        """Of a ``torch`` function schema, or of its text."""
        parsed = torch._C.parse_schema(schema) if isinstance(schema, str) else schema
        return cls(tuple((usual(a.name), str(a.type)) for a in parsed.arguments))

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> Signature:
        """Of a Python function, whose annotations are not compared: they are texts that mean the same in many forms."""
        plain = inspect.unwrap(function)
        return cls(tuple((usual(name), "") for name in inspect.signature(plain).parameters))

    @classmethod
    def of_names(cls, names: Sequence[str]) -> Signature:
        return cls(tuple((usual(name), "") for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.arguments)

    def difference(self, observed: Signature) -> str | None:
        """The first argument in which ``observed`` is not this, in words; ``None`` where there is none."""
        for place, (ours, theirs) in enumerate(zip(self.arguments, observed.arguments, strict=False)):
            if ours != theirs:
                return f"argument {place} is {_text(theirs)}, recorded is {_text(ours)}"
        more, less = len(observed.arguments), len(self.arguments)
        if more > less:
            return f"there is one more argument, {_text(observed.arguments[less])}"
        return f"argument {more}, {_text(self.arguments[more])}, is not there" if more < less else None


def _text(argument: tuple[str, str]) -> str:
    name, kind = argument
    return f"{name} ({kind})" if kind else name
