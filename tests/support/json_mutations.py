"""One change somewhere in a JSON document: bytes changed at random are hardly ever a document."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

#: values that readers forget about
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 1.5, -0.0, 1e308, 2**31, 2**63, 2**64, 10**30, float("inf"), float("nan")),
    *("", " ", "\0", "a\nb", "\ud800", "ä", "re:", "re:.*", "re:(", "null", "0", "x" * 300),
    *([], {}, [[]], [{}], {"": {}}, [None], [0, 0], [1, 2, 3]),
)


def mutate(document: Any, chance: random.Random, words: Sequence[str] = ()) -> Any:
    """``document`` with a value replaced, taken away, repeated or moved, or a key changed; ``words`` go anywhere."""
    places = list(_places(document))
    if not places:
        return chance.choice(ODD)
    holder, key = chance.choice(places)
    act = chance.randrange(6)
    if act == 0:
        holder[key] = copy.deepcopy(chance.choice(ODD))
    elif act == 1:
        del holder[key]
    elif act == 2:
        other, place = chance.choice(places)
        holder[key] = copy.deepcopy(other[place])
    elif act == 3 and words:
        holder[key] = chance.choice(words)
    elif act == 4 and isinstance(holder, dict):
        holder[chance.choice(words) if words else f"{key}."] = copy.deepcopy(holder[key])
    elif act == 5 and isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[key]) for _ in range(chance.choice((1, 1, 1, 30))))
    elif isinstance(holder[key], int | float):
        holder[key] = holder[key] * chance.choice((-1, 2, 8, 0.5)) + chance.choice((-1, 0, 1))
    elif isinstance(holder[key], str) and (text := holder[key]):
        at = chance.randrange(len(text))
        holder[key] = text[:at] + chance.choice(["", ".", "*", "(", "é", text[at:] * 2]) + text[at + 1 :]
    else:
        holder[key] = [holder[key]]
    return document


def _places(document: Any) -> Any:
    """(container, key) of every value. Not recursive: a document may be deep."""
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            waiting.append(holder[key])
