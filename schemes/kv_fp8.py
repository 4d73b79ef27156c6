"""``kv_fp8``: keys and values, and with attention args the queries too, in float8_e4m3 with static scales.

Format: compressed-tensors ``quantization/lifecycle/initialize.py``: ``k_scale``, ``v_scale`` and ``q_scale`` on the
attention module, [1] for a whole tensor and [heads, 1, 1] with a scale a head. Older writers quantized the outputs of
the projections that fill the cache, so there the scales are those projections' ``output_scale``. There is no weight
matrix: such a layer has no N and no K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..registry.args import QuantArgs
from ..registry.errors import CheckpointError
from ..registry.facts import KernelSpec
from ..registry.scheme import LayerShape, Scheme, StoredTensor, TensorInfo
from ..registry.tensor_checks import check_tensor
from .stored import FLOATS, ONE, ZERO_POINTS

#: how the scale of each part is spelled, the present spelling first
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "k": ("k_scale", "k_proj.output_scale", "qkv_proj.output_scale"),
    "v": ("v_scale", "v_proj.output_scale", "qkv_proj.output_scale"),
    "q": ("q_scale",),
}


class KVFp8(Scheme):
    """What goes into the cache is stored as x / scale in float8; attention reads it times scale."""

    name: ClassVar[str] = "kv_fp8"
    numerics: ClassVar[str] = "quantdispatch.schemes.reference.kv_fp8:KVFp8Numerics"

    @property
    def args(self) -> QuantArgs:
        """How keys, values and queries are quantized: the layer's input args."""
        if self.layer.inputs is None:
            raise ValueError("a scheme for the key and value cache needs input args")
        return self.layer.inputs

    @property
    def parts(self) -> tuple[str, ...]:
        """``("k", "v")`` for a cache, ``("k", "v", "q")`` for attention."""
        return ("k", "v", "q") if self.layer.kind == "attention" else ("k", "v")

    def stored(self, shape: LayerShape | None = None) -> Sequence[StoredTensor]:
        """The present spelling. ``shape.n`` counts heads; only scales a head depend on it."""
        heads = 1 if shape is None else shape.n
        return tuple(self._scale(f"{part}_scale", heads) for part in self.parts)

    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        required = frozenset(SPELLINGS[part][0] for part in self.parts)
        scales = {name for names in SPELLINGS.values() for name in names}
        return required, frozenset(scales | {_zero_point(name) for name in scales}) - required

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> None:
        """There is no matrix. Raises ``CheckpointError`` as :meth:`check` does."""
        heads = {}
        for part in self.parts if "q_scale" not in tensors else SPELLINGS:
            local = spelling(part, tensors, name)
            info = tensors[local]
            heads[part] = info.shape[0] if info.shape else 1
            check_tensor(name, self._scale(local, heads[part]), info)
            self._check_zero_point(name, local, heads[part], tensors)
        if heads["k"] != heads["v"]:
            raise CheckpointError(
                "keys and values have scales for different numbers of heads",
                layer=name, field="v_scale", observed=heads["v"], required=heads["k"], code="QD656",
            )  # fmt: skip

    def check(self, name: str, tensors: Mapping[str, TensorInfo]) -> None:
        """Raises ``CheckpointError`` for a scale that is missing, stored twice or of a wrong dtype or shape."""
        self.shape(name, tensors)

    def kernel_spec(self, shape: LayerShape | None, dtype: str, *, tensors: frozenset[str] = frozenset()) -> KernelSpec:
        return KernelSpec(
            op="kv_cache",
            kind=self.layer.kind,
            scheme=self.name,
            weights=None,
            inputs=self.args,
            outputs=None,
            n=None,
            k=None,
            dtype=dtype,
            reference=self.numerics,
        )

    def _scale(self, local: str, heads: int) -> StoredTensor:
        if self.args.strategy == "attn_head":
            return StoredTensor(local, ((heads, 1, 1), (heads,)), FLOATS, ("out", "", ""))
        return StoredTensor(local, ONE, FLOATS, ("",))

    def _check_zero_point(self, name: str, scale: str, heads: int, tensors: Mapping[str, TensorInfo]) -> None:
        """Symmetric args have none, but a writer may leave its zeros behind."""
        local = _zero_point(scale)
        if local in tensors:
            declared = self._scale(local, heads)
            check_tensor(name, StoredTensor(local, declared.shapes, ZERO_POINTS | {"F8_E4M3"}), tensors[local])


def spelling(part: str, tensors: Mapping[str, object], layer: str) -> str:
    """Under which name the scale of a part is stored. Raises ``CheckpointError`` unless there is exactly one."""
    found = [name for name in SPELLINGS[part] if name in tensors]
    if len(found) != 1:
        raise CheckpointError(
            f"{SPELLINGS[part][0]} is {'stored twice' if found else 'missing'}",
            layer=layer, field=found[1] if found else SPELLINGS[part][0],
            observed=", ".join(found or sorted(tensors)) or "no tensor of this layer",
            required=f"one of {', '.join(SPELLINGS[part])}",
            remedy="the cache was written in another spelling, or not calibrated", code="QD654",
        )  # fmt: skip
    return found[0]


def _zero_point(scale: str) -> str:
    return scale.removesuffix("scale") + "zero_point"
