"""Which rows and columns this rank has in one of SGLang's modules.

All of what is asked of a module here are the attributes that SGLang's classes set before they create weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from quantdispatch.engines.adapters import sharding
from quantdispatch.engines.adapters.sharding import Partition

from .guard import GUARD


class Shards(sharding.Shards):
    engine: ClassVar[str] = GUARD.engine
    switch: ClassVar[str] = GUARD.switch

    @classmethod
    def of(cls, module: Any, sizes: Sequence[int], input_size: int, columns: int) -> Shards:
        """``sizes``: outputs of each partition on this rank. ``input_size``, ``columns``: inputs in all and here."""
        if getattr(module, "use_presharded_weights", False):  # each rank's files hold its own part and no more
            return cls(tuple(Partition(size, 0, size) for size in sizes), None, columns)
        rank, degree = _group(getattr(module, "tp_group", None))
        if hasattr(module, "shard_indices"):
            return cls.of_vocabulary(module, None, columns)
        if columns != input_size:
            return cls(tuple(Partition(size, 0, size) for size in sizes), (rank * columns, columns), columns)
        if hasattr(module, "num_kv_head_replicas") and len(sizes) == 3:
            return cls(sharding.attention(module, sizes, rank, _group(module.kv_tp_group)[0]), None, columns)
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


def _group(group: Any) -> tuple[int, int]:
    """Rank and size; ``None`` stands for a layer that every rank has whole."""
    return (0, 1) if group is None else (group.rank_in_group, group.world_size)
