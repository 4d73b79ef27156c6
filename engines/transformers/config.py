"""The quantization config that our quantizer carries through transformers.

transformers' own class parses the block with the installed compressed-tensors and writes back what that version makes
of it. Ours keeps the block as it stands in the file: it was understood by the plan, and is saved as it came.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from transformers.utils import quantization_config as hf
from transformers.utils.quantization_config import QuantizationMethod

from ...registry.plan import Plan
from ..modules import DENSE_PACKING

#: our own name in transformers' tables, for `quantdispatch.load`: nothing is replaced, no other thread disturbed
PRIVATE_METHOD = "quantdispatch"


@dataclass
class Prepared:
    """What ``quantdispatch.load`` has settled before transformers is called. Rides in the config; never copied.

    ``foreign``: the ``quant_method`` of a config that a plugin translated.
    """

    plan: Plan
    backend: str | None
    progress: bool
    foreign: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        return self


# The name is part of the interface: transformers compares the class names of the file's config and of one that a user
# passes.
class CompressedTensorsConfig(hf.CompressedTensorsConfig):  # type: ignore[misc]
    """Everything of the parent that tells how to load, and the raw block."""

    def __init__(
        self,
        *,
        run_compressed: bool | None = None,
        dequantize: bool = False,
        use_optimized_inference: bool = False,
        prepared: Prepared | None = None,
        **raw: Any,
    ) -> None:
        # transformers picks the quantizer by this; ours then puts the common name in place
        self.quant_method: Any = PRIVATE_METHOD if prepared else QuantizationMethod.COMPRESSED_TENSORS
        # `run_compressed=False` is the older spelling of `dequantize=True`
        self.dequantize = dequantize or run_compressed is False
        self.use_optimized_inference = use_optimized_inference
        self.prepared = prepared
        method = prepared.foreign if prepared is not None else None
        self.raw = {**raw, "quant_method": method or QuantizationMethod.COMPRESSED_TENSORS.value}
        self.repacked = False

    @property
    def quantization_config(self) -> Any:
        """The block as the installed compressed-tensors reads it, for code that asks for it."""
        from compressed_tensors.quantization import QuantizationConfig

        return QuantizationConfig.model_validate(self.raw) if self.raw.get("config_groups") else None

    def to_dict(self) -> dict[str, Any]:
        raw = copy.deepcopy(self.raw)
        if self.repacked:
            raw["version"] = DENSE_PACKING
        return raw

    def to_diff_dict(self) -> dict[str, Any]:
        return self.to_dict()
