"""Marker values of facts: ``ABSENT`` (there is none) and ``UNKNOWN`` (there may be, nobody has looked).

A config.json has no shapes, so N and K are ``UNKNOWN`` there; a weight-only layer has no input quant args, so
``inputs`` is ``ABSENT``. A requirement on an unknown fact answers *if*, on an absent one yes or no.
"""

from __future__ import annotations


class Marker:
    """The type of ``ABSENT`` and ``UNKNOWN``; each is one object, compared by identity, and false."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        # pickling and deepcopy give back the module's own object, so identity tests keep working
        return self._name.upper()


ABSENT = Marker("Absent")
UNKNOWN = Marker("Unknown")
PRESENT = "present"
