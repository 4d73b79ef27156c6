"""Activation ordering: columns sorted by group, so that the kernels see groups of neighbours."""

from __future__ import annotations

import torch
from torch import Tensor


def sorted_columns(g_idx: Tensor, group: int, groups: int) -> tuple[Tensor, Tensor]:
    """(int32 [K'] the column of x in each place, int64 [G'] the group whose scales each run of ``group`` places has).

    K' is K and G' the number of groups where every group has ``group`` columns, as writers make them. Where not, groups
    are filled up with places that have no column (their index is K, where x is taken for zero), and one that has more
    than ``group`` columns takes several runs.
    """
    k = g_idx.shape[0]
    order = g_idx.argsort(stable=True)
    counts = torch.bincount(g_idx.long(), minlength=groups).tolist()
    device = g_idx.device
    if all(count == group for count in counts):
        return order.to(torch.int32), torch.arange(groups, device=device)
    places, owners, start = [], [], 0
    for number, count in enumerate(counts):
        runs = -(-count // group)
        empty = torch.full((runs * group - count,), k, dtype=order.dtype, device=device)
        places += [order[start : start + count], empty]
        owners += [number] * runs
        start += count
    return torch.cat(places).to(torch.int32), torch.tensor(owners, device=device)


def gather(x: Tensor, columns: Tensor) -> Tensor:
    """x [M, K] in the order of ``columns``; an index of K is a zero. More places than columns mean that there are
    some."""
    if columns.shape[0] != x.shape[1]:
        x = torch.nn.functional.pad(x, (0, 1))
    return x.index_select(1, columns)


def restore(codes: Tensor, columns: Tensor, k: int) -> Tensor:
    """The inverse for codes [N, K']: [N, K], what stands in empty places left out."""
    whole = codes.new_empty(codes.shape[0], k + 1)
    whole[:, columns.long()] = codes
    return whole[:, :k].contiguous()
