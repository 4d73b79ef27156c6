"""What reading a regular expression tells about it, without running it: which engine may have it, in which spelling,
how large a program it makes, and which digits it can tell apart.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_TOKEN = re.compile(
    r"(?P<comment>\(\?\#[^)]*\))|(?P<named>\\N\{[^}]*\})|(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*+\])"
    r"|(?P<repeat>\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]*)\})|(?P<brace>\{)|(?P<other>.)",
    re.DOTALL,
)

# ------------------------------------------------------------------------------------- RE2, where it means the same

# The syntax that means the same to RE2 and to Python's re on printable ASCII names, and that re accepts wherever RE2
# does. Anything else goes to the other engine: \Z, \B, look-around, back-references, possessive and atomic groups,
# flags but a leading (?i), {,n} (literal text to RE2), nested brackets, any character outside of ASCII. Possessive
# repetition keeps this check itself linear.
_QUANTIFIER = r"(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??"
_PUNCTUATION = r"\\[!-/:-@\[-`{-~]"
_CLASS_CHAR = r"(?:[A-Za-z0-9_.,:;/ @+*?(){}$#%=<>!'\"]|" + _PUNCTUATION + ")"
_CLASS = rf"\[\^?-?(?:\\[dwsDWS]|{_CLASS_CHAR}(?:-{_CLASS_CHAR})?)++-?\]"
_ATOM = rf"(?:[A-Za-z0-9_/ ,:;<>=!@#%&~'\"`.-]|\\[dwsDWS]|{_PUNCTUATION}|{_CLASS})"
_PORTABLE = re.compile(rf"(?:\(\?i\))?(?:{_ATOM}(?:{_QUANTIFIER})?+|\((?:\?:)?|\)(?:{_QUANTIFIER})?+|\||[\^$]|\\b)*+")

_MAX_DEPTH = 50  # parentheses; re refuses what nests too deeply for its recursion, which RE2 does not use
_MAX_PROGRAM = 20_000  # RE2 instructions of one expression
_IGNORE_CASE = "(?i)"


def portable(text: str) -> bool:
    """Whether RE2, if it accepts ``text``, means by it what ``re`` means, on names of printable ASCII characters."""
    return _PORTABLE.fullmatch(text) is not None and _nesting(text)[0] and program_size(text) <= _MAX_PROGRAM


def as_search(text: str) -> str:
    """An expression that is found somewhere in a name where portable ``text`` matches at its start.

    ``.*`` at either end says no more than that; a hundred expressions that begin with it would be a hundred threads.
    """
    flags, body = (_IGNORE_CASE, text[len(_IGNORE_CASE) :]) if text.startswith(_IGNORE_CASE) else ("", text)
    if _nesting(body)[1]:
        return f"{flags}^(?:{body})"
    if body.endswith(".*") and body[-3:-2] != "\\":
        body = body[:-2]
    free = body.removeprefix("^")
    return flags + free.removeprefix(".*").removeprefix("?") if free.startswith(".*") else f"{flags}^(?:{body})"


def _nesting(text: str) -> tuple[bool, bool]:
    """Whether the parentheses pair and do not nest too deeply, and whether there is a choice outside of all of them."""
    if "(" not in text and ")" not in text:
        return True, "|" in text
    depth, choice = 0, False
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if piece == "(":
            depth += 1
        elif piece == ")":
            depth -= 1
        elif piece == "|":
            choice = choice or not depth
        if not 0 <= depth <= _MAX_DEPTH:
            return False, choice
    return depth == 0, choice


def program_size(text: str) -> int:
    """About how many instructions an engine makes of ``text``, rather more than fewer: counted repetition copies what
    it repeats, and "once or more" may do so, once for each level of nesting."""
    if "{" not in text and ")+" not in text:
        return 2 * len(text) + 4
    stack = [0]  # instructions so far, by open group
    last = 0  # ... of what a repetition would copy
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token[0]
        if kind == "repeat":
            counts = [int(number) for number in re.findall("[0-9]{1,9}", piece)]
            stack[-1] += last * max(counts, default=0) + 3
        elif piece == "+":
            stack[-1] += last
        elif piece == "(":
            stack.append(0)
            last = 0
        elif piece == ")" and len(stack) > 1:
            last = stack.pop() + 3
            stack[-1] += last
        elif kind != "comment":
            last = 2 + (len(piece) if kind == "set" else 0)
            stack[-1] += last
    return sum(stack) + 4


# ------------------------------------------------------------------------------------------- regex, where it does not

_IN_SET = re.compile(r"\\.|\[", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[aiLmsu]*x")
_ASCII = re.compile(r"\(\?[imsux]*a")

# re goes by str.isalnum and str.isspace, regex by other properties of Unicode (marks are no letters to re, and the
# separators U+001C to U+001F are spaces to it).
_WORD = r"\p{L}\p{N}_"
_SPACE = r"\x09-\x0d\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1b\x21-\x84\x86-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    r"\u3001-\U0010ffff"
)
_EMPTY = r"(?!\A\Z)" if sys.version_info < (3, 14) else ""  # \B does not match in an empty text before Python 3.14
_ESCAPES = {
    r"\w": f"[{_WORD}]",
    r"\W": f"[^{_WORD}]",
    r"\s": f"[{_SPACE}]",
    r"\S": f"[^{_SPACE}]",
    r"\b": f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))",
    r"\B": f"(?:(?<=[{_WORD}])(?=[{_WORD}])|(?<![{_WORD}])(?![{_WORD}]){_EMPTY})",
}
_ASCII_ESCAPES = {r"\B": rf"\B{_EMPTY}"}
_SET_ESCAPES = {"[": r"\[", r"\w": _WORD, r"\s": _SPACE, r"\S": _NO_SPACE}


def for_regex(text: str) -> str:
    """``text``, which ``re`` accepts, as the ``regex`` package has to see it to mean what ``re`` means by it.

    There a brace that is no repetition would ask for fuzzy matching, ``[[:alpha:]]`` would be a POSIX class, and other
    characters are letters and spaces. Raises ``ValueError`` for what has no such spelling.
    """
    if _VERBOSE.search(text):
        if "{" in text or "[" in text:
            raise ValueError("the verbose flag together with brackets or braces; write it without (?x)")
        return text
    unicode = not _ASCII.search(text)
    parts: list[str] = []
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token.group()
        if kind == "brace":
            piece = r"\{"
        elif kind == "repeat" and piece.startswith("{,"):
            piece = "{0" + piece[1:]
        elif kind == "set":
            piece = _set_for_regex(piece, unicode)
        elif kind == "escape":
            piece = (_ESCAPES if unicode else _ASCII_ESCAPES).get(piece, piece)
        parts.append(piece)
    return "".join(parts)


def _set_for_regex(piece: str, unicode: bool) -> str:
    negated = piece.startswith("[^")
    body = piece[2 if negated else 1 : -1]
    members = _IN_SET.findall(body)
    if not unicode:
        body = _IN_SET.sub(lambda m: r"\[" if m[0] == "[" else m[0], body)
        return f"[^{body}]" if negated else f"[{body}]"
    others = _IN_SET.sub(lambda m: "" if m[0] == r"\W" else _SET_ESCAPES.get(m[0], m[0]), body)
    if r"\W" not in members:
        return f"[^{others}]" if negated else f"[{others}]"
    # a set cannot hold the complement of two properties, so it is spelled as a choice
    if negated:
        return f"(?:(?![{others}])[{_WORD}])" if others else f"[{_WORD}]"
    return f"(?:[^{_WORD}]|[{others}])" if others else f"[^{_WORD}]"


# ------------------------------------------------------------------------------------------------------------- digits

_DIGIT_TOKEN = re.compile(
    r"\\(?P<escape>.)|\[\^?(?P<set>\]?(?:\\.|[^\]\\])*+)\]|(?P<repeat>\{[0-9]*,?[0-9]*\})|(?P<refer>\(\?P=)|(?P<digit>[0-9])",
    re.DOTALL,
)
_MEMBER = re.compile(r"(?P<low>\\.|[^\\])-(?P<high>\\.|[^\\])|(?P<one>\\.|.)", re.DOTALL)
_FLAGS = re.compile(r"\(\?[a-zA-Z]*x")
_SAFE_ESCAPES = frozenset("dDwWsSbBAZ")
_DIGITS = "0123456789"

DigitSets = frozenset[frozenset[str]]


def digit_table(sets: Iterable[DigitSets | None]) -> bytes | None:
    """A ``bytes.translate`` table that maps each digit to the least one that no pattern with these :func:`digit_sets`
    tells it from; ``None`` when that would be every digit to itself."""
    seen: set[frozenset[str]] = set()
    for of_one in sets:
        if of_one is None:
            return None
        seen |= of_one
    by_signature: dict[tuple[bool, ...], str] = {}
    order = list(seen)
    image = [by_signature.setdefault(tuple(digit in group for group in order), digit) for digit in _DIGITS]
    return None if image == list(_DIGITS) else bytes.maketrans(_DIGITS.encode(), "".join(image).encode())


def digit_sets(text: str) -> DigitSets | None:
    """The sets of digits that the literals and classes of ``text`` single out; it may name more than matter, never
    fewer. ``None`` when ``text`` may look at digits in another way (back-references, numeric escapes, comments)."""
    if "(?#" in text or _FLAGS.search(text):  # in comments, brackets do not pair
        return None
    sets: set[frozenset[str]] = set()
    for token in _DIGIT_TOKEN.finditer(text):
        kind, piece = token.lastgroup, token[token.lastgroup or 0]
        if kind == "refer" or (kind == "escape" and not _harmless(piece)):
            return None
        if kind == "digit":
            sets.add(frozenset(piece))
        elif kind == "set":
            for member in _MEMBER.finditer(piece):
                ends = [end for end in member.groups() if end is not None]
                if any(end[0] == "\\" and not _harmless(end[1]) for end in ends):
                    return None
                if ends[0][-1] in _SAFE_ESCAPES and len(ends[0]) > 1:  # \d and its like take all digits or none
                    continue
                sets.add(frozenset(d for d in _DIGITS if ends[0][-1] <= d <= ends[-1][-1]))
    return frozenset(sets - {frozenset(), frozenset(_DIGITS)})


def _harmless(escaped: str) -> bool:
    return escaped in _SAFE_ESCAPES or not escaped.isalnum()
