"""Embeddings and heads: a rank's rows, padded as SGLang pads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import close, config, finish, load, sglang_config, stored, weights
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

VOCABULARY, K = 200, 128
ARGS = {
    "int4 g32 asymmetric": weights(4, 32, symmetric=False),
    "int8 channel": weights(8, "channel"),
    "int3 g32 asymmetric": weights(3, 32, symmetric=False),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ARGS)
def test_a_head(name: str, size: int, ranks: Any) -> None:
    block = config((["re:.*lm_head"], ARGS[name], None, "pack-quantized"))
    layer, x = stored(block, "lm_head", VOCABULARY, K, "lm_head"), torch.randn(3, K)
    logits = []
    for rank in range(size):
        with ranks(size, rank):
            head = ParallelLMHead(VOCABULARY, K, quant_config=sglang_config(block), prefix="lm_head")
            load(head, layer.tensors)
            part = finish(head).quant_method.apply(head, x)
            assert part.shape[-1] == head.num_embeddings_per_partition
            logits.append(part)
    close(torch.cat(logits, dim=-1)[:, :VOCABULARY], layer(x))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ARGS)
def test_an_embedding_which_may_be_the_head_too(name: str, size: int, ranks: Any) -> None:
    block = config((["Embedding"], ARGS[name], None, "pack-quantized"))
    layer = stored(block, "model.embed_tokens", VOCABULARY, K, "embedding")
    rows = layer.numerics.dequantize(layer.operands).float()
    index, total, logits = torch.tensor([[0, 7, 199], [150, 3, 77]]), torch.zeros(2, 3, K), []
    for rank in range(size):
        with ranks(size, rank):
            table = VocabParallelEmbedding(
                VOCABULARY, K, quant_config=sglang_config(block), prefix="model.embed_tokens"
            )
            load(table, layer.tensors)
            finish(table)
            total += table._embed_local_shard(index)
            logits.append(table.quant_method.apply(table, rows[:2]))
    close(total, rows[index])
    close(torch.cat(logits, dim=-1)[:, :VOCABULARY], rows[:2] @ rows.T)


def test_what_is_left_dense_is_sglangs(ranks: Any) -> None:
    block = config((["Linear"], ARGS["int8 channel"], None, "pack-quantized"), ignore=["lm_head"])
    with ranks():
        made = sglang_config(block)
        head = ParallelLMHead(VOCABULARY, K, quant_config=made, prefix="lm_head")
        table = VocabParallelEmbedding(VOCABULARY, K, quant_config=made, prefix="model.embed_tokens")
    for module in (head, table):
        assert type(module.quant_method).__name__ == "UnquantizedEmbeddingMethod"
