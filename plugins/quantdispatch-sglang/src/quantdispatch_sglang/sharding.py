"""Which rows and columns of a checkpoint's layers this rank has in one of SGLang's modules.

SGLang's loaders hand over whole tensors with a shard id: which of a fused module's partitions they are. All of what is
asked of a module here are the attributes that SGLang's classes set before they create weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.registry.errors import CheckpointError

_QKV = {"q": 0, "k": 1, "v": 2}


@dataclass(frozen=True)
class Partition:
    """``whole``: outputs in the checkpoint, of all ranks; ``first``, ``count``: those of this rank."""

    whole: int
    first: int
    count: int


@dataclass(frozen=True)
class Shards:
    """``partitions`` in order; ``inputs``: (first, how many) of the columns, ``None`` for all; ``k``: how many."""

    partitions: tuple[Partition, ...]
    inputs: tuple[int, int] | None
    k: int

    @classmethod
    def of(cls, module: Any, sizes: Sequence[int], input_size: int, columns: int) -> Shards:
        """``sizes``: outputs of each partition on this rank. ``input_size``, ``columns``: inputs in all and here."""
        if getattr(module, "use_presharded_weights", False):  # each rank's files hold its own part and no more
            return cls(tuple(Partition(size, 0, size) for size in sizes), None, columns)
        rank, degree = _group(getattr(module, "tp_group", None))
        if hasattr(module, "shard_indices"):  # a vocabulary: its last rank may have less, and its rows are padded
            indices = module.shard_indices
            first, last = indices.org_vocab_start_index, indices.org_vocab_end_index
            return cls((Partition(module.org_vocab_size, first, last - first),), None, columns)
        if columns != input_size:
            return cls(tuple(Partition(size, 0, size) for size in sizes), (rank * columns, columns), columns)
        if hasattr(module, "num_kv_head_replicas") and len(sizes) == 3:
            return cls(_attention(module, sizes, rank), None, columns)
        # of some modules the last partitions are not cut
        split = getattr(module, "num_column_parallel", len(sizes))
        return cls(
            tuple(
                Partition(size * degree, rank * size, size) if number < split else Partition(size, 0, size)
                for number, size in enumerate(sizes)
            ),
            None,
            columns,
        )

    def of_shard(self, shard: Any, name: str) -> tuple[int, ...]:
        """The partitions that a tensor with this shard id holds, side by side. Raises ``CheckpointError``."""
        count = len(self.partitions)
        if shard is None:
            return tuple(range(count))
        found = tuple(shard) if isinstance(shard, (tuple, list)) else (_QKV.get(shard, shard),)
        if not found or not all(isinstance(i, int) and 0 <= i < count for i in found):
            raise CheckpointError(
                "SGLang loads a part of this module that quantdispatch does not know",
                layer=name, field="shard_id", observed=f"shard {shard!r}", required=f"one of {count} partitions",
                remedy="leave the layer to SGLang: QUANTDISPATCH_SGLANG=0", code="QD660",
            )  # fmt: skip
        return found

    def cut(self, index: int, held: Sequence[int]) -> Cut:
        """What partition ``index`` takes of a tensor that holds the partitions ``held``."""
        partition = self.partitions[index]
        before = sum(self.partitions[i].whole for i in held[: held.index(index)])
        everything = len(held) == 1 and partition.count == partition.whole
        return Cut(None if everything else (before + partition.first, partition.count), self.inputs)


def _attention(module: Any, sizes: Sequence[int], rank: int) -> tuple[Partition, ...]:
    """Query heads are divided; of fewer key and value heads than ranks each is on several of them."""
    cache_rank = _group(module.kv_tp_group)[0] // module.num_kv_head_replicas
    heads = (module.total_num_heads, module.total_num_kv_heads, module.total_num_kv_heads)
    widths = (module.head_size, module.head_size, module.v_head_size)
    ranks = (rank, cache_rank, cache_rank)
    return tuple(Partition(h * w, r * size, size) for h, w, r, size in zip(heads, widths, ranks, sizes, strict=True))


def _group(group: Any) -> tuple[int, int]:
    """Rank and size; ``None`` stands for a layer that every rank has whole."""
    return (0, 1) if group is None else (group.rank_in_group, group.world_size)
