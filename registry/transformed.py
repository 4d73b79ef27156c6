"""Layers with transforms at run time: whose the stored matrices are, and what can be computed.

compressed-tensors stores a transform's matrix as ``weight`` (and the order of its rows and columns as ``perm``) of a
module named ``GROUP_LOCATION`` below the module that it is applied to. Modules that share a matrix, which are those of
one group and size, store it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import CheckpointError, NoKernelFound
from .families import Modules
from .modules import LINEAR, Module, config_parts, modules_above
from .scheme import LayerShape
from .stored_tensors import Described
from .transforms import FIELD, Transform, Transforms

_TYPES = ("hadamard", "random-hadamard", "random-matrix")
_SUPPORTED = "input or output of linear layers (linear, lm_head, moe)"
_KINDS = frozenset({"linear", "lm_head", "moe"})
_FLOATS = ("F16", "BF16", "F32", "F64")
_ROLES = ("weight", "perm")
#: (group, role, size, inverse): modules share a matrix that agrees in these
Key = tuple[str, str, int, bool]


class Transformed:
    """The transforms of one checkpoint, with their stored matrices.

    ``shared``: full tensor names of what is stored, for modules that store none of their own.
    """

    def __init__(self, transforms: Transforms) -> None:
        self.transforms = transforms
        self.shared: dict[Key, str] = {}

    def note(self, name: str, labels: Sequence[str], tensors: Mapping[str, Described]) -> None:
        """Remember what a module stores for others to share."""
        for transform in self.transforms.running(labels):
            for role in _ROLES:
                entry = tensors.get(f"{transform.module}.{role}")
                if entry is not None and entry.shape:
                    key = _key(transform, role, entry.shape[0])
                    self.shared.setdefault(key, f"{name}.{transform.module}.{role}")

    def stored(self, transform: Transform, role: str, size: int) -> str | None:
        """Full name of the tensor that modules without one of their own share."""
        return self.shared.get(_key(transform, role, size))

    # -- whose the tensors are

    def adopt(self, modules: Modules) -> None:
        """Give the stored matrices, which look like small layers, to the modules that they are applied to."""
        names = self.transforms.modules
        children = [name for name in modules.families if name.rpartition(".")[2] in names]
        parents = [name.rpartition(".")[0] for name in children]
        owners = [modules.families.get(parent) for parent in parents]
        online = self.transforms.online_many(parents, [owner.classes if owner else () for owner in owners])
        for name, parent, labels in zip(children, parents, online, strict=True):
            last = name.rpartition(".")[2]
            if last not in {transform.module for transform in self.transforms.running(labels)}:
                continue  # it stays a module that nothing accounts for
            family = modules.families.pop(name)
            if parent not in modules.families:
                modules.add(Module(parent, None, ()))
            tensors = {f"{last}.{local}": kind for local, kind in family.tensors.items()}
            modules.change(parent, tensors={**modules.families[parent].tensors, **tensors})
            self.note(parent, labels, tensors)

    def elsewhere(self, modules: Modules, config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Transforms of modules that are neither layers nor attention, by module name: such modules hold no tensors, or
        others than a weight matrix. Those not among ``modules`` are added to them. ``config``: the model's."""
        families = modules.families
        classes = {name: family.classes for name, family in families.items() if family.kind is None}
        if "lm_head" not in families and _head_is_tied(modules, config):
            classes["lm_head"] = LINEAR
        classes |= {name: () for name in modules_above(families) if name not in families and name not in classes}
        online = self.transforms.online_many(list(classes), list(classes.values()))
        found = {name: labels for name, labels in zip(classes, online, strict=True) if labels}
        for name in found:
            if name not in families:
                modules.add(Module(name, None, classes[name]))
        return found

    # -- what can be computed

    def check(
        self,
        name: str,
        kind: str | None,
        labels: Sequence[str],
        tensors: Mapping[str, Described],
        *,
        shape: LayerShape | None,
        part: LayerShape | None,
        stored: bool,
    ) -> None:
        """Raises ``NoKernelFound`` for a transform that cannot be applied around the layer, and ``CheckpointError`` for
        a matrix that is missing or of the wrong shape.

        ``tensors``: of the layer. ``shape``, ``part``: of the layer, and of one rank's part of it, where known.
        ``stored``: the checkpoint's headers are at hand, so that a matrix that is not there is missing.
        """
        for transform in self.transforms.running(labels):
            if transform.location not in ("input", "output") or kind not in _KINDS:
                raise unsupported(name, kind, transform)
            if transform.type not in _TYPES:
                raise NoKernelFound(
                    f"unknown type of transform {transform.type!r}", layer=name,
                    field=f"{FIELD}.config_groups.{transform.group}.type", observed=transform.type,
                    required=" | ".join(_TYPES), code="QD753",
                )  # fmt: skip
            if transform.type == "random-matrix" and len(set(transform.inverses)) > 1:
                raise NoKernelFound(
                    f"{transform.label} and its inverse stand at one place, and the file has one matrix for both",
                    layer=name, field=FIELD, observed=list(transform.inverses), required="one direction",
                    remedy="leave out both: together they change nothing", code="QD753",
                )  # fmt: skip
            self._check_stored(name, transform, tensors, shape, stored)
            _check_part(name, transform, shape, part)

    def _check_stored(
        self, name: str, transform: Transform, tensors: Mapping[str, Described], shape: LayerShape | None, stored: bool
    ) -> None:
        size = block_size(name, transform, shape)
        prefix = f"{transform.module}."
        for local, entry in tensors.items():
            if local.startswith(prefix):
                _check_tensor(name, transform, local, entry, size)
        if size is None or not stored:
            return
        for role in ("weight", "perm") if transform.permuted else ("weight",):
            here = f"{prefix}{role}"
            if here in tensors or self.stored(transform, role, size):
                continue
            if role == "perm" or transform.type != "hadamard":
                raise CheckpointError(
                    f"{here} is missing, and no other layer stores {transform.group}'s {role} of size {size}",
                    layer=name, field=here, observed=", ".join(sorted(tensors)) or "no tensors",
                    required=f"a {role} of size {size}", remedy="look for a missing shard", code="QD654",
                )  # fmt: skip
            if size & (size - 1):
                raise NoKernelFound(
                    f"{transform.label}: no Hadamard matrix of size {size} is stored, and only those of powers of two "
                    "can be made",
                    layer=name, field=here, observed=size, required="a power of two, or a stored matrix", code="QD753",
                )  # fmt: skip


def block_size(name: str, transform: Transform, shape: LayerShape | None) -> int | None:
    """Size of the matrix, ``None`` where the layer's shape is unknown and decides. Raises ``NoKernelFound`` for blocks
    that do not divide the features."""
    size = transform.head_dim
    features = None if shape is None else shape.k if transform.location == "input" else shape.n
    if size is not None and features is not None and features % size:
        raise NoKernelFound(
            f"{transform.label}: blocks of {size} do not divide the {features} {transform.location} features",
            layer=name, field=f"{FIELD}.config_groups.{transform.group}.head_dim", observed=size,
            required=f"a divisor of {features}", code="QD753",
        )  # fmt: skip
    return size or features


def unsupported(name: str, kind: str | None, transform: Transform) -> NoKernelFound:
    """The error for a transform at a place where none is applied."""
    what = "module without a weight matrix" if kind is None else f"{kind} layer" if kind in _KINDS else kind
    return NoKernelFound(
        f"{transform.label}: no kernel applies transforms at the {transform.location} of this {what}",
        layer=name, field=FIELD, observed=f"{transform.location} of {name}", required=_SUPPORTED,
        remedy="use a checkpoint without this transform, or a plugin with a scheme for it", code="QD753",
    )  # fmt: skip


def _check_tensor(name: str, transform: Transform, local: str, entry: Described, size: int | None) -> None:
    role = local.partition(".")[2]
    if role == "weight" or (role == "perm" and transform.permuted):
        wanted = ([size, size] if role == "weight" else [size]) if size is not None else list(entry.shape)
        dtypes = _FLOATS if role == "weight" else ("I64", "I32")
        if list(entry.shape) != wanted or entry.dtype not in dtypes:
            raise CheckpointError(
                f"tensor {local} does not fit {transform.label}", layer=name, field=local,
                observed=f"{entry.dtype} {list(entry.shape)}", required=f"{' | '.join(dtypes)} {wanted}", code="QD656",
            )  # fmt: skip
        return
    raise CheckpointError(
        f"{transform.label} has no use for stored {local} ({entry.dtype} {list(entry.shape)})", layer=name, field=local,
        observed=f"{entry.dtype} {list(entry.shape)}", required="weight and perm" if transform.permuted else "weight",
        remedy="transform_config does not describe this tensor: compare it with how the layer was transformed",
        code="QD653",
    )  # fmt: skip


def _check_part(name: str, transform: Transform, shape: LayerShape | None, part: LayerShape | None) -> None:
    """A rank that has some of the features can transform whole blocks of them."""
    if shape is None or part is None:
        return
    whole, here = (shape.k, part.k) if transform.location == "input" else (shape.n, part.n)
    size = transform.head_dim or whole
    if here % size:
        raise NoKernelFound(
            f"{transform.label} mixes features of several ranks", layer=name, field="tensor_parallel",
            observed=f"{here} of {whole} features a rank", required=f"a multiple of {size}", code="QD753",
        )  # fmt: skip


def _head_is_tied(modules: Modules, config: Mapping[str, Any]) -> bool:
    """Has the model a head that no file stores, as it shares the embedding's weight?"""
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return (
        name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
        and any(part.get("tie_word_embeddings") is True for part in config_parts(config))
        and not any(family.kind == "lm_head" for family in modules.families.values())
    )


def _key(transform: Transform, role: str, size: int) -> Key:
    # of random matrices the inverse is stored as a matrix of its own
    return transform.group, role, size, transform.type == "random-matrix" and transform.inverses[0]
