"""Heads and embeddings of an engine that pads its rows, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_stand_ins import load, waiting
from stored_layers import config, stored, weights

from quantdispatch.engines.adapters.vocabulary import PartitionedHead, PartitionedTable

ROWS, PADDED, K = 96, 128, 64
WAYS = {
    "int4": (weights(4, 32, symmetric=False), "pack-quantized"),
    "int8": (weights(8, "channel"), "int-quantized"),
    "fp8": (weights(8, "channel", kind="float"), "float-quantized"),
}


def block(name: str, target: str) -> dict[str, Any]:
    args, form = WAYS[name]
    return config(([target], args, None, form))


@pytest.mark.parametrize("name", WAYS)
def test_a_head_gives_zeros_for_rows_that_pad_it(name: str) -> None:
    made, method = block(name, "Linear"), PartitionedHead()
    module = waiting(method, made, ["lm_head"], [ROWS], K, "lm_head")
    module.num_embeddings_per_partition = PADDED
    layer, x = stored(made, "lm_head", ROWS, K, "lm_head"), torch.randn(3, K)
    load(module, layer.tensors)
    method.bind(module)
    y = method.apply(module, x, torch.ones(PADDED))
    torch.testing.assert_close(y[:, :ROWS], layer(x) + 1, rtol=1e-3, atol=1e-3)
    assert torch.equal(y[:, ROWS:], torch.ones(3, PADDED - ROWS))


@pytest.mark.parametrize("name", WAYS)
def test_an_embedding_gives_rows_and_projects_on_them(name: str) -> None:
    made, method = block(name, "Embedding"), PartitionedTable()
    module = waiting(method, made, ["m.embed_tokens"], [ROWS], K, "embedding")
    method.read_rows()
    module.num_embeddings_per_partition = PADDED
    layer = stored(made, "m.embed_tokens", ROWS, K, "embedding")
    load(module, layer.tensors)
    method.bind(module)
    table = layer.numerics.dequantize(layer.operands, torch.float32)
    index = torch.tensor([[0, 5], [ROWS - 1, 5]])
    torch.testing.assert_close(method.embedding(module, index), table[index], rtol=1e-2, atol=1e-3)
    assert method.embedding(module, index[:, :0]).shape == (2, 0, K)
    x = torch.randn(3, K)
    y = method.project(module, x)
    torch.testing.assert_close(y[:, :ROWS], x @ table.T, rtol=1e-2, atol=2e-2)
    assert y.shape == (3, PADDED) and not y[:, ROWS:].any()
