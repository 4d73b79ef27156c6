"""Which parts of stored tensors a rank takes, of modules that have the attributes which engines' classes have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.engines.adapters.sharding import Partition, Shards, attention
from quantdispatch.registry.errors import CheckpointError

#: the second of two ranks of a module that fuses three partitions
HALVES = Shards((Partition(16, 8, 8), Partition(8, 4, 4), Partition(4, 2, 2)), None, 16)


@pytest.mark.parametrize(
    ("shard", "held"),
    [
        (None, (0, 1, 2)), ("q", (0,)), ("k", (1,)), ("v", (2,)), (1, (1,)), ((1, 2), (1, 2)), ([0], (0,)),
        ((0, 1, 2), (0, 1, 2)),
    ],
)  # fmt: skip
def test_shard_ids(shard: Any, held: tuple[int, ...]) -> None:
    assert HALVES.of_shard(shard, "m.qkv_proj") == held


@pytest.mark.parametrize("shard", ["x", "index_q", 3, -1, (0, 7), ()])
def test_a_shard_that_nobody_knows_names_the_engine_and_its_switch(shard: Any) -> None:
    class Theirs(Shards):
        engine, switch = "Engine", "QUANTDISPATCH_ENGINE"

    shards = Theirs(HALVES.partitions, None, 16)
    with pytest.raises(CheckpointError, match="Engine loads a part") as caught:
        shards.of_shard(shard, "m.qkv_proj")
    assert caught.value.layer == "m.qkv_proj" and "QUANTDISPATCH_ENGINE=0" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("index", "held", "outputs"),
    [
        (0, (0,), (8, 8)),
        (2, (2,), (2, 2)),
        (0, (0, 1, 2), (8, 8)),
        (1, (0, 1, 2), (16 + 4, 4)),
        (2, (0, 1, 2), (16 + 8 + 2, 2)),
        (2, (1, 2), (8 + 2, 2)),
    ],
)
def test_what_a_tensor_holds_before_a_partition_is_skipped(index: int, held: Any, outputs: tuple[int, int]) -> None:
    assert HALVES.cut(index, held) == Cut(outputs)


def test_one_rank_takes_a_tensor_of_its_own_whole() -> None:
    whole = Shards((Partition(16, 0, 16), Partition(8, 0, 8)), None, 16)
    assert whole.cut(0, (0,)) == Cut() and whole.cut(0, (0, 1)) == Cut((0, 16))


def test_columns_are_cut_besides() -> None:
    assert Shards((Partition(8, 0, 8),), (32, 32), 32).cut(0, (0,)) == Cut(None, (32, 32))


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_all_heads_are_somewhere_and_those_of_the_cache_as_often_as_there_are_ranks(degree: int, kv_heads: int) -> None:
    replicas = max(degree // kv_heads, 1)
    module = SimpleNamespace(
        total_num_heads=8, total_num_kv_heads=kv_heads, head_size=16, v_head_size=8, num_kv_head_replicas=replicas
    )
    sizes = [8 // degree * 16, max(kv_heads // degree, 1) * 16, max(kv_heads // degree, 1) * 8]
    ranks = [attention(module, sizes, rank, rank) for rank in range(degree)]
    for index, (whole, times) in enumerate(((128, 1), (kv_heads * 16, replicas), (kv_heads * 8, replicas))):
        taken = [row for partitions in ranks for row in _rows(partitions[index], whole)]
        assert sorted(taken) == sorted([*range(whole)] * times)


def _rows(partition: Partition, whole: int) -> range:
    assert partition.whole == whole
    return range(partition.first, partition.first + partition.count)


def test_the_last_rank_of_a_vocabulary_has_what_is_left() -> None:
    indices = SimpleNamespace(org_vocab_start_index=64, org_vocab_end_index=100)
    module = SimpleNamespace(org_vocab_size=100, shard_indices=indices)
    assert Shards.of_vocabulary(module, None, 32).cut(0, (0,)) == Cut((64, 36))
