"""Our quant args against ``QuantizationArgs`` of the installed compressed-tensors.

Same verdict and same values everywhere, but for ``DEVIATIONS``: the list in ``docs/reading-configs.md`` as data.
The newest release decides; what older ones do differently is listed too, so the tests hold with any of them.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from quantdispatch.registry.args import STRATEGIES
from quantdispatch.registry.config_reading import Notes, read_args
from quantdispatch.registry.errors import ConfigError

compressed_tensors = pytest.importorskip("compressed_tensors", reason="the differential test needs compressed-tensors")
from compressed_tensors.quantization import QuantizationArgs  # noqa: E402

INSTALLED = Version(compressed_tensors.__version__).release
FIELDS = (
    "num_bits",
    "type",
    "symmetric",
    "group_size",
    "strategy",
    "block_structure",
    "dynamic",
    "actorder",
    "scale_dtype",
    "zp_dtype",
)
Raw = Mapping[str, Any]
Outcome = dict[str, Any] | None  # None: refused


def theirs(raw: Raw) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = QuantizationArgs(**raw)
    except Exception:  # ValidationError, NotImplementedError, TypeError: whatever it is, the config does not load
        return None
    values = {name: getattr(args, name) for name in FIELDS}
    values["block_structure"] = None if args.block_structure is None else tuple(args.block_structure)
    for name in ("scale_dtype", "zp_dtype"):
        values[name] = None if values[name] is None else str(values[name]).removeprefix("torch.")
    return {name: getattr(value, "value", value) for name, value in values.items()}


def ours(raw: Raw) -> Outcome:
    try:
        args = read_args(raw, "weights", Notes())
    except ConfigError:
        return None
    assert args is not None
    return {name: getattr(args, name) for name in FIELDS}


def _ordering(raw: Raw) -> str | None:
    """What a loosely spelled actorder means; ``None`` when it is spelled as the newest release wants it."""
    value = raw.get("actorder")
    word = value.lower() if isinstance(value, str) else value
    if value is True or word in ("group", "dynamic") or word in ("1", "true", "t", "yes", "y", "on"):
        return "group"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "group" if value else "none"
    if word in ("0", "false", "f", "no", "n", "off"):
        return "none"
    return "weight" if isinstance(value, str) and value != word and word in ("weight", "static") else None


@dataclass(frozen=True)
class Deviation:
    """Configs that ``applies`` may differ, and only so: ``ours`` and ``theirs`` each read (True) or refuse (False)."""

    name: str
    applies: Callable[[Raw], bool]
    ours: bool
    theirs: bool
    since: tuple[int, ...] = (0,)
    before: tuple[int, ...] = (math.inf,)  # type: ignore[assignment]

    @property
    def holds_here(self) -> bool:
        return self.since <= INSTALLED < self.before


def _too_large(raw: Raw) -> bool:
    sizes = [raw.get("num_bits"), raw.get("group_size"), *_pair(raw.get("block_structure"))]
    return any(isinstance(size, (int, float, str)) and _magnitude(size) > 2**31 - 1 for size in sizes)


def _magnitude(size: Any) -> float:
    try:
        return abs(float(size))
    except (ValueError, OverflowError):
        return math.inf if isinstance(size, int) else 0.0


def _pair(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else str(value).split("x")


def _odd_block(raw: Raw) -> bool:
    """Three sizes, or one that is not positive: before 0.18 a string was split and never looked at."""
    try:
        parts = [int(part) for part in _pair(raw.get("block_structure"))]
    except (ValueError, TypeError):
        return False
    return len(parts) != 2 or any(part <= 0 for part in parts)


DEVIATIONS = (
    Deviation(
        "group activation ordering is read in every spelling",
        lambda raw: _ordering(raw) == "group",
        ours=True,
        theirs=False,
    ),
    Deviation(
        "its spellings become one value",
        lambda raw: _ordering(raw) is not None,
        ours=True,
        theirs=True,
    ),
    Deviation(
        "no ordering, or weight ordering, in any spelling of it",
        lambda raw: _ordering(raw) in ("none", "weight"),
        ours=True,
        theirs=False,
    ),
    Deviation(
        "an ordering spelled as a number or a word for true needs groups",
        lambda raw: _ordering(raw) == "group" and raw["actorder"] is not True,
        ours=False,
        theirs=True,
    ),
    Deviation(
        "a missing strategy with local scales is tensor_group",
        lambda raw: raw.get("strategy") is None and str(raw.get("dynamic")).lower() == "local",
        ours=True,
        theirs=False,
    ),
    Deviation("sizes beyond 32 bits are refused", _too_large, ours=False, theirs=True),
    Deviation(
        "6-bit floats are known since 0.20",
        lambda raw: raw.get("num_bits") == 6 and str(raw.get("type")).lower() == "float",
        ours=True,
        theirs=False,
        before=(0, 20),
    ),
    Deviation("block_structure is checked since 0.18", _odd_block, ours=False, theirs=True, before=(0, 18)),
)


def explain(raw: Raw, mine: Outcome) -> set[str]:
    """The deviations at work in one config. Fails when the two differ and none allows it."""
    its = theirs(raw)
    if mine == its:
        return set()
    allowed = {
        d.name
        for d in DEVIATIONS
        if d.holds_here and d.applies(raw) and d.ours == (mine is not None) and d.theirs == (its is not None)
    }
    assert allowed, f"{dict(raw)}: ours {mine}, compressed-tensors {INSTALLED} {its}"
    return allowed


def meaning_grid() -> Iterator[Raw]:
    """Every combination of what args can say, in their plain spelling."""
    axes: dict[str, tuple[Any, ...]] = {
        "num_bits": (2, 4, 6, 8, 16),
        "type": ("int", "float"),
        "dynamic": (False, True, "local"),
        "group_size": (None, -1, 0, 32, -2),
        "strategy": (None, *STRATEGIES),
        "actorder": (None, "weight", "group", True),
        "block_structure": (None, [128, 128]),
    }
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


CONTEXTS: tuple[Raw, ...] = (
    {},
    {"group_size": 64},
    {"group_size": -1, "type": "float"},
    {"strategy": "block", "block_structure": [64, 32]},
    {"strategy": "token", "dynamic": True},
    {"strategy": "tensor_group", "group_size": 16, "num_bits": 4, "type": "float"},
    {"num_bits": 5, "type": "float", "zp_dtype": "torch.int8"},
)
SPELLINGS: dict[str, tuple[Any, ...]] = {
    "num_bits": (0, 1, 3, 5, 7, 17, 32, 33, -4, "8", " 8 ", "8.0", "x", "", 8.0, 8.5, True, None, [8], {"experts": 4}),
    "type": ("INT", "Float", "uint", "", None, 1, True, ["int"]),
    "symmetric": (False, True, "true", "no", "maybe", 0, 1, 2, 1.0, None, []),
    "group_size": (1, 128.0, 128.5, "128", True, False, -1.0, math.nan, math.inf, [], {}, 2**31 - 1, 2**31, 10**30),
    "strategy": ("GROUP", "Tensor_Group", "Block", "per-tensor", "", 1, False, []),
    "block_structure": (
        *("128x128", " 128 x 64", "128X128", "2x4x8", "128", "", "axb", "0x128", "-1x128", "1_0x2"),
        *([128], [1, 2, 3], [128, 128.0], ["128", "128"], [True, 2], [0, 128], (32, 16), [], {}, 128, [2**40, 1]),
    ),
    "dynamic": ("LOCAL", "Local", "true", "True", "", 0, 1, 1.0, 2, None, []),
    "actorder": (
        *("weight", "static", "group", "dynamic", "WEIGHT", "Static", "GROUP", "Dynamic", "columns", ""),
        *(True, False, 0, 1, 2, 1.0, 0.5, "true", "False", "on", "0", [], {}),
    ),
    "scale_dtype": ("torch.uint8", "uint8", "half", "torch.torch.half", "torch.", "Tensor", "", 8, None, ["uint8"]),
    "zp_dtype": ("torch.int8", "float8_e4m3fn", "torch.float", "int4", "nope", 8, None, {}),
    "observer": ("minmax", None, "", 3, []),
    "observer_kwargs": ({}, {"a": [1]}, None, [], "x"),
}


def spelling_grid() -> Iterator[Raw]:
    """Every odd spelling of one field in several contexts, and of some pairs of fields."""
    for context, (field, values) in itertools.product(CONTEXTS, SPELLINGS.items()):
        for value in values:
            yield {**context, field: value}
    pairs = (
        ("strategy", "group_size"),
        ("dynamic", "strategy"),
        ("block_structure", "strategy"),
        ("actorder", "strategy"),
    )
    for first, second in pairs:
        for one, other in itertools.product(SPELLINGS[first], (*SPELLINGS[second], *STRATEGIES[:4], 32)):
            yield {"group_size": 64, first: one, second: other}


@functools.cache
def survey(grid: Callable[[], Iterator[Raw]]) -> tuple[frozenset[str], Counter[bool]]:
    """The deviations seen on a grid, and how many configs are read and refused."""
    seen: set[str] = set()
    verdicts: Counter[bool] = Counter()
    for raw in grid():
        mine = ours(raw)
        seen |= explain(raw, mine)
        verdicts[mine is not None] += 1
    return frozenset(seen), verdicts


@pytest.mark.parametrize("grid", [meaning_grid, spelling_grid])
def test_same_verdict_and_values(grid: Callable[[], Iterator[Raw]]) -> None:
    _, verdicts = survey(grid)
    # A grid of refusals, or of none, would say little.
    assert min(verdicts.values()) > 100 and verdicts.total() > 1000


def test_every_deviation_is_real() -> None:
    """A listed deviation that no config shows is a claim that is no longer true."""
    seen = survey(meaning_grid)[0] | survey(spelling_grid)[0]
    assert seen == {d.name for d in DEVIATIONS if d.holds_here}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=4,
)
ANY_ARGS = st.fixed_dictionaries(
    {}, optional={field: st.sampled_from(values) | JSON for field, values in SPELLINGS.items()}
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANY_ARGS)
def test_same_verdict_on_anything(raw: Raw) -> None:
    explain(raw, ours(raw))
