"""What a checkpoint's quantization config says, validated and immutable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from .args import QuantArgs

MIXED_PRECISION = "mixed-precision"
NAIVE = "naive-quantized"


class ConfigProblem(BaseModel):
    """Something in a config that was read, but that its author should know of.

    ``code``: stable and short, one of ``PROBLEM_CODES`` of :mod:`quantdispatch.registry.config_reading`; ``path``: key
    path; ``message``: one sentence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    code: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigGroup(BaseModel):
    """One group of layers that are quantized alike: ``QuantizationScheme`` of compressed-tensors.

    ``inputs`` and ``outputs`` are ``input_activations`` and ``output_activations``. ``format`` is the group's own, as
    written; :meth:`QuantConfig.effective_format` gives the one that counts. ``preset`` is the preset's name when the
    group was written as one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    targets: tuple[str, ...]
    weights: QuantArgs | None = None
    inputs: QuantArgs | None = None
    outputs: QuantArgs | None = None
    format: str | None = None
    preset: str | None = None

    @property
    def sides(self) -> Iterator[tuple[str, QuantArgs]]:
        """``("weights", args)``, ``("inputs", args)``, ``("outputs", args)``, without those that are absent."""
        for side, args in (("weights", self.weights), ("inputs", self.inputs), ("outputs", self.outputs)):
            if args is not None:
                yield side, args


class QuantConfig(BaseModel):
    """A whole quantization config: ``QuantizationConfig`` of compressed-tensors.

    ``groups`` in the order of the file; ``format`` the top-level one (``fakequant`` when the file has none);
    ``transform_config`` is empty when there are no transforms; ``sparsity_config`` is left-over metadata of a dense
    checkpoint; ``version`` is that of the compressed-tensors that wrote the file; ``path`` is where in config.json the
    config was found; ``unknown_keys`` maps key paths to the values that no release known here gives a meaning.

    ``translated_by``: the distribution that translated the config of a foreign ``quant_method``. ``matrices``: local
    names of tensors that hold a layer's weights in the formats of plugins, such as ``qweight``; ``stored_names``: all
    that only those formats store.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    groups: tuple[ConfigGroup, ...] = ()
    format: str | None = "fakequant"
    ignore: tuple[str, ...] = ()
    kv_cache_scheme: QuantArgs | None = None
    transform_config: dict[str, Any] = {}
    sparsity_config: dict[str, Any] | None = None
    moe_sparsity_config: dict[str, Any] | None = None
    quantization_status: str | None = None
    global_compression_ratio: float | None = None
    version: str | None = None
    quant_method: str = "compressed-tensors"
    path: str = ""
    problems: tuple[ConfigProblem, ...] = ()
    unknown_keys: dict[str, Any] = {}
    translated_by: str | None = None
    matrices: frozenset[str] = frozenset()
    stored_names: frozenset[str] = frozenset()

    def effective_format(self, group: ConfigGroup) -> str | None:
        """How the group's tensors are stored: its own format, else the top-level one.

        ``None`` when neither says (``mixed-precision`` names no format: the stored tensors decide). The old
        ``naive-quantized`` stores what ``int-quantized`` and ``float-quantized`` store, and becomes one of them.
        """
        name = group.format or self.format
        if name == MIXED_PRECISION:
            return None
        if name == NAIVE and group.weights is not None:
            return f"{group.weights.type}-quantized"
        return name

    def alike(self, one: ConfigGroup, other: ConfigGroup) -> bool:
        """Do two groups quantize in the same way?"""
        first, second = ((g.weights, g.inputs, g.outputs, self.effective_format(g)) for g in (one, other))
        return first == second

    @property
    def is_quantized(self) -> bool:
        """Whether the config quantizes anything at all."""
        return bool(self.groups) or self.kv_cache_scheme is not None
