"""Stored tensors that nobody wrote: the headers of a layer of a given shape, and a checkpoint folder from headers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..registry.checkpoint import CONFIG, SINGLE
from ..registry.headers import DTYPE_BITS, TensorEntry
from ..registry.scheme import LayerShape, Scheme
from .rows import TableError

#: what a writer chooses where a scheme admits several dtypes
_PREFERRED = ("BF16", "I64", "I32", "I8", "U8", "F32")
_SPELLED = re.compile(r"([A-Z]\w*)\s+(\d+(?:\s*x\s*\d+)*|scalar)")
_VALUES = re.compile(r"(I64|I32)\s*=\s*(-?\d+(?:\s*,\s*-?\d+)*)")
_BYTES = {"I64": 8, "I32": 4}


class _Header(TensorEntry):
    """A header entry without a file. ``data`` stands for the bytes where a plan goes by values."""

    __slots__ = ("data",)

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], data: bytes | None) -> None:
        super().__init__(name, dtype, shape, "(a row's shape)", 0, math.prod(shape) * DTYPE_BITS[dtype] // 8, False)
        self.data = data

    def read(self) -> bytes | None:
        return self.data


def layer_tensors(scheme: Scheme, n: int, k: int) -> dict[str, TensorEntry]:
    """The headers, by local name, that ``scheme`` stores for ``n`` outputs and ``k`` inputs."""
    tensors: dict[str, TensorEntry] = {}
    for stored in scheme.stored(LayerShape(n, k)):
        dtype = next((d for d in _PREFERRED if d in stored.dtypes), min(stored.dtypes))
        data = _integers("I64", (n, k)) if stored.name == "weight_shape" else None
        tensors[stored.name] = _Header(stored.name, dtype, stored.shapes[0], data)
    return tensors


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, str]) -> Path:
    """A checkpoint folder whose one file has these tensors, spelled as in a row; all zeros but for given integers.

    ``config``: a whole config.json, or a ``quantization_config``. Raises ``TableError`` for what is not spelled so.
    """
    whole = (
        config if "quantization_config" in config or "config_groups" not in config else {"quantization_config": config}
    )
    (folder / CONFIG).write_text(json.dumps(whole), encoding="utf-8")
    entries: dict[str, Any] = {}
    contents: list[tuple[int, bytes]] = []
    end = 0
    for name, spelled in tensors.items():
        dtype, shape, data = _read_spelling(name, spelled)
        start, end = end, end + (math.prod(shape) * DTYPE_BITS[dtype] + 7) // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        contents += [(start, data)] if data else []
    header = json.dumps(entries).encode()
    with (folder / SINGLE).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        # a hole where there are zeros: layers of real models take no space
        file.truncate(8 + len(header) + end)
        for start, data in contents:
            file.seek(8 + len(header) + start)
            file.write(data)
    return folder


def _read_spelling(name: str, spelled: str) -> tuple[str, list[int], bytes]:
    values = _VALUES.fullmatch(spelled.strip())
    if values is not None:
        numbers = [int(part) for part in values[2].split(",")]
        return values[1], [len(numbers)], _integers(values[1], numbers)
    match = _SPELLED.fullmatch(spelled.strip())
    if match is None or match[1] not in DTYPE_BITS:
        raise TableError(
            f"tensors.{name}: not a dtype and a shape",
            field=f"tensors.{name}", observed=spelled, required='"BF16 128x64", "F32 scalar" or "I64 = 128, 64"',
        )  # fmt: skip
    return match[1], [] if match[2] == "scalar" else [int(part) for part in match[2].split("x")], b""


def _integers(dtype: str, numbers: Any) -> bytes:
    return b"".join(int(number).to_bytes(_BYTES[dtype], "little", signed=True) for number in numbers)
