"""Names to patterns and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantdispatch.cli.collapse import MAX_DEPTH, collapse, expand

ATTENTION = [f"self_attn.{x}_proj" for x in "kovq"]
MLP = [f"mlp.{x}_proj" for x in ("down", "gate", "up")]


def back(patterns: list[str]) -> list[str]:
    return [name for pattern in patterns for name in expand(pattern)]


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        ([], []),
        (["lm_head"], ["lm_head"]),
        (["a.b", "a.b"], ["a.b"]),
        (
            [f"model.layers.{i}.{p}" for i in range(30) for p in ATTENTION + MLP],
            ["model.layers.0-29.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj}"],
        ),
        (["h.0.w", "h.1.w", "h.3.w", "h.5.w", "h.6.w"], ["h.{0-1,3,5-6}.w"]),
        (["h.9.w", "h.10.w", "h.11.w"], ["h.9-11.w"]),
        (["h.w1", "h.w2", "h.w3"], ["h.w{1-3}"]),
        (["x.in_proj_qkv", "x.in_proj_z"], ["x.in_proj_{qkv,z}"]),
        (["down", "own"], ["{down,own}"]),
        (["a", "a.b", "a.c"], ["a{,.{b,c}}"]),
        (["lm_head", "model.embed"], ["lm_head", "model.embed"]),
        (["h.01", "h.02"], ["h.{01,02}"]),
        (["a.0-3"], ["a.0\\-3"]),
        (["a.{x,y}"], ["a.\\{x\\,y\\}"]),
        (["0", "1", "2"], ["0-2"]),
    ],
)
def test_table(names: list[str], patterns: list[str]) -> None:
    assert collapse(names) == patterns
    assert sorted(back(patterns)) == sorted(set(names))


def test_a_long_pattern_is_split_at_its_outermost_alternatives() -> None:
    names = [f"model.layers.{i}.{p}" for i in range(3) for p in ATTENTION + MLP]
    names += [
        f"model.layers.{i}.mlp.experts.{e}.{p}_proj" for i in range(3, 9) for e in range(4) for p in ("up", "down")
    ]
    assert collapse(names, width=70) == [
        "model.layers.0-2.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj}",
        "model.layers.3-8.mlp.experts.0-3.{up,down}_proj",
    ]


def test_depth_of_names_is_no_danger() -> None:
    names = [".".join(["a"] * (MAX_DEPTH * 100) + [str(i)]) for i in range(3)]
    assert sorted(back(collapse(names))) == sorted(names)


def test_a_hundred_thousand_names_take_one_line() -> None:
    names = [
        f"model.layers.{i}.mlp.experts.{e}.{p}_proj" for i in range(60) for e in range(256) for p in ("up", "down")
    ]
    assert collapse(names) == ["model.layers.0-59.mlp.experts.0-255.{up,down}_proj"]


@pytest.mark.parametrize("pattern", ["{a", "a}", "{a,{b}", "}"])
def test_unbalanced(pattern: str) -> None:
    with pytest.raises(ValueError):
        expand(pattern)


component = st.one_of(
    st.sampled_from(["0", "1", "2", "3", "7", "10", "q_proj", "k_proj", "_proj", "proj", "w1", "w2", "w10", "", "01"]),
    st.text(alphabet="ab01-_,{}\\ .9", max_size=5),
    st.text(max_size=3),
)
name = st.lists(component, min_size=1, max_size=4).map(".".join)


@settings(max_examples=400, deadline=None)
@given(names=st.lists(name, max_size=14), width=st.one_of(st.none(), st.integers(0, 60)))
@example(names=["x1-2", "x3-4"], width=None)
@example(names=["", "."], width=None)
@example(names=["a\\", "a\\.b"], width=3)
def test_expanding_gives_exactly_the_names_back(names: list[str], width: int | None) -> None:
    expanded = back(collapse(names, width))
    assert sorted(expanded) == sorted(set(names))


@settings(max_examples=100, deadline=None)
@given(
    layers=st.sets(st.integers(0, 40), min_size=1, max_size=20),
    parts=st.sets(st.sampled_from(ATTENTION + MLP + ["mlp.experts.0.up_proj", "mlp.experts.1.up_proj"]), min_size=1),
    left_out=st.sets(st.integers(0, 200), max_size=6),
)
def test_model_like_names(layers: set[int], parts: set[str], left_out: set[int]) -> None:
    names = [f"model.layers.{i}.{p}" for i in sorted(layers) for p in sorted(parts)]
    names = [n for i, n in enumerate(names) if i not in left_out]
    assert sorted(back(collapse(names))) == sorted(names)
