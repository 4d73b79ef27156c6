"""docs/schemes.md lists the schemes of the design, marks the implemented ones, and names all of their tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quantdispatch.registry.args import QuantArgs

TEXT = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text()
NAMES = """wNa16_int wNa8_int wNa4_int wNa8o8_int w8a8_fp8 w8a16_fp8 w4a8_fp8 w4a4_nvfp4 w4a16_nvfp4 w4a4_mxfp4
w4a8_mxfp4 w4a16_mxfp4 w8a8_mxfp8 w8a16_mxfp8 w6a8_mxfp6 w6a16_mxfp6 kv_fp8 dense""".split()
INT = QuantArgs(num_bits=4, strategy="group", group_size=16, symmetric=False, actorder="group")
IMPLEMENTED = {
    "wNa16_int": ("pack-quantized", INT, None),
    "wNa8_int": ("pack-quantized", INT, QuantArgs(strategy="tensor", symmetric=False)),
    "w8a8_fp8": ("float-quantized", QuantArgs(type="float"), QuantArgs(type="float")),
    "w8a16_fp8": ("float-quantized", QuantArgs(type="float"), None),
    "dense": (None, None, None),
}


def test_every_name_is_listed_once_with_its_state() -> None:
    table = [line for line in TEXT.splitlines() if re.search(r"\| (implemented|named only) \|$", line)]
    states = {name: line.split("|")[-2].strip() for line in table for name in re.findall(r"`(\w+)`", line)}
    assert sorted(states) == sorted(NAMES)
    assert {name for name, state in states.items() if state == "implemented"} == set(IMPLEMENTED)


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_every_stored_tensor_is_named_in_the_section_of_its_scheme(scheme_of: Any, name: str) -> None:
    scheme = scheme_of(*IMPLEMENTED[name])
    assert scheme.name == name
    section = TEXT.split(f"\n### `{name}`\n")[1].split("\n### ")[0]
    if "as `wNa16_int`" in section:
        section += TEXT.split("\n### `wNa16_int`\n")[1].split("\n### ")[0]
    required, optional = scheme.tensor_names()
    assert [tensor for tensor in sorted(required | optional) if f"`{tensor}`" not in section] == []
