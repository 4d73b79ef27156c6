"""All routed experts of a layer in a few launches: tokens sorted by expert, gate and up, activation, down, the sum.

Nothing waits for the device: as many blocks are launched as there may be, and those without a token end at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor

from ...registry.args import QuantArgs
from .activations import fake_quantized, quantize
from .activations_layer import QuantizedLinear
from .activations_weights import with_scale
from .config import bucket
from .experts_kernel import grouped
from .experts_tiles import EXPERT_TILES, ROWS, Work
from .launch import HALVES, device_of, family, index_of
from .tiles import rounded_rows, step_of

Bound = tuple[QuantizedLinear, dict[str, Tensor]]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
#: of a row of the table of addresses
_FIELDS = ("packed", "scale", "zero", "bias", "global_scale")
_TYPES = {
    torch.int8: tl.int8, torch.uint8: tl.uint8, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}  # fmt: skip


class ExpertLinear(QuantizedLinear):
    """One projection of one expert; :func:`fuse` computes those of all experts together."""

    @staticmethod
    def fuse(first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str) -> Experts | None:
        return fuse(first, last, activation)


@dataclass(frozen=True)
class Sorted:
    """Pairs by expert in blocks of ``rows``: the pairs of each block, and its expert; -1 for none."""

    pairs: Tensor
    blocks: Tensor
    rows: int


def sort(index: Tensor, experts: int, rows: int) -> Sorted:
    """``index`` int [T, k]; what is no expert from 0 to ``experts`` - 1 is left out."""
    flat = index.reshape(-1)
    count = flat.numel()
    most = min(count, experts) + count // rows
    expert = torch.where((flat >= 0) & (flat < experts), flat, experts).to(torch.int64)
    order = torch.argsort(expert, stable=True)
    ordered = expert[order]
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=flat.device).scatter_add_(
        0, expert, torch.ones_like(expert)
    )
    taken = (counts[:experts] + rows - 1) // rows
    ends = taken.cumsum(0)
    # what is left out goes behind the last block
    starts = torch.cat([(ends - taken) * rows, torch.full_like(ends[:1], most * rows)])
    places = starts[ordered] + torch.arange(count, device=flat.device) - (counts.cumsum(0) - counts)[ordered]
    pairs = torch.full(((most * rows) + count,), -1, dtype=torch.int32, device=flat.device)
    pairs[places] = order.to(torch.int32)
    numbers = torch.arange(most, device=flat.device)
    of = torch.searchsorted(ends, numbers, right=True)
    blocks = torch.where(numbers < ends[-1], of, -1).to(torch.int32)
    return Sorted(pairs[: most * rows], blocks, rows)


class Projection:
    """The same projection of all experts."""

    def __init__(self, layers: Sequence[Bound]) -> None:
        impl, state = layers[0]
        self.n, self.k, self.dtype, self.args = impl.n, impl.k, impl.dtype, impl.inputs
        self.small = impl.small_inputs is not None
        self.of = with_scale(impl.product, impl.spec, state["scale"])
        self.state = state
        rows = [[_address(own.get(name)) for name in _FIELDS] for _, own in layers]
        self.table = torch.tensor(rows, dtype=torch.int64).to(state["packed"].device)
        self.types = {
            "WEIGHTS": _TYPES[state["packed"].dtype],
            "SCALES": _TYPES[state["scale"].dtype],
            "BIASES": _TYPES[state["bias"].dtype] if "bias" in state else tl.float32,
        }

    def __call__(self, x: Tensor, places: Sorted, repeat: int, out: Tensor, work: Work) -> Tensor:
        """x [rows, K] to ``out`` [pairs, N]; pairs of no expert keep what is there."""
        where = family(x)
        tile = EXPERT_TILES.choice(
            index_of(x), self.of, places.rows, self.n, self.k, work.experts, work.pairs, HALVES[self.dtype]
        )
        step = step_of(self.of, tile)
        seen, scale = x, None
        if self.args is not None and self.small:
            seen = fake_quantized(x, self.args)
        elif self.args is not None:
            seen, scale, _ = quantize(x, self.args)
        grouped[(-(-self.n // tile.bn), places.blocks.numel())](
            seen, self.table, places.blocks, places.pairs, scale, out, self.n, self.k, seen.stride(0),
            self.state["packed"].stride(0), self.state["scale"].shape[1],
            -(-self.k // self.of.x_group) if self.of.x_group else 1, repeat, FIELDS=len(_FIELDS), **self.types,
            BIAS="bias" in self.state, GLOBAL="global_scale" in self.state, **self.of.constants(where, self.dtype),
            EVEN=self.k % step == 0, BM=places.rows, BN=tile.bn, BK=tile.bk, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip
        return out


class Experts:
    """x [T, H], int [T, k] and fp32 [T, k] to [T, H]: the weighted sum over the chosen experts."""

    def __init__(self, first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str) -> None:
        # the tensors, for the addresses are of their memory
        self._kept = [dict(state) for own in first for _, state in own] + [dict(state) for _, state in last]
        self.first = [Projection(layers) for layers in zip(*first, strict=True)]
        self.last = Projection(last)
        self.activation = _ACTIVATIONS[activation]
        self.experts = len(last)
        self.sizes = tuple((one.of, one.n, one.k) for one in (*self.first, self.last))

    def __call__(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        tokens, chosen = index.shape
        pairs = tokens * chosen
        if pairs == 0:
            return torch.zeros_like(x)
        with device_of(x):
            rows = x.contiguous()
            work = Work(self.sizes, self.experts, rounded_rows(pairs // self.experts), bucket(pairs))
            places = sort(index, self.experts, ROWS.choice(index_of(x), work, HALVES[x.dtype]).rows)
            parts = [
                one(rows, places, chosen, torch.zeros((pairs, one.n), dtype=torch.float32, device=x.device), work)
                for one in self.first
            ]
            hidden = self.activation(parts[0])
            if len(parts) == 2:
                hidden = hidden * parts[1]
            out = torch.zeros((pairs, self.last.n), dtype=torch.float32, device=x.device)
            self.last(hidden.to(x.dtype), places, 1, out, work)
            weighted = out.view(tokens, chosen, -1) * weights.float().unsqueeze(-1)
        return weighted.sum(1).to(x.dtype)


def fuse(first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str) -> Experts | None:
    """``None`` where inputs have parameters of each expert's own, or are seen as a whole, and where experts differ."""
    columns = [list(layers) for layers in zip(*first, strict=True)] if len({len(own) for own in first}) == 1 else []
    if activation not in _ACTIVATIONS or len(columns) not in (1, 2):
        return None
    for layers in (*columns, list(last)):
        impl, state = layers[0]
        if not _takes(impl.inputs) or impl.outputs is not None:
            return None
        for other, own in layers:
            same = (other.n, other.k, other.dtype, other.product, other.how) == (
                impl.n, impl.k, impl.dtype, impl.product, impl.how
            )  # fmt: skip
            alike = own.keys() == state.keys() and all(_form(own[name]) == _form(state[name]) for name in state)
            if not same or not alike:
                return None
    inner, features = columns[0][0][0].n, columns[0][0][0].k
    if any((layers[0][0].n, layers[0][0].k) != (inner, features) for layers in columns):
        return None
    if (last[0][0].n, last[0][0].k) != (features, inner):
        return None
    return Experts(first, last, activation)


def _takes(args: QuantArgs | None) -> bool:
    if args is None:
        return True
    return args.dynamic is True and args.strategy in ("token", "group") and args.symmetric


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
