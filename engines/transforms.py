"""Transforms (rotations) of what goes into a linear layer and of what comes out of it, applied at run time.

As compressed-tensors defines them (``transform/factory/base.py``, ``hadamard.py``, ``matrix_multiply.py``): x is cast
to the matrix's dtype, multiplied by it (block by block where it is smaller than the features), divided by the square
root of its size if it is a Hadamard matrix, and cast back. Inputs are transformed before the layer quantizes them,
outputs after bias and output quantization. ``inverse`` means the transpose; of a random matrix it is stored itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from ..numerics.hadamard import SMALL, Factored, factor, factors, multiply, sylvester
from ..registry.transforms import Transform
from .packed import Move, move_bits

ROLES = ("weight", "perm")


class Rotation(nn.Module):
    """A matrix [n, n] to multiply by. Modules with the same one share it; it never takes the model's dtype.

    Where a Sylvester matrix is found in a large one, only what differs from it is kept.
    """

    def __init__(
        self, weight: Tensor | Factored, perm: Tensor | None = None, *, normalized: bool, from_file: bool = True
    ) -> None:
        """``perm`` int [n]: the order that rows and columns are put into. ``normalized``: divide by sqrt(n).
        ``from_file``: some module's part of a checkpoint has it."""
        super().__init__()
        self._normalized = normalized
        self.from_file = from_file
        self.fill(weight, perm)

    @torch.no_grad()
    def fill(self, weight: Tensor | Factored, perm: Tensor | None) -> None:
        form = weight if isinstance(weight, Factored) else None
        if isinstance(weight, Tensor) and self._normalized and weight.shape[0] > SMALL:
            form = factor(weight)
        kept: dict[str, Tensor] = {}
        if form is not None:
            self._dtype = form.outer.dtype
            self.size = form.signs.shape[0]
            # products of half precision are summed up in float32, and rounded once
            wide = torch.promote_types(self._dtype, torch.float32)
            kept = {"signs": form.signs.to(wide), "outer": form.outer.to(wide)}
            sizes = factors(form.power)
            kept |= {f"base_{size}": sylvester(size, wide, form.outer.device) for size in set(sizes)}
            self._bases: tuple[str, ...] = tuple(f"base_{size}" for size in sizes)
            self._power = form.power
        else:
            matrix = cast(Tensor, weight).detach()
            self._dtype, self.size, self._bases, self._power = matrix.dtype, matrix.shape[0], (), 1
            kept["matrix"] = matrix if perm is None else matrix[perm][:, perm]
        if perm is not None:
            kept |= {"perm": perm, "back": torch.argsort(perm)}
        self._buffers.clear()
        self._buffers.update(kept)

    def forward(self, x: Tensor, transposed: bool = False) -> Tensor:
        """x [..., features], a multiple of n, to the same."""
        return self._product(x.to(self._dtype), transposed, self._dtype).to(x.dtype)

    def exact(self, x: Tensor, transposed: bool = False) -> Tensor:
        """The same in float64."""
        return self._product(x.double(), transposed, torch.float64)

    def _product(self, x: Tensor, transposed: bool, dtype: torch.dtype) -> Tensor:
        blocks = x if x.shape[-1] == self.size else x.reshape(*x.shape[:-1], -1, self.size)
        if self._bases:
            y = self._fast(blocks, transposed, torch.promote_types(dtype, torch.float32)).to(dtype)
        else:
            matrix = cast(Tensor, self._buffers["matrix"]).to(dtype)
            y = blocks @ (matrix.T if transposed else matrix)
        y = y.reshape(x.shape)
        return y / math.sqrt(self.size) if self._normalized else y

    def _fast(self, x: Tensor, transposed: bool, wide: torch.dtype) -> Tensor:
        kept = {name: cast(Tensor, t).to(wide) for name, t in self._buffers.items() if name not in ("perm", "back")}
        x = x.to(wide)
        perm = self._buffers.get("perm")
        if perm is not None:
            x = x.index_select(-1, cast(Tensor, self._buffers["back"]))
        form = Factored(kept["signs"], kept["outer"], self._power)
        y = multiply(x, form, [kept[name] for name in self._bases], transposed=transposed)
        return y if perm is None else y.index_select(-1, perm)

    def stored(self) -> dict[str, Tensor]:
        """``weight`` [n, n] and ``perm`` [n] as the checkpoint has them."""
        kept = cast("dict[str, Tensor]", self._buffers)
        perm = {"perm": kept["perm"]} if "perm" in kept else {}
        if self._bases:
            return {"weight": Factored(kept["signs"], kept["outer"], self._power).expand().to(self._dtype), **perm}
        matrix = kept["matrix"]
        return {"weight": matrix[kept["back"]][:, kept["back"]] if perm else matrix, **perm}

    def extra_repr(self) -> str:
        how = f", from Sylvester's of size {self._power}" if self._bases else ""
        return f"size={self.size}, {str(self._dtype).removeprefix('torch.')}{how}"

    # its tensors are stored by the transforms that use it
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None: ...

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None: ...

    def _apply(self, fn: Move, recurse: bool = True) -> Self:
        for name, tensor in self._buffers.items():
            self._buffers[name] = move_bits(cast(Tensor, tensor), fn)
        return self


class OnlineTransform(nn.Module):
    """One transform of a config around one module, whose child it is under the name that its tensors have in files.

    ``stores``: which of them this module's part of the checkpoint has; of modules that share a matrix it is one.
    """

    def __init__(self, transform: Transform, rotation: Rotation, stores: frozenset[str]) -> None:
        super().__init__()
        self.transform = transform
        self.rotation = rotation
        self.stores = stores
        transposable = transform.is_hadamard  # an inverse random matrix is a matrix of its own
        self._transposed = tuple(inverse and transposable for inverse in transform.inverses)

    def forward(self, x: Tensor) -> Tensor:
        for transposed in self._transposed:
            x = self.rotation(x, transposed)
        return x

    def exact(self, x: Tensor) -> Tensor:
        """``x V`` in float64, V being the whole transform."""
        for transposed in self._transposed:
            x = self.rotation.exact(x, transposed)
        return x

    def exact_transposed(self, x: Tensor) -> Tensor:
        """``x V^T`` in float64."""
        for transposed in reversed(self._transposed):
            x = self.rotation.exact(x, not transposed)
        return x

    def extra_repr(self) -> str:
        return self.transform.label

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self.stores:
            for role, tensor in self.rotation.stored().items():
                if role in self.stores:
                    destination[prefix + role] = tensor

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = {role: state_dict[prefix + role] for role in ROLES if prefix + role in state_dict}
        missing_keys.extend(prefix + role for role in sorted(self.stores - given.keys()) if strict)
        if not given:
            return
        ours = self.rotation.stored()
        for role, tensor in given.items():
            if role not in ours or tensor.shape != ours[role].shape:
                shape = list(ours[role].shape) if role in ours else "none"
                error_msgs.append(f"{prefix}{role} has the shape {list(tensor.shape)}, required {shape}")
                return
        device = ours["weight"].device
        tensors = {role: tensor.detach().to(device) for role, tensor in {**ours, **given}.items()}
        self.rotation.fill(tensors["weight"], tensors.get("perm"))


# ------------------------------------------------------------------------------------------- on modules


def attach(module: nn.Module, transforms: Sequence[OnlineTransform]) -> None:
    """Let ``module`` transform what it is given and what it returns. ``transforms``: in the order in which they run."""
    for transform in transforms:
        module.add_module(transform.transform.module, transform)
    inputs, outputs = (
        tuple(t.transform.module for t in transforms if t.transform.location == location)
        for location in ("input", "output")
    )
    if inputs:
        module.register_forward_pre_hook(partial(_transform_input, inputs), prepend=True)
    if outputs:
        module.register_forward_hook(partial(_transform_output, outputs))


def transforms_of(module: nn.Module) -> list[OnlineTransform]:
    """Those of ``module`` itself, in the order in which they run."""
    return [child for child in module.children() if isinstance(child, OnlineTransform)]


@torch.no_grad()
def folded(module: nn.Module, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight [N, K] and bias [N] of a plain linear layer that computes what ``module`` does with ``weight`` and
    ``bias`` and its transforms; in float64 if it has any.

    With V of the inputs and U of the outputs, ``(x V) W^T U = x (U^T W V^T)^T``.
    """
    transforms = transforms_of(module)
    if not transforms:
        return weight, bias
    weight = weight.double()
    for transform in reversed(transforms):
        if transform.transform.location == "input":
            weight = transform.exact_transposed(weight)
    for transform in transforms:
        if transform.transform.location == "output":
            weight = transform.exact(weight.T).T
            bias = None if bias is None else transform.exact(bias)
    return weight, bias


@torch.no_grad()
def plain(linear: nn.Linear, dtype: torch.dtype | None = None) -> nn.Linear:
    """A dense layer without transforms that computes the same; ``linear`` itself if it has none."""
    if not transforms_of(linear):
        return linear
    dtype = dtype or linear.weight.dtype
    weight, bias = folded(linear, linear.weight, linear.bias)
    with torch.device("meta"):
        result = nn.Linear(linear.in_features, linear.out_features, bias=bias is not None)
    result.weight = nn.Parameter(weight.to(dtype).contiguous(), requires_grad=linear.weight.requires_grad)
    if bias is not None:
        result.bias = nn.Parameter(bias.to(dtype), requires_grad=linear.weight.requires_grad)
    return result.train(linear.training)


def _transform_input(names: tuple[str, ...], module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x = args[0]
    for name in names:
        x = module._modules[name](x)  # type: ignore[misc]
    return (x, *args[1:])


def _transform_output(names: tuple[str, ...], module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    for name in names:
        output = module._modules[name](output)  # type: ignore[misc]
    return output
