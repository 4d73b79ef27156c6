"""Which rows and columns this rank has in one of vLLM's linear modules.

All of what is asked of a module here are the attributes that vLLM's classes set before they create weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from quantdispatch.engines.adapters import sharding
from quantdispatch.engines.adapters.sharding import Partition

from .settings import ENABLED


class Shards(sharding.Shards):
    engine: ClassVar[str] = "vLLM"
    switch: ClassVar[str] = ENABLED

    @classmethod
    def of(cls, module: Any, sizes: Sequence[int], input_size: int, columns: int) -> Shards:
        """``sizes``: outputs of each partition on this rank. ``input_size``, ``columns``: inputs in all and here."""
        rank = getattr(module, "tp_rank", 0)
        inputs = None if columns == input_size else (rank * columns, columns)
        if hasattr(module, "shard_indices"):
            return cls.of_vocabulary(module, inputs, columns)
        if hasattr(module, "num_kv_head_replicas") and len(sizes) == 3:
            return cls(sharding.attention(module, sizes, rank, rank), inputs, columns)
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
