"""Quantized embeddings in the place of a model's own, and the heads that share their weight."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...registry.errors import CheckpointError
from ...registry.plan import Resolution
from ..embedding import QuantEmbedding, TiedHead
from ..tensors import dtype_name

SCALE = "embed_scale"


def packed_embedding(
    module: nn.Module, layer: Resolution, dtype: torch.dtype, backend: str | None, tied: bool
) -> QuantEmbedding:
    """For ``module`` of the model, which ``layer`` of the checkpoint belongs to. Raises ``CheckpointError`` where the
    two disagree about shape, or the model's embedding does more than a look-up and one multiplication."""
    assert layer.scheme_object is not None and layer.shape is not None
    if not isinstance(module, nn.Embedding):
        raise _no_table(module, layer)
    if (module.num_embeddings, module.embedding_dim) != (layer.shape.n, layer.shape.k):
        raise CheckpointError(
            "the stored layer is of another shape than the model's", layer=layer.name, field="weight",
            observed=[layer.shape.n, layer.shape.k], required=[module.num_embeddings, module.embedding_dim],
            code="QD670",
        )  # fmt: skip
    factor, rounded = _factor(module, layer)
    spec = layer.scheme_object.kernel_spec(layer.shape, dtype_name(dtype), tensors=frozenset(layer.tensors))
    return QuantEmbedding(
        layer.name, layer.scheme_object, layer.shape, spec, backend=backend, original=module, tied=tied, factor=factor,
        rounded=rounded,
    )  # fmt: skip


def _factor(module: nn.Embedding, layer: Resolution) -> tuple[float | None, bool]:
    """What the module multiplies rows with, and whether it is rounded to their dtype first."""
    if type(module).forward is nn.Embedding.forward and module.max_norm is None:
        return None, False
    # a buffer is filled after loading, from the number that is kept beside it
    rounded = SCALE in module._buffers
    factor = getattr(module, f"scalar_{SCALE}" if rounded else SCALE, None)
    if not isinstance(factor, (int, float)) or not _only_scales(module, rounded):
        raise _no_table(module, layer)
    return float(factor), rounded


@torch.no_grad()
def _only_scales(module: nn.Embedding, rounded: bool) -> bool:
    """Tries the module's own forward on a small table and a factor of 3."""
    with torch.device("cpu"):
        weight, index = torch.randn(4, 2), torch.tensor([[0, 3], [1, 0]])
        trial = copy(module)
        trial._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
        trial.num_embeddings, trial.embedding_dim = weight.shape
        trial._buffers = {SCALE: torch.tensor(3.0)} if rounded else {}
        if not rounded:
            trial.__dict__[SCALE] = 3.0
        try:
            rows: Any = trial(index)
        except Exception:  # whatever it does, it is no look-up of one index
            return False
        return isinstance(rows, Tensor) and torch.equal(rows, F.embedding(index, weight) * 3.0)


def _no_table(module: nn.Module, layer: Resolution) -> CheckpointError:
    return CheckpointError(
        f"the model's {type(module).__name__} does more than look up rows and scale them, which packed weights cannot "
        "replace", layer=layer.name, field="weight", observed=type(module).__name__, required="torch.nn.Embedding",
        code="QD672",
    )  # fmt: skip


def partners(runtime: str, tied: Mapping[str, str]) -> set[str]:
    """Names of the other modules that the model gives the same weight as ``runtime``. ``tied``: target to source, by
    the names of their weights."""
    key = f"{runtime}.weight"
    source = tied.get(key, key)
    return {name.removesuffix(".weight") for name in (source, *tied) if tied.get(name, source) == source} - {runtime}


def untie(model: Any, names: Iterable[str]) -> None:
    """transformers shares parameters, and a packed table has none: it must not try with these modules, now or later."""
    keys = {f"{name}.weight" for name in names}
    for module in model.modules():
        own = getattr(module, "_tied_weights_keys", None)
        if isinstance(own, dict):
            module._tied_weights_keys = {t: s for t, s in own.items() if not (_means(t, keys) or _means(s, keys))}
    for target, source in list(model.all_tied_weights_keys.items()):
        if target in keys or source in keys:
            del model.all_tied_weights_keys[target]


def _means(pattern: str, keys: Iterable[str]) -> bool:
    return any(re.search(rf"(?:^|\.){pattern}$", key) for key in keys)


def share(model: nn.Module, embedding: QuantEmbedding, name: str, layer: Resolution) -> None:
    """Put a head in the place of module ``name`` that computes with the embedding's weight. Raises ``CheckpointError``
    for what is no plain linear layer."""
    module = model.get_submodule(name)
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        raise CheckpointError(
            f"{name} shares the embedding's weight, which is stored quantized, and is a {type(module).__name__}",
            layer=layer.name, field="tie_word_embeddings", observed=type(module).__name__,
            required="a head that is a torch.nn.Linear",
            remedy="set tie_word_embeddings to false in config.json, and store a weight for each", code="QD675",
        )  # fmt: skip
    model.set_submodule(name, TiedHead(embedding, module.bias))
