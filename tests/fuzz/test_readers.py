"""Whatever bytes stand in a config or a header: an answer or an error of ours, never another exception."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import tiny_plans as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.registry.errors import QuantDispatchError
from quantdispatch.registry.headers import parse_header
from quantdispatch.registry.plan import plan

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted(tiny.config()["quantization_config"])
HEADER = json.dumps(tiny.header(tiny.int4("m.x"))[0]).encode()


@settings(max_examples=150)
@given(st.sampled_from(KEYS), JSON)
def test_configs(key: str, value: Any) -> None:
    document = tiny.config()
    document["quantization_config"][key] = value
    with suppress(QuantDispatchError):
        plan(document, strict=False, modules={"m.x": "Linear"})


@settings(max_examples=150)
@given(st.integers(0, len(HEADER) - 1), st.integers(0, 20), st.binary(max_size=20))
def test_headers(at: int, length: int, inserted: bytes) -> None:
    text = HEADER[:at] + inserted + HEADER[at + length :]
    with suppress(QuantDispatchError):
        parse_header(text, None, "f", local=True)


@settings(max_examples=150)
@given(st.text(alphabet="ab.*+?()[]{}|^$\\1,", max_size=24))
def test_patterns(pattern: str) -> None:
    with suppress(QuantDispatchError):
        plan(tiny.config(ignore=[f"re:{pattern}"]), strict=False, modules={"m.x": "Linear"})
