"""Models with float8 caches and attention, against compressed-tensors' own forward of the model it was given."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are built by transformers")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from cached_models import (  # noqa: E402
    CACHE,
    IDS,
    Make,
    cache_of,
    caches,
    close,
    config_block,
    dense_model,
    fake_quantized,
    maker,
)  # fmt: skip
from safetensors.torch import load_file  # noqa: E402

import quantdispatch as qd  # noqa: E402

F8 = torch.float8_e4m3fn
CASES = [
    *((kind, strategy, "llama") for kind in ("kv_cache", "attention") for strategy in ("tensor", "attn_head")),
    *((kind, "tensor", family) for kind in ("kv_cache", "attention") for family in ("mistral", "gemma3")),
    ("kv_cache", "tensor", "deepseek"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return maker(tmp_path_factory)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(("kind", "strategy", "family"), CASES)
def test_logits_are_those_of_compressed_tensors_forward(
    kind: str, strategy: str, family: str, implementation: str, checkpoint: Make
) -> None:
    folder, expected = checkpoint(kind, strategy, family)
    model = qd.load(folder, dtype=torch.float32)
    model.set_attn_implementation(implementation)
    assert len(caches(model)) == 2 and all(c.spec.kind == kind for c in caches(model))
    for use_cache in (True, False):
        output = model(IDS, use_cache=use_cache)
        assert close(output.logits, expected)
    # and it is not what the model computes without
    assert not close(model.dequantize()(IDS).logits, expected, 1e-3)
    assert not caches(model) and "quantized" not in repr(model).lower()


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("kind", ["kv_cache", "attention"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generating_is_stepwise_forward(cache: str, kind: str, family: str, checkpoint: Make) -> None:
    """20 tokens of a padded batch, each the best of a whole forward over what came before."""
    model = qd.load(checkpoint(kind, family=family)[0], dtype=torch.float32)
    ids, mask = IDS.clone(), torch.ones_like(IDS)
    ids[0, :4], mask[0, :4] = 0, 0
    settings = {"do_sample": False, "max_new_tokens": 20, "output_logits": True, "return_dict_in_generate": True}
    if cache == "static":
        settings |= {"cache_implementation": "static", "disable_compile": True}
    result = model.generate(ids, attention_mask=mask, **settings)
    assert result.sequences.shape == (2, 32)
    held = cache_of(result)
    assert all(layer.keys.dtype == layer.values.dtype == F8 for layer in held.layers)
    whole = torch.cat([mask, torch.ones(2, 20, dtype=mask.dtype)], dim=1)
    position = (whole.cumsum(1) - 1).clamp(min=0)
    full = model(result.sequences, attention_mask=whole, position_ids=position, use_cache=False).logits
    for step, logits in enumerate(result.logits):
        assert close(logits, full[:, 11 + step], 1e-4)


@torch.no_grad()
def test_the_cache_takes_half_the_bytes_of_bf16(checkpoint: Make) -> None:
    folder, _ = checkpoint()
    model = qd.load(folder)
    held = cache_of(model(IDS))
    plain = cache_of(model.dequantize()(IDS))

    def nbytes(cache: Any) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    assert nbytes(held) * 2 == nbytes(plain) == 2 * 2 * 2 * IDS.numel() * 2 * 16
    assert held.layers[0].keys.dtype == F8 and plain.layers[0].keys.dtype == torch.bfloat16


@torch.no_grad()
def test_what_is_stored_are_states_over_scale(checkpoint: Make) -> None:
    """By the definition, from the keys and values that the unquantized model has in its first layer."""
    folder, _ = checkpoint(strategy="attn_head")
    model = qd.load(folder, dtype=torch.float32)
    layer = cache_of(model(IDS)).layers[0]
    stored = load_file(folder / "model.safetensors")
    plain = cache_of(model.dequantize()(IDS)).layers[0]
    for part, codes, states in (("k", layer.keys, plain.keys), ("v", layer.values, plain.values)):
        scale = stored[f"model.layers.0.self_attn.{part}_scale"]
        assert scale.shape == (2, 1, 1)
        assert torch.equal(codes.float(), (states / scale).clamp(-448, 448).to(F8).float())


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_beams_cropping_and_copied_caches(family: str, checkpoint: Make) -> None:
    model = qd.load(checkpoint(family=family)[0], dtype=torch.float32)
    beams = {"num_beams": 3, "do_sample": False, "max_new_tokens": 6}
    by_cache = model.generate(IDS, **beams)
    assert torch.equal(by_cache, model.generate(IDS, **beams, use_cache=False))
    # a prompt that is kept, and gone on with twice
    cache = cache_of(model(IDS[:, :5]))
    kept = copy.deepcopy(cache)
    first = model(IDS[:, 5:], **{CACHE: cache}).logits
    assert torch.equal(model(IDS[:, 5:], **{CACHE: kept}).logits, first)
    assert close(first[:, -1], model(IDS, use_cache=False).logits[:, -1], 1e-4)
    if family == "llama":
        cache.crop(-7)
        assert cache.get_seq_length() == 5 and torch.equal(model(IDS[:, 5:], **{CACHE: cache}).logits, first)


@torch.no_grad()
def test_a_cache_made_before_it_is_used(checkpoint: Make) -> None:
    """Room for states of the model's dtype becomes room for float8."""
    model = qd.load(checkpoint()[0], dtype=torch.float32)
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    cache.early_initialization(batch_size=2, num_heads=2, head_dim=16, dtype=torch.float32, device=torch.device("cpu"))
    assert close(model(IDS, **{CACHE: cache}).logits, model(IDS, use_cache=False).logits, 1e-4)
    assert cache.layers[0].keys.dtype == F8


@torch.no_grad()
def test_no_graph_break(checkpoint: Make) -> None:
    folder, expected = checkpoint("attention")
    torch._dynamo.reset()
    compiled = torch.compile(qd.load(folder, dtype=torch.float32), backend="eager", fullgraph=True)
    for use_cache in (True, False):
        assert close(compiled(IDS, use_cache=use_cache).logits, expected)


def test_the_reference_is_compressed_tensors_forward() -> None:
    """The stand-in of these tests against the hooks that compressed-tensors installs by itself."""
    from compressed_tensors.quantization import apply_quantization_config
    from compressed_tensors.quantization.lifecycle.initialize import is_cached_attention_module

    for kind, strategy in itertools.product(("kv_cache", "attention"), ("tensor", "attn_head")):
        model = dense_model("llama")
        if not is_cached_attention_module(model.model.layers[0].self_attn):
            pytest.skip("compressed-tensors does not know the attention of this transformers: the cache has a new name")
        block = config_block(model, kind, strategy)
        block.kv_cache_scheme = block.kv_cache_scheme if kind == "kv_cache" else None
        apply_quantization_config(model, block, show_progress=False)
        twin = dense_model("llama")
        for theirs, ours in zip(model.model.layers, twin.model.layers, strict=True):
            for part in ("k", "v", "q") if kind == "attention" else ("k", "v"):
                scale = getattr(theirs.self_attn, f"{part}_scale")
                scale.data = torch.rand(scale.shape) * 0.05 + 0.01
                ours.self_attn.register_buffer(f"{part}_scale", scale.data)
        with torch.no_grad():
            expected = model(IDS, use_cache=False).logits
        assert close(fake_quantized(twin, kind, strategy), expected, 1e-6)
