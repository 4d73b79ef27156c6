"""Which rows and columns a rank has, in modules with the attributes that vLLM's classes have."""

from __future__ import annotations

from types import SimpleNamespace as Module

import pytest
from quantdispatch_vllm.sharding import Shards

from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.registry.errors import CheckpointError


def qkv(rank: int, degree: int, heads: int = 8, kv_heads: int = 2, size: int = 16) -> Shards:
    own_kv = max(kv_heads // degree, 1)
    module = Module(
        tp_rank=rank, tp_size=degree, total_num_heads=heads, total_num_kv_heads=kv_heads, head_size=size,
        v_head_size=size, num_kv_head_replicas=max(degree // kv_heads, 1),
    )  # fmt: skip
    return Shards.of(module, [heads // degree * size, own_kv * size, own_kv * size], 64, 64)


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_heads_are_all_taken_and_kv_heads_are_repeated(degree: int) -> None:
    rows = {0: [], 1: []}
    for rank in range(degree):
        shards = qkv(rank, degree)
        for index, taken in rows.items():
            first, count = shards.cut(index, (index,)).outputs or (0, shards.partitions[index].whole)
            taken.append(range(first, first + count))
    assert sorted(i for r in rows[0] for i in r) == list(range(128))
    assert {i for r in rows[1] for i in r} == set(range(32))


@pytest.mark.parametrize("shard, index", [("q", 0), ("k", 1), ("v", 2), (1, 1)])
def test_shard_ids(shard, index: int) -> None:
    assert qkv(0, 1).of_shard(shard, "qkv") == (index,)


def test_projections_fused_in_the_file_are_taken_apart() -> None:
    shards = qkv(1, 2)
    held = shards.of_shard(None, "qkv")
    assert [shards.cut(i, held).outputs for i in held] == [(64, 64), (128 + 16, 16), (128 + 32 + 16, 16)]


def test_merged_columns() -> None:
    module = Module(tp_rank=1, tp_size=2, output_sizes=[96, 32])
    shards = Shards.of(module, [48, 16], 64, 64)
    assert [shards.cut(i, (i,)) for i in (0, 1)] == [Cut((48, 48)), Cut((16, 16))]
    assert [shards.cut(i, (0, 1)).outputs for i in (0, 1)] == [(48, 48), (96 + 16, 16)]


def test_rows_are_cut_along_inputs() -> None:
    module = Module(tp_rank=1, tp_size=2, output_size=32)
    assert Shards.of(module, [32], 64, 32).cut(0, (0,)) == Cut(None, (32, 32))


def test_a_replicated_layer_is_whole() -> None:
    assert Shards.of(Module(tp_rank=1, tp_size=1, output_size=32), [32], 64, 64).cut(0, (0,)) == Cut()


def test_the_last_rank_of_a_vocabulary_has_what_is_left() -> None:
    indices = Module(org_vocab_start_index=64, org_vocab_end_index=100)
    shards = Shards.of(Module(tp_rank=1, tp_size=2, org_vocab_size=100, shard_indices=indices), [64], 32, 32)
    assert shards.cut(0, (0,)).outputs == (64, 36)


@pytest.mark.parametrize("shard", ["index_q", 3, (0, 7)])
def test_a_shard_that_nobody_knows_is_an_error(shard) -> None:
    with pytest.raises(CheckpointError, match="part of this module"):
        qkv(0, 1).of_shard(shard, "qkv")
