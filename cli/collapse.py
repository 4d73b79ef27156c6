"""Many module names as a few short patterns, and back.

``model.layers.0.mlp.up_proj`` ... become ``model.layers.0-29.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj}``.
The patterns are exact: :func:`expand` gives the very names back. The notation is brace expansion as in shells, with
``a-b`` between delimiters for every integer from a to b, and a backslash before a character that is meant literally, or
in place of one that shows nothing (``\\n``, ``\\x1b``, ``\\u200b``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

#: The order in which people write these, whatever order the file has them in.
CUSTOMARY = (
    *("self_attn", "linear_attn", "cross_attn", "mlp", "block_sparse_moe", "experts"),
    *("shared_expert", "shared_experts"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"),
    *("out_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj", "w1", "w3", "w2"),
)
_RANK = {name: rank for rank, name in enumerate(CUSTOMARY)}
#: Names come from files: deeper ones keep their tail in one piece, so that no name can exhaust the stack.
MAX_DEPTH = 40

# Compiled at use, and no dataclasses here: every `explain` imports this file, few need the patterns.
_RANGE = r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})"
_SPECIAL = r"[{},\\ ]|(?<=[0-9])-(?=[0-9])"
#: what shows nothing, as :func:`_literal` spells it
_UNSEEN = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nrt]))|\\(.)"


class _Node:
    __slots__ = ("children", "ends", "shape", "size")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.ends = False
        self.shape = -1
        self.size = 0  # names that begin here, once it has a shape


#: most names end where no other goes on, and share this
_LEAF = _Node()
_LEAF.ends, _LEAF.shape, _LEAF.size = True, 0, 1


def _is_integer(text: str) -> bool:
    """A number that is spelled in the one way in which we would spell it."""
    return text.isascii() and text.isdecimal() and len(text) <= 18 and (text[0] != "0" or text == "0")


def collapse(names: Iterable[str], width: int | None = None) -> list[str]:
    """Patterns that stand for exactly ``names`` (duplicates count once).

    ``width``: columns; a longer pattern is split at its outermost alternatives, where it has any. ``None`` splits only
    what has no common first component.
    """
    return [pattern for pattern, _ in collapse_counted(names, width)]


def collapse_counted(names: Iterable[str], width: int | None = None) -> list[tuple[str, int]]:
    """As :func:`collapse`, each pattern with the number of names that it stands for."""
    root = _Node()
    nodes: dict[str, _Node] = {}  # by the name of a module: most names share theirs with others
    for name in names:
        parent, dot, last = name.rpartition(".")
        if not dot or name.count(".") > MAX_DEPTH:
            _insert(root, name).ends = True
            continue
        above = nodes.get(parent)
        if above is None:
            above = nodes[parent] = _insert(root, parent)
        node = above.children.setdefault(last, _LEAF)
        if node is not _LEAF:
            node.ends = True
    _shape(root, {(True, frozenset()): _LEAF.shape})
    limit = 10**9 if width is None else width
    return [item for keys, node in _groups(root) for item in _split(_component(keys), node, limit, len(keys))]


def _insert(root: _Node, name: str) -> _Node:
    node = root
    for part in name.split(".", MAX_DEPTH):
        child = node.children.get(part)
        if child is None or child is _LEAF:
            ends = child is _LEAF
            child = node.children[part] = _Node()
            child.ends = ends
        node = child
    return node


def _split(prefix: str, node: _Node, limit: int, times: int) -> list[tuple[str, int]]:
    """``times``: how many names the prefix stands for."""
    whole = prefix + _rest(node)
    if len(whole) <= limit or not node.children:
        return [(whole, times * node.size)]
    lines = [(prefix, times)] if node.ends else []
    for keys, child in _groups(node):
        lines.extend(_split(f"{prefix}.{_component(keys)}", child, limit, times * len(keys)))
    last = not any(child.children for child in node.children.values())
    if last and all(len(line) > limit for line, _ in lines):
        return [(whole, times * node.size)]  # several lines too long are no better than one
    return lines


def _rest(node: _Node) -> str:
    """What follows a component: nothing, one continuation, or braces around several."""
    tails = ["." + _component(keys) + _rest(child) for keys, child in _groups(node)]
    if node.ends:
        return "{," + ", ".join(tails) + "}" if tails else ""
    if len(tails) == 1:
        return tails[0]
    return ".{" + ", ".join(tail[1:] for tail in tails) + "}"


def _groups(node: _Node) -> list[tuple[list[str], _Node]]:
    """The children, those that continue alike taken together, in the order people write them."""
    alike: dict[int, tuple[list[str], _Node]] = {}
    for key in _ordered(list(node.children)):
        child = node.children[key]
        alike.setdefault(child.shape, ([], child))[0].append(key)
    return list(alike.values())


def _shape(node: _Node, shapes: dict[object, int]) -> int:
    """Give every node a number that two subtrees share exactly if they hold the same names."""
    children = [(key, 0 if child is _LEAF else _shape(child, shapes)) for key, child in node.children.items()]
    node.shape = shapes.setdefault((node.ends, frozenset(children)), len(shapes)) if children else 0
    node.size = node.ends + sum(child.size for child in node.children.values())
    return node.shape


def _ordered(keys: list[str]) -> list[str]:
    if all(key in _RANK for key in keys):
        return sorted(keys, key=_RANK.__getitem__)
    return keys


def _component(keys: Sequence[str]) -> str:
    """One pattern for several names of one component."""
    if len(keys) == 1:
        return _literal(keys[0])
    head, tail = _common(keys)
    options = [key[len(head) : len(key) - len(tail)] for key in keys]
    numbers = sorted(int(option) for option in options if _is_integer(option))
    words = [option for option in options if not _is_integer(option)]
    spelled = [*_runs(numbers), *(_literal(word) for word in words)]
    if len(spelled) == 1 and not head and not tail:
        return spelled[0]
    return _literal(head) + "{" + ",".join(spelled) + "}" + _literal(tail)


def _common(keys: Sequence[str]) -> tuple[str, str]:
    """Common beginning and end of ``keys``, cut where a word ends (at ``_``) or a number starts."""
    shortest = min(len(key) for key in keys)
    first = keys[0]
    size = next((i for i in range(shortest) if any(key[i] != first[i] for key in keys)), shortest)
    numbered = first[:size].rstrip("0123456789")
    if numbered and all(_is_integer(key[len(numbered) :]) for key in keys):
        return numbered, ""
    head = first[: first.rfind("_", 0, size) + 1]
    size = next((i for i in range(shortest - len(head)) if any(key[-1 - i] != first[-1 - i] for key in keys)), 0)
    end = first[len(first) - size :]
    return head, end[end.find("_") :] if "_" in end else ""


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    start = 0
    for i, number in enumerate(numbers):
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            yield str(number) if start == i else f"{numbers[start]}-{number}"
            start = i + 1


def _literal(text: str) -> str:
    if text.isidentifier() or text.isdecimal():
        return text
    text = re.sub(_SPECIAL, lambda match: "\\" + match.group(), text)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def expand(pattern: str) -> list[str]:
    """The names that a pattern of :func:`collapse` stands for. Raises ``ValueError`` on unbalanced braces."""
    names, end = _sequence(pattern, 0, depth=0)
    if end != len(pattern):
        raise ValueError(f"unbalanced braces at column {end} of {pattern!r}")
    return names


def _sequence(text: str, at: int, depth: int) -> tuple[list[str], int]:
    """Alternatives start at ``at``; stops behind a closing brace's or the text's end."""
    names: list[str] = []
    current = [""]
    while True:
        token, at = _token(text, at)
        spelled = re.fullmatch(_RANGE, token)
        choices = (
            [str(n) for n in range(int(spelled[1]), int(spelled[2]) + 1)]
            if spelled
            else [re.sub(_UNSEEN, _meant, token, flags=re.S)]
        )
        current = [name + choice for name in current for choice in choices]
        mark = text[at : at + 1]
        if mark == "{":
            choices, at = _sequence(text, at + 1, depth + 1)
            if text[at : at + 1] != "}":
                raise ValueError(f"a brace is not closed in {text!r}")
            current = [name + choice for name in current for choice in choices]
            at += 1
        elif mark == "," and depth:
            names.extend(current)
            current = [""]
            at += 2 if text[at + 1 : at + 2] == " " else 1
        elif mark in (".", ","):
            current = [name + mark for name in current]
            at += 1
        else:
            return names + current, at


def _token(text: str, at: int) -> tuple[str, int]:
    """The characters up to the next delimiter, backslashes kept."""
    start = at
    while at < len(text) and text[at] not in ".{},":
        at += 2 if text[at] == "\\" else 1
    return text[start:at], at


def _meant(escaped: re.Match[str]) -> str:
    *codes, control, literal = escaped.groups()
    if control is not None:
        return {"n": "\n", "r": "\r", "t": "\t"}[control]
    code = next((code for code in codes if code is not None), None)
    return literal if code is None else chr(int(code, 16))
