"""Targets and ignore against a slow, obvious implementation: ``re`` and loops, by the rules of compressed-tensors."""

from __future__ import annotations

import re
import unicodedata
import warnings

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quantdispatch.registry import pattern_scanner
from quantdispatch.registry.pattern_syntax import as_search, portable
from quantdispatch.registry.patterns import PatternBudget, compile_pattern
from quantdispatch.registry.targets import TargetAnswer, TargetIndex, TargetMatch

RUN = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

# ------------------------------------------------------------------------------------------------------------- oracle


def matches_name(entry, name):
    if entry.startswith("re:"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.match(entry.removeprefix("re:"), name) is not None
    return entry == name


def matches_class(entry, classes):
    names = [*(c for c in classes if c != "object"), "Module"]
    return any(c == entry or (c == "LinearBase" and entry == "Linear") for c in names)


def oracle(groups, ignore, name, classes):
    """(answer, all matches): what the config says of one module, written from the rules and for nothing but reading."""
    if "InternalModule" in classes:
        return TargetAnswer(None, None, None), []
    group_of = {target: group for group, targets in groups for target in targets}
    matches = []
    for target in sorted(group_of, key=lambda entry: ("re:" in entry, entry)):
        if matches_name(target, name):
            how = "regex" if target.startswith("re:") else "name"
            matches.append(TargetMatch(group_of[target], target, how))
    by_name = len(matches)
    for target in sorted(group_of, key=lambda entry: ("re:" in entry, entry)):
        if matches_class(target, classes) and target not in [m.target for m in matches[:by_name]]:
            matches.append(TargetMatch(group_of[target], target, "class"))
    engine = None
    for of_name in (True, False):  # engines: names and regular expressions as they stand, then classes as they stand
        for target in group_of:
            found = [m for m in matches if m.target == target and (m.how != "class") is of_name]
            if found and engine is None:
                engine = found[0]
    winner = matches[0] if matches else None
    differs = engine if engine is not None and engine.group != winner.group else None
    ignored = [e for e in ignore if e == name and not e.startswith("re:")]
    ignored += [e for e in ignore if e.startswith("re:") and matches_name(e, name)]
    ignored += [e for e in ignore if matches_class(e, classes)]
    return TargetAnswer(ignored[0] if ignored else None, winner, differs), matches


def assert_like_oracle(groups, ignore, modules):
    named = [(f"g{i}", targets) for i, targets in enumerate(groups)]
    expected = [oracle(named, ignore, name, classes) for name, classes in modules]
    single, batch = TargetIndex(named, ignore), TargetIndex(named, ignore)
    answers = batch.match_many([name for name, _ in modules], [classes for _, classes in modules])
    assert answers == [answer for answer, _ in expected]
    hit_targets, hit_ignore = set(), set()
    for (name, classes), (answer, matches) in zip(modules, expected, strict=True):
        assert single.ignored_by(name, classes) == answer.ignored_by
        assert single.match(name, classes) == answer.match
        assert single.engine_order_differs(name, classes) == answer.engine_order_differs
        assert single.matches(name, classes) == matches
        hit_targets.update(m.target for m in matches)
        if "InternalModule" not in classes:
            hit_ignore.update(e for e in ignore if matches_name(e, name) or matches_class(e, classes))
    unmatched = [("target", t) for t in dict.fromkeys(t for g in groups for t in g) if t not in hit_targets]
    unmatched += [("ignore", e) for e in dict.fromkeys(ignore) if e not in hit_ignore]
    assert single.unmatched() == batch.unmatched() == unmatched


# --------------------------------------------------------------------------------------------------------- strategies

DIGITS = ["0", "1", "7", "12", "[0-4]", "[^0-4]", "[5-9a]", r"\d", r"\D", "[0-9]", r"[\d.]", "(?:3|4|56)", "[1-3][0-9]"]
LETTERS = [
    "a",
    "b",
    "K",
    "_",
    r"\.",
    ".",
    r"\w",
    r"\W",
    "[a-c]",
    "[^a]",
    r"[^\w]",
    r"[\W_]",
    r"[^\Wa]",
    r"[\S]",
    "proj",
]
SPACES = [r"\s", r"\S", r"[\s-]", r"[^\s]", " ", r"\n", r"\t", r"\x41", r"\x{0}".replace("{0}", "31"), r"\060", r"\-"]
BEYOND = ["é", "[à-ü]", "٣", r"\u00e9", "ß", "層", "²"]
REFERENCES = [r"(a|b)\1", r"(?P<n>.)(?P=n)", r"(\d)\1", r"(a)?(?(1)b|0)"]
AROUND = ["(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(?=.*\d)", r"(?!.*7)", r"(?<!\.)", r"(?=[^1]*1)"]
ANCHORS = ["^", "$", r"\b", r"\B", r"\Z", r"\A"]
REPEATS = ["", "", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{0,3}?", "{,2}", "*+", "?+"]
FLAGS = ["", "", "", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?is)"]


@st.composite
def expressions(draw, depth=2):
    def piece(level):
        kind = draw(st.integers(0, 9 if level else 7))
        if kind <= 4:
            atoms = draw(st.sampled_from([DIGITS, DIGITS, LETTERS, LETTERS, LETTERS, SPACES, BEYOND]))
            return draw(st.sampled_from(atoms)) + draw(st.sampled_from(REPEATS))
        if kind == 5:
            return draw(st.sampled_from(["|", ".*", ".*", *ANCHORS]))
        if kind == 6:
            return draw(st.sampled_from(AROUND))
        if kind == 7:
            return draw(st.sampled_from(REFERENCES))
        inner = "".join(piece(level - 1) for _ in range(draw(st.integers(1, 3))))
        opening = draw(st.sampled_from(["(", "(?:", "(?:", "(?=", "(?!", "(?>", "(?i:", "(?s:"]))
        repeat = draw(st.sampled_from(REPEATS)) if opening in ("(", "(?:") else ""
        return f"{opening}{inner}){repeat}"

    body = "".join(piece(depth) for _ in range(draw(st.integers(1, 4))))
    text = draw(st.sampled_from(FLAGS)) + draw(st.sampled_from(["", "", ".*", "^"])) + body
    text += draw(st.sampled_from(["", "", "$", ".*"]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except re.error:
        return "a"
    return text


CLASSES = st.sampled_from([
    ("Linear", "Module"), ("Linear",), (), ("Observer", "InternalModule"), ("MyLinear", "Linear"), ("X", "LinearBase"),
    ("Embedding", "object"), ("a", "Linear"), ("Module",),
])  # fmt: skip
PARTS = [
    "model",
    "layers",
    "0",
    "1",
    "7",
    "12",
    "57",
    "experts",
    "proj",
    "a",
    "b",
    "re:a",
    "K",
    "é",
    "٣",
    "a\n",
    "\x1d",
    "²",
]
NAMES = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=5).map(".".join),
    st.text(alphabet="ab01479._-A \n\té٣²\x1d", max_size=9),
)
PLAIN = st.lists(st.sampled_from(PARTS[:13]), max_size=5).map(".".join)
LITERALS = [
    "Linear",
    "Module",
    "Embedding",
    "object",
    "LinearBase",
    "a",
    "model.layers.0",
    "re:",
    "x.re:a",
    "Observer",
    "",
]


def entries(of):
    return st.lists(st.one_of(st.sampled_from(LITERALS), of.map(lambda text: "re:" + text), NAMES), max_size=6)


CONFIGS = st.lists(entries(expressions()), max_size=4)
MODULES = st.lists(st.tuples(NAMES, CLASSES), max_size=40)


@RUN
@given(CONFIGS, entries(expressions()), MODULES)
def test_any_config(groups, ignore, modules):
    assert_like_oracle(groups, ignore, modules)


@RUN
@given(CONFIGS, entries(expressions()), MODULES)
def test_any_config_without_re2(groups, ignore, modules):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_scanner, "load_re2", lambda: None)
        assert_like_oracle(groups, ignore, modules)


LAYERS = st.builds(
    "{}model.layers.{}.{}.experts.{}.{}".format,
    st.sampled_from(["", "", "", "language."]),
    st.integers(0, 70),
    st.sampled_from(["mlp", "self_attn"]),
    st.integers(0, 300),
    st.sampled_from(["up_proj", "gate_proj", "7up"]),
)


@st.composite
def layer_expressions(draw):
    """As writers make them: some layers, some experts."""
    low, high = sorted((draw(st.integers(0, 9)), draw(st.integers(0, 9))))
    number = draw(st.sampled_from([
        str(draw(st.integers(0, 70))), rf"[{low}-{high}]", rf"[{low}-{high}]\d", r"\d+",
        f"(?:{low}|{high}|{low}{high})", rf"(?!{low})\d+", rf"({low}|{high})\d*", rf"[^{low}-{high}]+", r"(\d)\1",
    ]))  # fmt: skip
    start = draw(
        st.sampled_from(
            [r"model\.layers\.", r".*layers\.", r".*experts\.", ".*", r"^.*\.", r"(?!.*attn).*layers\.", ""]
        )
    )
    return start + number + draw(st.sampled_from([r"\.", "", ".*", "$", r"\..*up_proj$", r"\.mlp.*|lm_head", r".*\d$"]))


@RUN
@given(
    st.lists(entries(layer_expressions()), max_size=4),
    entries(layer_expressions()),
    st.lists(st.tuples(st.one_of(LAYERS, LAYERS, LAYERS, NAMES), CLASSES), min_size=15, max_size=120),
)
def test_configs_that_name_layers(groups, ignore, modules):
    """Enough names for those that nothing matches to be passed over together."""
    assert_like_oracle(groups, ignore, modules)


@RUN
@given(expressions(), st.lists(NAMES, min_size=1, max_size=8))
@example(r".*\s\d", ["a\x1d1", "a\x1c٣"])
@example(r"\w+$", ["a²", "é", "e\u0301"])
@example(r"[^\W_]+$", ["a²", "_"])
@example(r"\B", ["", "a", "ab"])
@example(r"(?a)(\B)a?", ["", "a", "ab"])
def test_one_pattern(text, names):
    pattern = compile_pattern(text)
    for name in names:
        assert pattern.match(name) == matches_name("re:" + text, name), (text, name)


@RUN
@given(st.one_of(expressions(), layer_expressions()), st.lists(st.one_of(PLAIN, LAYERS), min_size=1, max_size=8))
def test_a_portable_pattern_is_searched_for_as_it_matches(text, names):
    if portable(text):
        for name in filter(pattern_scanner.plain, names):
            assert (re.search(as_search(text), name) is not None) == (re.match(text, name) is not None), (text, name)


@RUN
@given(st.text(alphabet="a01()[]|*+?{},.^$\\-", max_size=12))
def test_re_accepts_what_is_portable_and_accepted_by_re2(text):
    """So nobody has to compile it with ``re`` as well."""
    scanner, _ = pattern_scanner.build_scanner([(text, None)], PatternBudget()) if portable(text) else (None, [])
    if scanner is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)


# Everything that Unicode has, but what was added to it after either side was made.
POINTS = [
    c
    for c in map(chr, [*range(0x3100), *range(0xA000, 0xB000), *range(0xFB00, 0x10800)])
    if unicodedata.category(c) != "Cn"
]


@pytest.mark.parametrize(
    "text", [r"\w", r"\W", r"\s", r"\S", r"\d", r"\D", r"[\w-]", r"[^\s]", r"[\S]", r"[^\W\d]", r"a\b.", "."]
)
def test_letters_digits_and_spaces_are_those_of_re(text):
    pattern = compile_pattern(text, budget=PatternBudget(total_s=60))
    wanted = re.compile(text)
    wrong = []
    for point in POINTS:
        name = "a" + point if "a" in text else point
        if pattern.ask(name) is not (wanted.match(name) is not None):
            wrong.append(f"U+{ord(point):04X}")
    assert wrong == []
