"""A layer's safetensors headers against its scheme's declaration: presence, dtype, shape. No values are read here but
``weight_shape``, which schemes read to know K."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import CheckpointError
from .scheme import LayerShape, Scheme, StoredTensor, TensorInfo

BIAS_DTYPES = frozenset({"BF16", "F16", "F32"})


def check_layer(scheme: Scheme, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape | None:
    """N, K and packing of layer ``name`` if its tensors (by local name) are what ``scheme`` stores.

    Raises ``CheckpointError`` with layer, tensor, observed and required for the first tensor that is missing, has a
    dtype or shape that the scheme does not store, or contradicts the others. Tensors that the scheme does not know are
    not its business: the plan reports them.
    """
    required, _ = scheme.tensor_names()
    missing = sorted(required - set(tensors))
    if missing:
        raise CheckpointError(
            f"{scheme.name} needs {', '.join(missing)}, which the checkpoint does not have",
            layer=name,
            field=missing[0],
            observed=", ".join(sorted(tensors)) or "no tensor of this layer",
            required=", ".join(sorted(required)),
            remedy="either the config names another scheme than the file was written with, or a shard is missing",
            code="QD654",
        )
    shape = scheme.shape(name, tensors)
    if shape is None:  # no matrix: what there is to compare, the scheme has compared
        return None
    for stored in scheme.stored(shape):
        if stored.name in tensors:
            check_tensor(name, stored, tensors[stored.name])
        elif stored.required:
            raise CheckpointError(
                f"{stored.name} is missing", layer=name, field=stored.name,
                observed=", ".join(sorted(tensors)) or "no tensors", required=describe(stored), code="QD654",
            )  # fmt: skip
    if "bias" in tensors:
        check_tensor(name, StoredTensor("bias", ((shape.n,),), BIAS_DTYPES, ("out",)), tensors["bias"])
    return shape


def check_tensor(name: str, stored: StoredTensor, info: TensorInfo) -> None:
    """Raises ``CheckpointError`` unless the tensor has one of the declared dtypes and shapes."""
    if info.dtype not in stored.dtypes:
        raise CheckpointError(
            f"{stored.name} has the wrong dtype",
            layer=name,
            field=stored.name,
            observed=info.dtype,
            required=" or ".join(sorted(stored.dtypes)),
            code="QD655",
        )
    if tuple(info.shape) not in stored.shapes:
        raise CheckpointError(
            f"{stored.name} has the wrong shape",
            layer=name,
            field=stored.name,
            observed=list(info.shape),
            required=" or ".join(str(list(shape)) for shape in stored.shapes),
            code="QD656",
        )


def describe(stored: StoredTensor) -> str:
    """``"I32 [576, 72]"``."""
    shapes = " or ".join(str(list(shape)) for shape in stored.shapes)
    return f"{'/'.join(sorted(stored.dtypes))} {shapes}"
