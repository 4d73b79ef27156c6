"""Models with float8 caches: their files, what is saved and copied, and what is refused."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are built by transformers")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from cached_models import CACHE, IDS, Make, caches, close, copied, maker  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines import transformers as qdt  # noqa: E402
from quantdispatch.engines.cache import QuantCache  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return maker(tmp_path_factory)


def test_the_old_spelling(checkpoint: Make, tmp_path: Path) -> None:
    """Output scales of the projections that fill the cache; saved in the present spelling."""
    folder, expected = checkpoint()
    other = copied(folder, tmp_path, lambda name: name.replace(".k_scale", ".k_proj.output_scale")
                     .replace(".v_scale", ".v_proj.output_scale"))  # fmt: skip
    assert "model.layers.0.self_attn.k_proj.output_scale" in load_file(other / "model.safetensors")
    model = qd.load(other, dtype=torch.float32)
    with torch.no_grad():
        assert close(model(IDS).logits, expected)
    assert {k for k in model.state_dict() if "scale" in k} == {k for k in load_file(folder / "model.safetensors")
                                                              if "scale" in k}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("strategy", ["tensor", "attn_head"])
@pytest.mark.parametrize("kind", ["kv_cache", "attention"])
def test_saving_copying_and_moving(kind: str, strategy: str, checkpoint: Make, tmp_path: Path) -> None:
    folder, expected = checkpoint(kind, strategy)
    model = qd.load(folder, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert close(qd.load(tmp_path, dtype=torch.float32)(IDS).logits, expected)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for twin in (copy.deepcopy(model), torch.load(stream, weights_only=False)):
        assert close(twin(IDS).logits, expected)
        theirs, ours = caches(twin), caches(model)
        assert not {id(c) for c in theirs} & {id(c) for c in ours}
        # its hooks are its own: other scales change the copy and not the model
        state = {k: v * 5 if k.endswith("_scale") else v for k, v in model.state_dict().items()}
        assert not any(twin.load_state_dict(state))
        assert not close(twin(IDS).logits, expected, 1e-3) and close(model(IDS).logits, expected)
    model.to(torch.bfloat16)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items() if k.endswith("_scale"))
    assert all(c.dtype == torch.bfloat16 for c in caches(model))
    assert close(model(IDS).logits.float(), expected, 0.1)


@torch.no_grad()
def test_plain_from_pretrained(checkpoint: Make) -> None:
    folder, expected = checkpoint("attention")
    with qdt.enable():
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        base = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.config._attn_implementation == "eager" and close(model(IDS).logits, expected)
    assert close(model.lm_head(base(IDS).last_hidden_state), expected)


def test_verify_covers_caches(checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, words in (("kv_cache", "keys and values"), ("attention", "keys, values and queries")):
        folder = checkpoint(kind, "attn_head")[0]
        rows = {row.name: row for row in verify(folder)}
        row = rows["model.layers.1.self_attn"]
        assert len(rows) == 2 and row.weights_equal is None and words in row.note and row.error < 5e-3
    double = QuantCache.dequantize
    monkeypatch.setattr(QuantCache, "dequantize", lambda *args: double(*args) * 1.05)
    assert all(row.error > 0.04 for row in verify(folder))


def test_a_missing_scale(checkpoint: Make, tmp_path: Path) -> None:
    gone = "model.layers.1.self_attn.k_scale"
    other = copied(checkpoint()[0], tmp_path, lambda name: None if name == gone else name)
    with pytest.raises(qd.QuantDispatchError) as caught:
        qd.load(other)
    error = caught.value.errors[0] if isinstance(caught.value, qd.PlanError) else caught.value
    assert isinstance(error, qd.CheckpointError) and error.layer == "model.layers.1.self_attn"
    assert "k_scale is missing" in str(error)


def test_scales_of_other_heads(checkpoint: Make, tmp_path: Path) -> None:
    other = copied(checkpoint(strategy="attn_head")[0], tmp_path, lambda name: name)
    tensors = load_file(other / "model.safetensors")
    wrong = {k: v.repeat(2, 1, 1) if k.endswith(("k_scale", "v_scale")) else v for k, v in tensors.items()}
    save_file(wrong, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(qd.CheckpointError, match="another number of heads") as caught:
        qd.load(other)
    assert caught.value.observed == 4 and caught.value.required == 2


def test_caches_that_cannot_be(checkpoint: Make) -> None:
    from quantdispatch.engines.transformers.attention import install_queries
    from quantdispatch.engines.transformers.cache import AttentionCache

    model = qd.load(checkpoint("attention")[0], dtype=torch.float32)
    layers = transformers.DynamicCache()
    double = transformers.EncoderDecoderCache(layers, transformers.DynamicCache())
    with pytest.raises(qd.ConfigError, match="encoder-decoder"):
        model(IDS, **{CACHE: double})
    given = caches(model)[0]
    cache = AttentionCache(given.layer_name, given.scheme, given.spec)

    class Bare(torch.nn.Module):
        config: Any = model.config

        def forward(self, x: torch.Tensor, past_key_values: Any = None) -> torch.Tensor:
            return x

    with pytest.raises(qd.CheckpointError, match="does not serve"):
        cache.install(Bare())
    with pytest.raises(qd.CheckpointError, match="by itself"):
        install_queries(Bare(), cache)


def test_encoder_decoders_are_refused(checkpoint: Make) -> None:
    from quantdispatch.engines.transformers.placing import place_cache

    layer = qd.plan(checkpoint()[0]).layers["model.layers.0.self_attn"]
    config = transformers.BartConfig(
        vocab_size=32, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    with pytest.raises(qd.CheckpointError, match="encoder-decoder"):
        place_cache(model, "model.decoder.layers.0.self_attn", layer, torch.float32, None)
