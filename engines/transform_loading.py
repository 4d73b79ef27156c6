"""Transforms of a checkpoint's layers: read from its files, put around modules, and said again when those are saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..numerics.hadamard import SMALL, Factored, sylvester
from ..registry.plan import Plan, Resolution
from ..registry.scope import Scope
from ..registry.stored_tensors import TensorEntry
from ..registry.transformed import Transformed, block_size, unsupported
from ..registry.transforms import OFFLINE, Transform, Transforms
from .tensors import read_tensor
from .transforms import ROLES, OnlineTransform, Rotation, attach, transforms_of


class TransformLoader:
    """Reads the transforms of a plan's layers; layers that share a matrix get the same one."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._transforms = Transforms(plan.config.transform_config)
        self._transformed = Transformed(self._transforms)
        self._known: dict[tuple[Any, ...], Rotation] = {}
        if self._transforms:
            self._transforms.scope = Scope(plan.config.path, plan.layers)
            for layer in plan.layers.values():
                if layer.transforms:
                    self._transformed.note(layer.name, layer.transforms, layer.tensors)

    def attach(self, module: nn.Module, layer: Resolution, device: torch.device) -> None:
        """Give ``module`` the transforms of ``layer``."""
        if not layer.transforms:
            return
        found = []
        for transform in self._transforms.running(layer.transforms):
            stores = frozenset(role for role in ROLES if f"{transform.module}.{role}" in layer.tensors)
            found.append(OnlineTransform(transform, self._rotation(layer, transform, device), stores))
        attach(module, found)

    def attach_dense(self, module: nn.Module, layer: Resolution, device: torch.device) -> None:
        """The same for a module that transformers loaded. Raises ``NoKernelFound`` if it is no linear layer, which a
        plan could not know."""
        if isinstance(module, nn.Linear):
            self.attach(module, layer, device)
            return
        classes = [cls.__name__ for cls in type(module).__mro__]
        meant = self._transforms.running(self._transforms.online(layer.name, classes))
        if meant:
            raise unsupported(layer.name, type(module).__name__, meant[0])

    def _rotation(self, layer: Resolution, transform: Transform, device: torch.device) -> Rotation:
        size = block_size(layer.name, transform, layer.shape)
        assert size is not None  # a layer that is loaded has a shape
        roles = ROLES if transform.permuted else ROLES[:1]
        names = [self._tensor_name(layer, transform, role, size) for role in roles]
        key = (transform.group, size, transform.type, transform.precision, device, *names)
        rotation = self._known.get(key)
        if rotation is None:
            weight, perm = (self._read(name, device) for name in (*names, None)[:2])
            made = weight is None
            if made:
                weight = _made(size, transform.precision, device)
            rotation = Rotation(weight, perm, normalized=transform.is_hadamard, from_file=not made)
            self._known[key] = rotation
        return rotation

    def _tensor_name(self, layer: Resolution, transform: Transform, role: str, size: int) -> str | None:
        local = f"{transform.module}.{role}"
        return f"{layer.name}.{local}" if local in layer.tensors else self._transformed.stored(transform, role, size)

    def _read(self, name: str | None, device: torch.device) -> Any:
        if name is None:
            return None
        assert self._plan.checkpoint is not None
        return read_tensor(self._plan.checkpoint.tensors[name]).to(device)


def matrices(layer: Resolution) -> list[str]:
    """Local names of what a layer stores of its transforms: tensors of modules below it."""
    return [local for local in layer.tensors if "." in local] if layer.transforms else []


def own_tensors(layer: Resolution) -> dict[str, TensorEntry]:
    """What a layer stores apart from :func:`matrices`."""
    theirs = set(matrices(layer))
    return {local: entry for local, entry in layer.tensors.items() if local not in theirs}


def _made(size: int, precision: str, device: torch.device) -> Tensor | Factored:
    dtype: torch.dtype = getattr(torch, precision)
    if size <= SMALL:
        return sylvester(size, dtype, device)
    return Factored(torch.ones(size, dtype=dtype, device=device), torch.ones(1, 1, dtype=dtype, device=device), size)


# ------------------------------------------------------------------------------------------ when a model is saved


def say_folded(model: nn.Module, names: Iterable[str], config: dict[str, Any]) -> None:
    """Make the quantization ``config`` ignore those of ``names``, modules that were given transforms, that have lost
    them, and let others store what they shared with them."""
    modules = dict(model.named_modules())
    folded = [name for name in names if name in modules and not transforms_of(modules[name])]
    if folded:
        _keep_stored(model)
        config["transform_config"] = ignoring(config["transform_config"], folded)


def _keep_stored(model: nn.Module) -> None:
    """Let another module store a shared matrix where the one that did has no transforms any more."""
    sharing: dict[int, list[OnlineTransform]] = {}
    for module in model.modules():
        if isinstance(module, OnlineTransform) and module.rotation.from_file:
            sharing.setdefault(id(module.rotation), []).append(module)
    for transforms in sharing.values():
        if not any(transform.stores for transform in transforms):
            transforms[0].stores = frozenset(ROLES)


def ignoring(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A ``transform_config`` that leaves modules ``names`` alone at run time."""
    names = list(names)
    groups = {}
    for key, group in config["config_groups"].items():
        apply = [args if args["location"] in OFFLINE else _ignoring(args, names) for args in group["apply"]]
        groups[key] = {**group, "apply": apply}
    return {**config, "config_groups": groups}


def _ignoring(args: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    before = args.get("ignore", [])
    before = [before] if isinstance(before, str) else before
    return {**args, "ignore": [*before, *(name for name in names if name not in before)]}
