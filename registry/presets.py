"""The names that stand for a whole group: ``{"W4A16": ["Linear"]}``.

The same schemes as ``PRESET_SCHEMES`` of compressed-tensors (``quantization/quant_scheme.py``), as plain data: the
tests compare the two.
"""

from __future__ import annotations

from typing import Any

_DYNAMIC_TOKEN = {"strategy": "token", "dynamic": True}
_FP8 = {"num_bits": 8, "type": "float"}
_NVFP4 = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_dtype": "float8_e4m3fn",
    "zp_dtype": "float8_e4m3fn",
}


def _mx(bits: int) -> dict[str, Any]:
    """Microscaling floats: groups of 32 with a power of two as scale, stored as its exponent in a byte."""
    return {"num_bits": bits, "type": "float", "group_size": 32, "scale_dtype": "uint8", "zp_dtype": "uint8"}


def _grouped_int(bits: int) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "group_size": 128}


def _scheme(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"weights": weights} if inputs is None else {"weights": weights, "input_activations": inputs}


def _integer_schemes() -> dict[str, dict[str, Any]]:
    """W2A4 to W8A16: no wider weights than inputs, and W8A8 is another scheme (channel scales)."""
    names = {f"W{w}A16": _scheme(_grouped_int(w)) for w in range(2, 9)}
    for inputs, widest in ((8, 7), (4, 4)):
        for weights in range(2, widest + 1):
            names[f"W{weights}A{inputs}"] = _scheme(_grouped_int(weights), {"num_bits": inputs, **_DYNAMIC_TOKEN})
    return names


_W8A8 = _scheme({"num_bits": 8, "strategy": "channel"}, {"num_bits": 8, **_DYNAMIC_TOKEN})

PRESETS: dict[str, dict[str, Any]] = {
    "UNQUANTIZED": {},
    **_integer_schemes(),
    "W4A16_ASYM": _scheme({**_grouped_int(4), "symmetric": False}),
    "W8A8": _W8A8,
    "INT8": _W8A8,
    "W4AFP8": _scheme(_grouped_int(4), {**_FP8, **_DYNAMIC_TOKEN}),
    "FP8": _scheme({**_FP8, "strategy": "tensor"}, {**_FP8, "strategy": "tensor", "observer": "static_minmax"}),
    "FP8_DYNAMIC": _scheme({**_FP8, "strategy": "channel"}, {**_FP8, **_DYNAMIC_TOKEN}),
    "FP8_BLOCK": _scheme(
        {**_FP8, "strategy": "block", "block_structure": [128, 128]},
        {**_FP8, "strategy": "group", "group_size": 128, "dynamic": True},
    ),
    "NVFP4A16": _scheme(_NVFP4),
    "NVFP4": _scheme(_NVFP4, {**_NVFP4, "dynamic": "local", "observer": "static_minmax"}),
    "MXFP4A16": _scheme(_mx(4)),
    "MXFP4": _scheme(_mx(4), {**_mx(4), "dynamic": True}),
    "MXFP4XFP8": _scheme(_mx(4), {**_FP8, "group_size": 128, "dynamic": True}),
    "MXFP6A16": _scheme(_mx(6)),
    "MXFP6A8": _scheme(_mx(6), {**_mx(8), "dynamic": True}),
    "MXFP8A16": _scheme(_mx(8)),
    "MXFP8": _scheme(_mx(8), {**_mx(8), "dynamic": True}),
}


def preset(name: str) -> dict[str, Any] | None:
    """The raw group of a preset (without targets), in any letter case; ``None`` when there is none of that name."""
    return PRESETS.get(name.upper())
