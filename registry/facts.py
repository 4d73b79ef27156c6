"""The facts that predicates test: one layer's quant args (for rules), and a kernel's task on a device (for kernels).

Facts are flat: ``weights.num_bits``, ``inputs``, ``k%32``. Optional args are a sum: the field ``inputs`` itself is
``ABSENT`` or ``PRESENT``, and so is every field under it when it is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .allowances import ALLOWANCES
from .args import QuantArgs
from .values import ABSENT, PRESENT, UNKNOWN

KINDS = ("linear", "moe", "embedding", "lm_head", "attention", "kv_cache")
ARGS_FIELDS = (
    "type",
    "num_bits",
    "strategy",
    "symmetric",
    "dynamic",
    "group_size",
    "block_structure",
    "actorder",
    "scale_dtype",
    "zp_dtype",
)
SIDES = ("weights", "inputs", "outputs")


def args_facts(side: str, args: QuantArgs | None) -> dict[str, Any]:
    """The facts of one side's quant args, under ``side`` and ``side.<field>``."""
    facts: dict[str, Any] = {side: PRESENT if args is not None else ABSENT}
    for name in ARGS_FIELDS:
        facts[f"{side}.{name}"] = ABSENT if args is None else getattr(args, name)
    return facts


@dataclass(frozen=True)
class LayerFacts:
    """What the config says about one layer: all that a scheme rule may look at."""

    kind: str
    format: str | None
    weights: QuantArgs | None
    inputs: QuantArgs | None = None
    outputs: QuantArgs | None = None

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """Facts by name, as a rule's predicate tests them: ``kind``, ``weights.num_bits``."""
        facts: dict[str, Any] = {"kind": self.kind, "format": self.format}
        for side in SIDES:
            facts.update(args_facts(side, getattr(self, side)))
        facts["same_group"] = _same_group(self.weights, self.inputs)
        return facts


def _same_group(weights: QuantArgs | None, inputs: QuantArgs | None) -> Any:
    """Derived fact: do weights and inputs share one group size? Absent unless both are grouped."""
    if weights is None or inputs is None or not weights.group_size or not inputs.group_size:
        return ABSENT
    return weights.group_size == inputs.group_size


LAYER_FIELDS = frozenset({"kind", "format", "same_group", *SIDES, *(f"{s}.{f}" for s in SIDES for f in ARGS_FIELDS)})


@dataclass(frozen=True)
class KernelSpec:
    """What a scheme needs computed for one layer.

    ``n``, ``k``: outputs and inputs, ``None`` while unknown. ``dtype``: of the activations, e.g. ``"bfloat16"``.
    ``group_size``: columns of K that share a scale: the group, the block's width, or K for channel and tensor scales.
    ``allow``: names of :data:`.allowances.ALLOWANCES` that the user has asked for.
    ``measured``: kernels that were measured for this task, fastest first; ``measured_by``: where that stands.
    ``has_g_idx``: columns belong to groups through a stored index. ``reference``: ``"module:attr"`` of the scheme's
    numerics class (the ``reference`` backend runs it). ``facts``: further facts a scheme wants kernels to see.
    """

    op: str
    kind: str
    scheme: str
    weights: QuantArgs | None
    inputs: QuantArgs | None
    outputs: QuantArgs | None
    n: int | None
    k: int | None
    dtype: str
    group_size: int | None = None
    has_g_idx: bool = False
    bias: bool = False
    reference: str = ""
    facts: tuple[tuple[str, Any], ...] = field(default=())
    allow: frozenset[str] = frozenset()
    measured: tuple[str, ...] = ()
    measured_by: str = ""

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """Facts by name, as requirements test them: ``op``, ``weights.num_bits``, ``k%group``."""
        facts: dict[str, Any] = {"op": self.op, "kind": self.kind, "scheme": self.scheme, "dtype": self.dtype}
        for side in SIDES:
            facts.update(args_facts(side, getattr(self, side)))
        facts["n"], facts["k"] = _known(self.n), _known(self.k)
        facts["group_size"] = _known(self.group_size)
        for modulus in MODULI:
            facts[f"n%{modulus}"] = UNKNOWN if self.n is None else self.n % modulus
            facts[f"k%{modulus}"] = UNKNOWN if self.k is None else self.k % modulus
            facts[f"group%{modulus}"] = UNKNOWN if self.group_size is None else self.group_size % modulus
        facts["k%group"] = UNKNOWN if not self.group_size or self.k is None else self.k % self.group_size
        facts["g_idx"] = self.has_g_idx
        facts["bias"] = self.bias
        facts.update((f"allow.{name}", name in self.allow) for name in ALLOWANCES)
        facts.update(self.facts)
        return facts


def _known(value: Any) -> Any:
    return UNKNOWN if value is None else value


MODULI = (2, 4, 8, 16, 32, 64, 128, 256)
KERNEL_FIELDS = frozenset(
    {
        *("op", "kind", "scheme", "dtype", "n", "k", "group_size", "k%group", "g_idx", "bias"),
        *(f"allow.{name}" for name in ALLOWANCES),
        *(f"{d}%{m}" for d in ("n", "k", "group") for m in MODULI),
        *SIDES,
        *(f"{s}.{f}" for s in SIDES for f in ARGS_FIELDS),
        *("device", "arch", "family", "threads", "rows"),
    }
)
#: prefixes under which an environment or a scheme may add facts that kernels test
OPEN_PREFIXES = ("isa.", "package.", "version.", "scheme.")
