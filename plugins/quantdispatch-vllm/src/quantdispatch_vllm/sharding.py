"""Which rows and columns of a checkpoint's layers this rank has in one of vLLM's linear modules.

vLLM's loaders hand over whole tensors with a shard id: which of a fused module's partitions they are. All of what is
asked of a module here are the attributes that vLLM's classes set before they create weights.
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
    """``partitions`` in order; ``inputs``: (first, how many) of the columns, ``None`` for all."""

    partitions: tuple[Partition, ...]
    inputs: tuple[int, int] | None
    k: int

    @classmethod
    def of(cls, module: Any, sizes: Sequence[int], input_size: int, columns: int) -> Shards:
        """``sizes``: outputs of each partition on this rank. ``input_size``, ``columns``: inputs in all and here."""
        rank = getattr(module, "tp_rank", 0)
        inputs = None if columns == input_size else (rank * columns, columns)
        if hasattr(module, "shard_indices"):  # a vocabulary: its last rank may have less, and its rows are padded
            indices = module.shard_indices
            first, last = indices.org_vocab_start_index, indices.org_vocab_end_index
            return cls((Partition(module.org_vocab_size, first, last - first),), inputs, columns)
        if hasattr(module, "num_kv_head_replicas") and len(sizes) == 3:
            heads = (module.total_num_heads, module.total_num_kv_heads, module.total_num_kv_heads)
            widths = (module.head_size, module.head_size, module.v_head_size)
            ranks = (rank, rank // module.num_kv_head_replicas, rank // module.num_kv_head_replicas)
            return cls(
                tuple(
                    Partition(h * w, r * size, size) for h, w, r, size in zip(heads, widths, ranks, sizes, strict=True)
                ),
                inputs,
                columns,
            )
        degree = getattr(module, "tp_size", 1) if inputs is None else 1
        wholes = getattr(module, "output_sizes", None)
        if wholes is None or len(wholes) != len(sizes):
            whole = getattr(module, "output_size", sum(sizes))
            wholes = [whole] if len(sizes) == 1 else [size * degree for size in sizes]
        return cls(
            tuple(
                Partition(whole, 0 if whole == size else rank * size, size)
                for whole, size in zip(wholes, sizes, strict=True)
            ),
            inputs,
            columns,
        )

    def of_shard(self, shard: Any, name: str) -> tuple[int, ...]:
        """The partitions that a tensor with this shard id holds, side by side. Raises ``CheckpointError``."""
        count = len(self.partitions)
        if shard is None:
            return tuple(range(count))
        found = tuple(shard) if isinstance(shard, (tuple, list)) else (_QKV.get(shard, shard),)
        if not all(isinstance(i, int) and 0 <= i < count for i in found):
            raise CheckpointError(
                "vLLM loads a part of this module that quantdispatch does not know",
                layer=name, field="shard_id", observed=f"shard {shard!r}", required=f"one of {count} partitions",
                remedy="leave the layer to vLLM: QUANTDISPATCH_VLLM=0", code="QD660",
            )  # fmt: skip
        return found

    def cut(self, index: int, held: Sequence[int]) -> Cut:
        """What partition ``index`` takes of a tensor that holds the partitions ``held``."""
        partition = self.partitions[index]
        before = sum(self.partitions[i].whole for i in held[: held.index(index)])
        everything = len(held) == 1 and partition.count == partition.whole
        return Cut(None if everything else (before + partition.first, partition.count), self.inputs)
