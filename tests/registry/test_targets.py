"""Targets and ignore: the meaning of compressed-tensors, held against compressed-tensors itself."""

from __future__ import annotations

import functools
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch.registry import pattern_sets
from quantdispatch.registry.errors import ConfigError
from quantdispatch.registry.targets import TargetIndex, TargetMatch

LINEAR = ("Linear", "Module")


# ------------------------------------------------------------------------------- against compressed-tensors' functions


@functools.cache
def module_of(bases: tuple[str, ...]):
    """A module whose MRO below ``torch.nn.Module`` has these class names, most derived first."""
    import torch

    cls = torch.nn.Module
    for name in reversed(bases):
        if name == "Linear":
            cls = torch.nn.Linear if cls is torch.nn.Module else type("Linear", (cls,), {})
        elif name == "InternalModule":
            from compressed_tensors.utils.internal import InternalModule

            cls = InternalModule
        else:
            cls = type(name, (cls,), {})
    return cls.__new__(cls)


def classes_of(module) -> tuple[str, ...]:
    import torch

    return tuple(c.__name__ for c in type(module).__mro__ if issubclass(c, torch.nn.Module))


NAMES = [
    "",
    "lm_head",
    "Linear",
    "model",
    "model.layers.0",
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.k_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.11.mlp.down_proj",
    "model.layers.0.mlp.experts.7.down_proj",
    "model.layers.0.mlp.gate",
    "a.re:b",
    "re:lm_head",
    "vision_tower.blocks.3.mlp.fc1",
]
BASES = [
    ("Linear",),
    ("LinearBase",),
    ("QKVParallelLinear", "LinearBase"),
    ("MyLinear", "Linear"),
    ("Embedding",),
    ("LlamaAttention",),
    ("Observer", "InternalModule"),
    ("lm_head", "Linear"),
    (),
]
ENTRIES = [
    *NAMES[1:],
    "Linear",
    "LinearBase",
    "Module",
    "object",
    "linear",
    "Embedding",
    "MyLinear",
    "Attention",
    "LlamaAttention",
    "down_proj",
    "mlp.down_proj",
    "re:.*_proj",
    "re:.*q_proj$",
    "re:q_proj",
    r"re:model\.layers\.[0-9]\.",
    r"re:model\.layers\.1\.",
    "re:lm_head",
    "re:lm",
    "re:.*mlp.*",
    "re:(?!.*mlp).*proj",
    "re:Linear",
    "re:re:lm_head",
    "re:",
    "re:.*experts.*down",
    r"re:.*\d+\.(q|k)_proj",
]
GROUPS = st.lists(st.lists(st.sampled_from(ENTRIES), max_size=5), min_size=1, max_size=4)
IGNORE = st.lists(st.sampled_from(ENTRIES), max_size=4)
MODULES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(BASES)), min_size=1, max_size=12)


def assert_like_compressed_tensors(groups, ignore, modules):
    match = pytest.importorskip("compressed_tensors.utils.match", reason="compressed-tensors is not installed")
    named = [(f"group_{i}", targets) for i, targets in enumerate(groups)]
    index = TargetIndex(named, ignore)
    scheme_of = {target: group for group, targets in named for target in targets}
    hit_targets, hit_ignore = set(), set()
    for name, bases in modules:
        module = module_of(bases)
        classes = classes_of(module)
        expected = match.match_targets(name, module, scheme_of)
        hit_targets.update(expected)
        hit_ignore.update(entry for entry in ignore if match.is_match(name, module, entry))
        matches = index.matches(name, classes)
        assert [m.target for m in matches] == expected
        assert [m.group for m in matches] == [scheme_of[target] for target in expected]
        assert index.match(name, classes) == (matches[0] if matches else None)
        for found in matches:
            by_name = match.match_name(name, found.target)
            assert found.how == (("regex" if found.target.startswith("re:") else "name") if by_name else "class")
        assert (index.ignored_by(name, classes) is not None) == match.is_match(name, module, ignore)
        if (entry := index.ignored_by(name, classes)) is not None:
            assert entry in ignore and match.is_match(name, module, entry)
        assert bool(expected) == match.is_match(name, module, list(scheme_of))
    assert index.unmatched() == [
        *(("target", target) for target in scheme_of if target not in hit_targets),
        *(("ignore", entry) for entry in dict.fromkeys(ignore) if entry not in hit_ignore),
    ]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(GROUPS, IGNORE, MODULES)
def test_like_compressed_tensors(groups, ignore, modules):
    assert_like_compressed_tensors(groups, ignore, modules)


PARTS = st.sampled_from(["model", "layers", "0", "1", "12", "mlp", "q_proj", "gate", "experts", "Linear"])
DOTTED = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
ANY_ENTRY = st.one_of(
    DOTTED,
    DOTTED.map(lambda name: "re:" + name),
    DOTTED.map(lambda name: "re:.*" + re.escape(name) + "$"),
    st.builds(lambda a, b: f"re:{a}.*{b}", DOTTED, DOTTED),
    st.builds(lambda a, b: rf"re:.*\.({a}|{b})\.\d", PARTS, PARTS),
    st.sampled_from(["Linear", "LinearBase", "Embedding"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(ANY_ENTRY, max_size=6), min_size=1, max_size=4),
    st.lists(ANY_ENTRY, max_size=5),
    st.lists(st.tuples(DOTTED, st.sampled_from(BASES)), min_size=1, max_size=10),
)
def test_like_compressed_tensors_on_random_names(groups, ignore, modules):
    assert_like_compressed_tensors(groups, ignore, modules)


# -------------------------------------------------------------------------------------------------- cases, as a table

Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"
# (what, groups, name, classes, (group, target, how) | None)
CASES = [
    ("class", [["Linear"]], DOWN, LINEAR, (0, "Linear", "class")),
    ("class of a base", [["Linear"]], DOWN, ("MyLinear", "Linear"), (0, "Linear", "class")),
    ("class of vLLM's base", [["Linear"]], DOWN, ("RowParallelLinear", "LinearBase"), (0, "Linear", "class")),
    ("class names are exact: case", [["linear"]], DOWN, LINEAR, None),
    ("class names are exact: part", [["Row"]], DOWN, ("RowParallelLinear", "LinearBase"), None),
    ("every module is a Module", [["Module"]], DOWN, ("Linear",), (0, "Module", "class")),
    ("a regex does not see classes", [["re:Linear"]], DOWN, LINEAR, None),
    ("anchored at the start", [["re:down_proj"]], DOWN, LINEAR, None),
    ("not anchored at the end", [["re:.*down"]], DOWN, LINEAR, (0, "re:.*down", "regex")),
    ("a suffix is not a name", [["mlp.down_proj"]], DOWN, LINEAR, None),
    ("regex over class, listed second", [["Linear"], ["re:.*down_proj"]], DOWN, LINEAR, (1, "re:.*down_proj", "regex")),
    ("regexes by alphabet", [["re:.*q_proj"], ["re:.*proj"]], Q, LINEAR, (1, "re:.*proj", "regex")),
    ("name over regex, listed second", [["re:.*mlp.*"], [DOWN]], DOWN, LINEAR, (1, DOWN, "name")),
    ("the last of two groups", [["Linear"], ["Linear"]], DOWN, LINEAR, (1, "Linear", "class")),
    ("classes by alphabet", [["MyLinear"], ["Linear"]], DOWN, ("MyLinear", "Linear"), (1, "Linear", "class")),
    ("a name that is a class too", [["lm_head", "Linear"]], "lm_head", ("lm_head", "Linear"), (0, "lm_head", "name")),
    ("a name with re: inside ranks as a regex", [["x.re:y"], ["re:x"]], "x.re:y", LINEAR, (1, "re:x", "regex")),
    ("compressed-tensors' own helpers", [["Module", "re:.*"]], "a", ("Observer", "InternalModule"), None),
    (
        "written W4A16 by name, inside an FP8 regex",
        [[r"re:.*self_attn\.(q|k|v|o)_proj$"], ["model.layers.4.self_attn.o_proj"]],
        "model.layers.4.self_attn.o_proj",
        LINEAR,
        (1, "model.layers.4.self_attn.o_proj", "name"),
    ),
    ("no group at all", [], DOWN, LINEAR, None),
    ("no class known", [["Linear"]], DOWN, (), None),
    ("a class given as a string", [["Linear"]], DOWN, "Linear", (0, "Linear", "class")),
    ("classes as a list", [["Linear"]], DOWN, ["X", "Linear"], (0, "Linear", "class")),
]


def index_of(groups, ignore=()):
    return TargetIndex([(f"g{i}", targets) for i, targets in enumerate(groups)], ignore)


@pytest.mark.parametrize(("groups", "name", "classes", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_match(groups, name, classes, expected):
    found = index_of(groups).match(name, classes)
    assert found == (None if expected is None else TargetMatch(f"g{expected[0]}", *expected[1:]))


@pytest.mark.parametrize(
    ("ignore", "name", "expected"),
    [
        ([DOWN], DOWN, DOWN),
        (["down_proj"], DOWN, None),  # SGLang ignores by dotted suffix; the writer did not
        (["model.layers.0.mlp"], DOWN, None),  # a parent does not ignore its children
        (["re:model.layers.0.mlp"], DOWN, "re:model.layers.0.mlp"),
        (["re:.*mlp.*"], DOWN, "re:.*mlp.*"),
        (["re:mlp"], DOWN, None),
        (["Linear"], DOWN, "Linear"),  # no engine ignores by class; the writer did
        (["linear"], DOWN, None),
        (["Linear", "re:.*z", "re:.*down", "re:.*", DOWN], DOWN, DOWN),
        (["Linear", "re:.*z", "re:.*down", "re:.*"], DOWN, "re:.*down"),
        (["model.language_model.layers.0.mlp.down_proj"], DOWN, None),
        (["lm_head"], "model.lm_head", None),
        ([], DOWN, None),
    ],
)
def test_ignored_by(ignore, name, expected):
    index = index_of([["Linear"]], ignore)
    assert index.ignored_by(name, LINEAR) == expected
    assert index.ignored_by(name, LINEAR) == expected  # and again, from memory


@pytest.mark.parametrize(
    ("groups", "name", "expected"),
    [
        # what vLLM and SGLang were seen to take for these configs
        ([["re:.*mlp.*"], [DOWN]], DOWN, (0, "re:.*mlp.*", "regex")),
        ([["re:.*q_proj"], ["re:.*proj"]], Q, (0, "re:.*q_proj", "regex")),
        ([["Linear"], ["re:.*down_proj"]], DOWN, None),
        ([["Linear"], ["Linear"]], DOWN, None),
        ([["re:.*zz", "Linear"], [Q], ["re:.*q_proj"]], Q, None),
        # one target in two groups: first place, last args
        ([["re:.*q_proj"], ["re:.*proj"], ["re:.*q_proj"]], Q, (2, "re:.*q_proj", "regex")),
        # another target of the same group is no difference
        ([["re:.*q_proj", "re:.*proj"]], Q, None),
    ],
)
def test_engine_order_differs(groups, name, expected):
    found = index_of(groups).engine_order_differs(name, LINEAR)
    assert found == (None if expected is None else TargetMatch(f"g{expected[0]}", *expected[1:]))


def test_all_matches_in_order():
    index = index_of([["Linear", "re:.*proj"], [Q, "re:.*attn"]])
    assert [m.target for m in index.matches(Q, LINEAR)] == [Q, "re:.*attn", "re:.*proj", "Linear"]


def test_unmatched_and_repeated():
    index = index_of([["Linear", "re:.*x"], ["Linear", "lm_head"]], ["gone", "re:.*gate$", "gone"])
    assert index.unmatched() == [
        ("target", "Linear"),
        ("target", "re:.*x"),
        ("target", "lm_head"),
        ("ignore", "gone"),
        ("ignore", "re:.*gate$"),
    ]
    index.match("lm_head", LINEAR)
    index.ignored_by("m.gate", LINEAR)
    assert index.unmatched() == [
        ("target", "re:.*x"),
        ("ignore", "gone"),
    ]  # Linear matched too, though it did not decide
    assert index.repeated() == [("Linear", "g0", "g1")]


@pytest.mark.parametrize(
    ("groups", "ignore", "field", "words"),
    [
        ([["re:("]], [], "config_groups.g0.targets", "position 0"),
        ([["Linear"]], ["re:a**"], "ignore", "position 2"),
        ([["re:" + "a" * 1_000_000]], [], "config_groups.g0.targets", "regular expressions"),
        ([[f"re:a{i}" for i in range(100_000)]], [], "config_groups.g0.targets", "100000"),
        ([["Linear"]], [f"re:a{i}" for i in range(100_000)], "ignore", "100000"),
        ([["Linear", 3]], [], "config_groups.g0.targets", "not a string"),
        ([["Linear"]], [None], "ignore", "not a string"),
        (["Linear"], [], "config_groups.g0.targets", "list"),
        ([["Linear"]], "lm_head", "ignore", "list"),
    ],
)
def test_refused(groups, ignore, field, words):
    with pytest.raises(ConfigError, match=words) as caught:
        index_of(groups, ignore)
    assert caught.value.field == field and caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_out_of_time_is_an_error_for_targets_and_ignore():
    for index in (index_of([[r"re:(a+)\1+b"]]), index_of([], [r"re:(a+)\1+b"])):
        with pytest.raises(ConfigError, match="out of time"):
            index.match("a" * 50_000, LINEAR)
        with pytest.raises(ConfigError, match="out of time"):
            index.ignored_by("a" * 50_000, LINEAR)


# --------------------------------------------------------------------------------------------------------------- cost


def kimi_names():
    attention = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    for layer in range(61):
        prefix = f"model.layers.{layer}"
        yield from (f"{prefix}.self_attn.{p}" for p in attention)
        yield from (f"{prefix}.mlp.shared_experts.{p}_proj" for p in ("gate", "up", "down"))
        yield from (f"{prefix}.mlp.experts.{e}.{p}_proj" for e in range(256) for p in ("gate", "up", "down"))


def test_names_that_differ_in_numbers_are_scanned_once(monkeypatch):
    names = list(kimi_names())
    assert len(names) == 47_275
    index = index_of(
        [[r"re:.*experts\.\d+\.down_proj$"], ["re:(?!.*shared).*gate_proj"], ["Linear"]],
        [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:.*gate$",
            "lm_head",
        ],
    )
    scanned = []
    ask = pattern_sets._Part._ask
    monkeypatch.setattr(pattern_sets._Part, "_ask", lambda part, name: (scanned.append(name), ask(part, name))[1])
    groups = {}
    for name in names:
        if index.ignored_by(name, LINEAR) is None:
            found = index.match(name, LINEAR)
            groups[found.group] = groups.get(found.group, 0) + 1
    assert groups == {"g0": 61 * 256, "g1": 61 * 256, "g2": 61 * 256}
    assert (
        len(scanned) <= 2 * 7 + 2 * 3 * 3
    )  # digits of a layer number times digits of an expert number, not the numbers


def test_literals_are_not_scanned():
    """Not a timing: a list that compares itself with no entry but by hash."""

    class Name(str):
        compared = 0

        def __eq__(self, other):
            type(self).compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = list(kimi_names())
    index = index_of([[Name(n) for n in names[:2000]], ["Linear"]], [Name(n) for n in names[2000:2489]])
    Name.compared = 0
    for name in names:
        if index.ignored_by(name, LINEAR) is None:
            index.match(name, LINEAR)
    assert Name.compared < 40 * 2489


def test_json_lists_work_as_they_are():
    block = json.loads('{"g": {"targets": ["Linear"]}}')
    index = TargetIndex([(k, v["targets"]) for k, v in block.items()])
    assert index.match("a", ["Linear"]) == TargetMatch("g", "Linear", "class")
