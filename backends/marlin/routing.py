"""Tokens sorted by expert, in blocks that one expert fills alone: what Marlin's MoE op reads.

Fixed shapes and no value ever read on the host, so that a CUDA graph can hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .providers import Routing

#: rows a block, as the ops admit them
BLOCKS = (8, 16, 32, 48, 64)
#: how full blocks should be before larger ones are taken; vLLM's own choice
_FULL = 0.9


def block_rows(rows: int, experts: int) -> int:
    """Rows a block: as large as blocks are nearly filled when tokens spread evenly."""
    return next((block for block in BLOCKS if rows / experts / block < _FULL), BLOCKS[-1])


def route(index: Tensor, weights: Tensor, experts: int) -> Routing:
    """``index`` [T, k], ``weights`` [T, k] to their :class:`~.providers.Routing`. What is no expert's index (one that
    lives elsewhere) goes to expert 0 with weight zero."""
    here = (index >= 0) & (index < experts)
    owner = torch.where(here, index, torch.zeros_like(index)).reshape(-1)
    weights = torch.where(here, weights.float(), torch.zeros((), device=weights.device))
    rows = owner.shape[0]
    block = block_rows(rows, experts)
    counts = torch.zeros(experts, dtype=torch.int64, device=index.device).scatter_add_(0, owner, torch.ones_like(owner))
    blocks = (counts + block - 1) // block
    ends = blocks.cumsum(0)
    order = owner.argsort(stable=True)
    own = owner[order]
    # the place of a row: where its expert's blocks begin, and how many rows of that expert come before it
    before = torch.arange(rows, device=index.device) - (counts.cumsum(0) - counts)[own]
    places = (ends - blocks)[own] * block + before
    most = rows // block + min(rows, experts)
    filled = torch.full((most * block,), rows, dtype=torch.int32, device=index.device)
    filled[places] = order.to(torch.int32)
    numbers = torch.arange(most, device=index.device)
    owners = torch.searchsorted(ends, numbers, right=True).clamp_(max=experts - 1).to(torch.int32)
    return Routing(filled, owners, (ends[-1:] * block).to(torch.int32), weights.contiguous(), block)
