"""Which rows and columns a rank takes, of modules that have the attributes of SGLang's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from quantdispatch_sglang.sharding import Partition, Shards

from quantdispatch import CheckpointError
from quantdispatch.engines.adapters.cutting import Cut


def group(rank: int, size: int) -> Any:
    return SimpleNamespace(rank_in_group=rank, world_size=size)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_heads_that_are_fewer_than_ranks(rank: int) -> None:
    module = SimpleNamespace(
        tp_group=group(rank, 4), kv_tp_group=group(rank, 4), num_kv_head_replicas=2, total_num_heads=8,
        total_num_kv_heads=2, head_size=16, v_head_size=8,
    )  # fmt: skip
    shards = Shards.of(module, [32, 16, 8], 64, 64)
    assert shards.partitions == (
        Partition(128, 32 * rank, 32), Partition(32, 16 * (rank // 2), 16), Partition(16, 8 * (rank // 2), 8),
    )  # fmt: skip
    assert shards.of_shard("k", "m") == (1,) and shards.cut(1, (1,)) == Cut((16 * (rank // 2), 16))
    # fused in the file: values are behind all queries and keys
    assert shards.cut(2, shards.of_shard(None, "m")) == Cut((128 + 32 + 8 * (rank // 2), 8))


@pytest.mark.parametrize(
    ("module", "arguments", "partitions", "inputs"),
    [
        ({"tp_group": None}, ([96], 64, 64), [(96, 0, 96)], None),
        ({}, ([96], 64, 64), [(96, 0, 96)], None),
        ({"tp_group": group(1, 2)}, ([48, 16], 64, 64), [(96, 48, 48), (32, 16, 16)], None),
        ({"tp_group": group(1, 2)}, ([96], 128, 64), [(96, 0, 96)], (64, 64)),
        ({"tp_group": group(1, 2), "num_column_parallel": 1}, ([48, 32], 64, 64), [(96, 48, 48), (32, 0, 32)], None),
        ({"tp_group": group(1, 2), "use_presharded_weights": True}, ([48], 128, 64), [(48, 0, 48)], None),
        (
            {
                "tp_group": group(1, 2), "org_vocab_size": 200,
                "shard_indices": SimpleNamespace(org_vocab_start_index=128, org_vocab_end_index=200),
            },
            ([128], 64, 64), [(200, 128, 72)], None,
        ),
    ],
    ids=["replicated", "no group", "merged", "rows", "some repeated", "presharded", "vocabulary"],
)  # fmt: skip
def test_parts(module: dict[str, Any], arguments: Any, partitions: Any, inputs: Any) -> None:
    shards = Shards.of(SimpleNamespace(**module), *arguments)
    assert [(p.whole, p.first, p.count) for p in shards.partitions] == partitions
    assert shards.inputs == inputs and shards.k == arguments[2]


@pytest.mark.parametrize("shard", ["x", 2, -1, (0, 5), ()])
def test_an_unknown_shard_is_refused(shard: Any) -> None:
    shards = Shards.of(SimpleNamespace(tp_group=None), [8, 8], 16, 16)
    with pytest.raises(CheckpointError, match="SGLang loads a part"):
        shards.of_shard(shard, "m.gate_up_proj")


def test_several_shards_in_one_tensor() -> None:
    shards = Shards.of(SimpleNamespace(tp_group=group(1, 2)), [8, 4, 2], 16, 16)
    held = shards.of_shard((1, 2), "m")
    assert held == (1, 2) and shards.cut(2, held) == Cut((8 + 2, 2)) and shards.cut(1, held) == Cut((4, 4))
