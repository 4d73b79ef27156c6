"""Quant args: how one tensor of a layer (its weights, inputs or outputs) is quantized.

The meaning is that of ``QuantizationArgs`` of compressed-tensors (``quantization/quant_args.py``; the newest release
decides where releases differ). What is read beyond it is listed in ``docs/reading-configs.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from .config_dtypes import dtype_name

STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
Strategy = Literal["tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"]

# No tensor has larger sizes; the bound keeps every value printable.
_LARGEST = 2**31 - 1
_GROUPED = ("group", "tensor_group")
_DYNAMIC = ("token", "tensor", "tensor_group", "group")
# Old checkpoints spell the ordering that needs a stored g_idx in three ways.
_GROUP_ORDER = ("group", "dynamic")
_TRUE_WORDS = ("1", "true", "t", "yes", "y", "on")
_FALSE_WORDS = ("0", "false", "f", "no", "n", "off")


class ArgsError(ValueError):
    """Two args contradict each other, or one has no meaning. Carries the facts of the ``ConfigError`` it becomes."""

    def __init__(self, message: str, field: str, observed: Any, required: str) -> None:
        super().__init__(message)
        self.field = field
        self.observed = observed
        self.required = required


class QuantArgs(BaseModel):
    """One ``QuantizationArgs``, validated: ``strategy`` and ``zp_dtype`` are always filled in.

    ``num_bits``; ``type`` ``"int"`` or ``"float"``; ``symmetric``: no zero point; ``group_size``: values that share a
    scale along the last axis (-1: the whole axis); ``block_structure``: rows and columns that share a scale;
    ``dynamic``: ``True`` when scales are made at run time, ``"local"`` when only those of the groups are;
    ``actorder``: ``"group"`` when columns belong to groups through a stored ``g_idx``, else of no effect at run time;
    ``scale_dtype``, ``zp_dtype``: plain dtype names. ``observer`` and ``observer_kwargs`` say how the writer calibrated
    and take no part in equality.

    Raises pydantic's ``ValidationError``; ``read_args`` of :mod:`quantdispatch.registry.config` raises ``ConfigError``.
    """

    # The validator is built at first use: most commands import this module, few parse more than one config.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: Strategy | None = None
    block_structure: tuple[int, int] | None = None
    dynamic: bool | Literal["local"] = False
    actorder: Literal["weight", "static", "group"] | None = None
    scale_dtype: str | None = None
    zp_dtype: str | None = None
    observer: str | None = None
    observer_kwargs: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, data: Any) -> Any:
        """Makes old and loose spellings the one that the fields name; refuses what pydantic would read too loosely."""
        if not isinstance(data, Mapping):
            return data
        values = dict(data)
        for name in ("type", "strategy", "dynamic"):
            if isinstance(values.get(name), str):
                values[name] = values[name].lower()
        if isinstance(values.get("dynamic"), str) and values["dynamic"] != "local":
            raise ArgsError("dynamic is a boolean or 'local'", "dynamic", values["dynamic"], "true, false or 'local'")
        _read_group_size(values)
        if values.get("block_structure") is not None:
            values["block_structure"] = _block_structure(values["block_structure"])
        values["actorder"] = _actorder(values.get("actorder"))
        for name in ("scale_dtype", "zp_dtype"):
            if values.get(name) is not None:
                values[name] = _dtype(name, values[name])
        return values

    @model_validator(mode="after")
    def _infer_and_check(self) -> QuantArgs:
        for field, value in (("num_bits", self.num_bits), ("group_size", self.group_size or 0)):
            if abs(value) > _LARGEST:
                raise ArgsError(f"{field} is out of range", field, value, "an integer of 32 bits")
        # The model is frozen for its users; this is still construction.
        self.__dict__["strategy"] = strategy = self.strategy or _infer_strategy(self.group_size, self.dynamic)
        _check_strategy(self, strategy)
        if self.zp_dtype is None:
            self.__dict__["zp_dtype"] = _infer_zp_dtype(self.type, self.num_bits)
        return self

    def _key(self) -> tuple[Any, ...]:
        return (
            self.num_bits,
            self.type,
            self.symmetric,
            self.group_size,
            self.strategy,
            self.block_structure,
            self.dynamic,
            self.actorder,
            self.scale_dtype,
            self.zp_dtype,
        )

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, QuantArgs) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def describe(self) -> str:
        """A few words: ``"int4 asymmetric, group 64"``, ``"fp8 dynamic token"``, ``"int8 static tensor"``."""
        words = [f"{'fp' if self.type == 'float' else 'int'}{self.num_bits}"]
        if self.dynamic:
            words.append("dynamic" if self.dynamic is True else "local-dynamic")
        elif self.strategy in ("tensor", "attn_head"):
            words.append("static")
        if not self.symmetric:
            words.append("asymmetric")
        elif self.type == "int" and len(words) == 1:
            words.append("symmetric")
        scope = str(self.strategy)
        if self.strategy in _GROUPED:
            scope = f"{scope} {self.group_size}"
        elif self.block_structure is not None:
            scope = "block {}x{}".format(*self.block_structure)
        comma = "," if len(words) == 2 and words[-1].endswith("symmetric") else ""
        text = f"{' '.join(words)}{comma} {scope}"
        if self.scale_dtype is not None:
            text += f", {self.scale_dtype} scales"
        return f"{text}, g_idx" if self.actorder == "group" else text

    def to_json(self) -> dict[str, Any]:
        """A JSON object in compressed-tensors' spelling. Leaves out what is absent or inferred; reading it back gives
        equal args."""
        values: dict[str, Any] = {
            "num_bits": self.num_bits,
            "type": self.type,
            "symmetric": self.symmetric,
            "strategy": self.strategy,
            "dynamic": self.dynamic,
            "group_size": self.group_size,
            "block_structure": None if self.block_structure is None else list(self.block_structure),
            "actorder": self.actorder,
            "scale_dtype": None if self.scale_dtype is None else f"torch.{self.scale_dtype}",
            "zp_dtype": f"torch.{self.zp_dtype}" if self._zp_dtype_is_news() else None,
            "observer": self.observer,
            "observer_kwargs": dict(self.observer_kwargs) or None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _zp_dtype_is_news(self) -> bool:
        if not self.symmetric:
            return True
        try:
            return self.zp_dtype != _infer_zp_dtype(self.type, self.num_bits)
        except ArgsError:
            return True


def _read_group_size(values: dict[str, Any]) -> None:
    size = values.get("group_size")
    if size is None:
        return
    # A string would pass pydantic's own reading, yet compressed-tensors compares before it converts.
    if not isinstance(size, (int, float)):
        raise ArgsError("group_size is not a number", "group_size", size, "an integer, -1 for channel, or null")
    if size < -1:
        raise ArgsError("group_size is negative", "group_size", size, "a positive integer, -1 for channel, or null")


def _block_structure(value: Any) -> list[int]:
    required = "[rows, columns], two positive integers"
    parts: Any = value
    if isinstance(value, str):
        try:
            parts = [int(part) for part in value.split("x")]
        except ValueError:
            parts = None
    if (
        not isinstance(parts, (list, tuple))
        or len(parts) != 2
        or not all(isinstance(part, int) and 0 < part <= _LARGEST for part in parts)
    ):
        raise ArgsError("block_structure is not a pair of sizes", "block_structure", value, required)
    return list(parts)


def _actorder(value: Any) -> str | None:
    """``"weight"``, ``"static"``, ``"group"`` or ``None``. A boolean means group ordering or none, in any spelling."""
    text = value.lower() if isinstance(value, str) else value
    if text is None or text is False or text in _FALSE_WORDS or (isinstance(text, (int, float)) and text == 0):
        return None
    if text is True or text in _GROUP_ORDER or text in _TRUE_WORDS or (isinstance(text, (int, float)) and text == 1):
        return "group"
    if text in ("weight", "static"):
        return str(text)
    raise ArgsError("actorder is unknown", "actorder", value, "'weight', 'static', 'group', a boolean or null")


def _dtype(field: str, value: Any) -> str:
    name = dtype_name(value)
    if name is None:
        raise ArgsError(f"{field} names no dtype", field, value, "a dtype such as 'torch.float8_e4m3fn'")
    return name


def _infer_strategy(group_size: int | None, dynamic: bool | str) -> Strategy:
    if group_size is None:
        return "tensor"
    if group_size == -1:
        return "channel"
    if group_size == 0:
        raise ArgsError(
            "group_size 0 gives no strategy", "group_size", 0, "a positive integer, -1 for channel, or null"
        )
    # Local scales exist only beside a tensor-wide one, so files that leave the strategy out can mean but one thing.
    return "tensor_group" if dynamic == "local" else "group"


def _check_strategy(args: QuantArgs, strategy: str) -> None:
    """compressed-tensors' rules on which args go together."""
    size, dynamic = args.group_size, args.dynamic
    if strategy == "token" and not dynamic:
        raise ArgsError("token scales cannot be static", "dynamic", dynamic, "true with strategy token")
    if strategy in _GROUPED and (size is None or size <= 0):
        raise ArgsError(f"strategy {strategy} needs a group size", "group_size", size, "a positive integer")
    if strategy not in _GROUPED and size is not None and size > 0:
        raise ArgsError(
            f"group_size {size} contradicts strategy {strategy}", "strategy", strategy, "group or tensor_group"
        )
    if strategy == "block" and args.block_structure is None:
        raise ArgsError("strategy block needs a block_structure", "block_structure", None, "[rows, columns]")
    if strategy != "block" and args.block_structure is not None:
        raise ArgsError("block_structure contradicts the strategy", "strategy", strategy, "block")
    if dynamic and strategy not in _DYNAMIC:
        raise ArgsError(
            f"{strategy} scales cannot be dynamic", "dynamic", dynamic, f"strategy in {', '.join(_DYNAMIC)}"
        )
    if dynamic == "local" and strategy != "tensor_group":
        raise ArgsError("local scales need a tensor-wide scale", "strategy", strategy, "tensor_group")
    if args.actorder == "group" and strategy not in _GROUPED:
        raise ArgsError("group activation ordering needs groups", "strategy", strategy, "group or tensor_group")


def _infer_zp_dtype(type_: str, num_bits: int) -> str:
    if type_ == "float":
        if num_bits not in (4, 6, 8):
            raise ArgsError(f"there is no {num_bits}-bit float", "num_bits", num_bits, "4, 6 or 8 with type float")
        return "float8_e4m3fn"
    return "int8" if num_bits <= 8 else "int16" if num_bits <= 16 else "int32"
