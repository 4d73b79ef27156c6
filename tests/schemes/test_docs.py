"""docs/schemes.md lists the schemes of the design, marks the implemented ones, and names all of their tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.registry import get_registry

TEXT = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text()
NAMES = """wNa16_int wNa8_int wNa4_int wNa8o8_int w8a8_fp8 w8a16_fp8 w4a8_fp8 w4a4_nvfp4 w4a16_nvfp4 w4a4_mxfp4
w4a8_mxfp4 w4a16_mxfp4 w8a8_mxfp8 w8a16_mxfp8 w6a8_mxfp6 w6a16_mxfp6 kv_fp8 dense""".split()
INT = QuantArgs(num_bits=4, strategy="group", group_size=16, symmetric=False, actorder="group")
NV: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def mx(bits: int, dynamic: bool = False) -> QuantArgs:
    return QuantArgs(num_bits=bits, type="float", strategy="group", group_size=32, dynamic=dynamic, scale_dtype="uint8")


#: name: (format, weights, inputs)
MICROSCALING = {
    "w4a4_nvfp4": ("nvfp4-pack-quantized", QuantArgs(**NV), QuantArgs(**NV, dynamic="local")),
    "w4a16_nvfp4": ("nvfp4-pack-quantized", QuantArgs(**NV), None),
    "w4a4_mxfp4": ("mxfp4-pack-quantized", mx(4), mx(4, True)),
    "w4a8_mxfp4": ("mxfp4-pack-quantized", mx(4), mx(8, True)),
    "w4a16_mxfp4": ("mxfp4-pack-quantized", mx(4), None),
    "w6a8_mxfp6": ("mxfp6-pack-quantized", mx(6), mx(8, True)),
    "w6a16_mxfp6": ("mxfp6-pack-quantized", mx(6), None),
    "w8a8_mxfp8": ("mxfp8-quantized", mx(8), mx(8, True)),
    "w8a16_mxfp8": ("mxfp8-quantized", mx(8), None),
}
STATIC = QuantArgs(strategy="tensor", symmetric=False)
IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "wNa16_int": ("pack-quantized", INT, None),
    "wNa8_int": ("pack-quantized", INT, STATIC),
    "wNa4_int": ("pack-quantized", INT, QuantArgs(num_bits=4, strategy="tensor", symmetric=False)),
    "w4a8_fp8": ("pack-quantized", INT, QuantArgs(type="float", strategy="tensor")),
    "wNa8o8_int": ("pack-quantized", INT, STATIC, "0.20.1", STATIC),
    "kv_fp8": (None, None, QuantArgs(type="float", strategy="tensor"), "0.20.1", None, "attention"),
    "w8a8_fp8": ("float-quantized", QuantArgs(type="float"), QuantArgs(type="float")),
    "w8a16_fp8": ("float-quantized", QuantArgs(type="float"), None),
    "dense": (None, None, None),
}


def test_every_name_is_listed_once_with_its_state() -> None:
    table = [line for line in TEXT.splitlines() if re.search(r"\| (implemented|named only) \|$", line)]
    states = {name: line.split("|")[-2].strip() for line in table for name in re.findall(r"`(\w+)`", line)}
    assert sorted(states) == sorted(NAMES)
    assert {name for name, state in states.items() if state == "implemented"} == {*IMPLEMENTED, *MICROSCALING}


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_every_stored_tensor_is_named_in_the_section_of_its_scheme(scheme_of: Any, name: str) -> None:
    scheme = scheme_of(*IMPLEMENTED[name])
    assert scheme.name == name
    section = TEXT.split(f"\n### `{name}`\n")[1].split("\n### ")[0]
    if "as `wNa16_int`" in section:
        section += TEXT.split("\n### `wNa16_int`\n")[1].split("\n### ")[0]
    required, optional = scheme.tensor_names()
    assert [tensor for tensor in sorted(required | optional) if f"`{tensor}`" not in section] == []


@pytest.mark.parametrize("name", MICROSCALING)
def test_every_stored_tensor_of_small_floats_is_named(name: str) -> None:
    format, weights, inputs = MICROSCALING[name]
    layer = LayerFacts("linear", format, weights, inputs)
    rule = get_registry().resolve(layer).rule
    assert rule is not None
    scheme = get_registry().scheme_class(rule)(layer)
    assert scheme.name == name
    section = TEXT.split(f"\n### `{name}`\n")[1].split("\n### ")[0]
    assert scheme.tensor_names() == (frozenset(re.findall(r"`(\w+)`", section.split("Tensors:")[1])), frozenset())
