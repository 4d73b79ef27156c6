"""Which rows and columns of a checkpoint's layers one rank has in a linear module of an engine.

Loaders hand over whole tensors with a shard id: which of a fused module's partitions they are. How many rows of each
partition are whose is the engine's; see ``Shards.of`` of each adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ...registry.errors import CheckpointError
from .cutting import Cut

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

    #: the engine's name, and the variable that leaves it as it is where it is 0
    engine: ClassVar[str] = "the engine"
    switch: ClassVar[str] = ""

    @classmethod
    def of_vocabulary(cls, module: Any, inputs: tuple[int, int] | None, columns: int) -> Self:
        """A vocabulary's: the last rank may have less than others, and rows that pad it are not the checkpoint's."""
        indices = module.shard_indices
        first, last = indices.org_vocab_start_index, indices.org_vocab_end_index
        return cls((Partition(module.org_vocab_size, first, last - first),), inputs, columns)

    def of_shard(self, shard: Any, name: str) -> tuple[int, ...]:
        """The partitions that a tensor with this shard id holds, side by side. Raises ``CheckpointError``."""
        count = len(self.partitions)
        if shard is None:
            return tuple(range(count))
        found = tuple(shard) if isinstance(shard, (tuple, list)) else (_QKV.get(shard, shard),)
        if not found or not all(isinstance(i, int) and 0 <= i < count for i in found):
            raise CheckpointError(
                f"{self.engine} loads a part of this module that quantdispatch does not know",
                layer=name, field="shard_id", observed=f"shard {shard!r}", required=f"one of {count} partitions",
                remedy=f"leave the layer to {self.engine}: {self.switch}=0", code="QD660",
            )  # fmt: skip
        return found

    def cut(self, index: int, held: Sequence[int]) -> Cut:
        """What partition ``index`` takes of a tensor that holds the partitions ``held``."""
        partition = self.partitions[index]
        before = sum(self.partitions[i].whole for i in held[: held.index(index)])
        everything = len(held) == 1 and partition.count == partition.whole
        return Cut(None if everything else (before + partition.first, partition.count), self.inputs)


def attention(module: Any, sizes: Sequence[int], rank: int, cache_rank: int) -> tuple[Partition, ...]:
    """Partitions of queries, keys and values, ``sizes`` of them on this rank.

    Query heads are divided; of fewer key and value heads than ranks each is on several of them. ``cache_rank``: this
    rank's number among those that divide key and value heads.
    """
    heads = (module.total_num_heads, module.total_num_kv_heads, module.total_num_kv_heads)
    widths = (module.head_size, module.head_size, module.v_head_size)
    ranks = (rank, *[cache_rank // module.num_kv_head_replicas] * 2)
    return tuple(Partition(h * w, r * size, size) for h, w, r, size in zip(heads, widths, ranks, sizes, strict=True))
