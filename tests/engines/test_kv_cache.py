"""Models with float8 caches and attention, against compressed-tensors' own forward of the model it was given."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are built by transformers")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from safetensors.torch import load_file, save_file  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines import transformers as qdt  # noqa: E402
from quantdispatch.engines.cache import QuantCache  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

F8 = torch.float8_e4m3fn
SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
#: family -> config, model, further settings; two of them slide
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, {"sliding_window": 6}),
    "gemma3": (
        transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM,
        {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16},
    ),
    "deepseek": (
        transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM,
        {"first_k_dense_replace": 2, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4, "head_dim": 8},
    ),
}  # fmt: skip
IDS = torch.arange(1, 25).reshape(2, 12) * 5 % 127 + 1
Make = Callable[..., tuple[Path, torch.Tensor]]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``checkpoint(kind, strategy, family)`` -> folder, logits of IDS by compressed-tensors' forward, in fp32."""
    made: dict[Any, tuple[Path, torch.Tensor]] = {}

    def make(kind: str = "kv_cache", strategy: str = "tensor", family: str = "llama") -> tuple[Path, torch.Tensor]:
        key = (kind, strategy, family)
        if key not in made:
            folder = tmp_path_factory.mktemp("cache") / "model"
            made[key] = folder, _write(folder, *key)
        return made[key]

    return make


def _write(folder: Path, kind: str, strategy: str, family: str) -> torch.Tensor:
    """Config and scales as compressed-tensors writes them, whose own hooks know attention up to transformers 5.23."""
    model = dense_model(family)
    block = config_block(model, kind, strategy)
    model.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] = {**block.model_dump(), "format": "dense", "version": "0.20.1"}
    (folder / "config.json").write_text(json.dumps(raw, default=str))
    tensors, config = load_file(folder / "model.safetensors"), model.config
    heads = {"k": config.num_key_value_heads, "v": config.num_key_value_heads, "q": config.num_attention_heads}
    for number, layer in enumerate(model.model.layers):
        for part, size in (("k", 0.02), ("v", 0.01), *([("q", 0.03)] if kind == "attention" else [])):
            # coarse, and different everywhere: a wrong or lost one shows
            scale = size * (number + 1) * torch.arange(1.0, 2.0 if strategy == "tensor" else heads[part] + 1.0)
            scale = scale if strategy == "tensor" else scale.reshape(-1, 1, 1)
            tensors[f"model.layers.{number}.self_attn.{part}_scale"] = scale
            layer.self_attn.register_buffer(f"{part}_scale", scale)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return fake_quantized(model, kind, strategy)


def dense_model(family: str) -> Any:
    config, cls, more = FAMILIES[family]
    torch.manual_seed(1)
    model = cls(config(**{**SIZES, **more})).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def config_block(model: Any, kind: str, strategy: str) -> Any:
    """What ``QuantizationConfig.from_pretrained`` makes of such a model: attention implies a cache scheme."""
    from compressed_tensors.quantization import QuantizationConfig

    args = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    attention = type(model.model.layers[0].self_attn).__name__
    groups = {"group_0": {"targets": [attention], "input_activations": args}} if kind == "attention" else {}
    return QuantizationConfig(config_groups=groups, kv_cache_scheme=args)


class Rounding:
    """Takes the place of a cache of one attention module: compressed-tensors' fake-quantize, and nothing stored."""

    def __init__(self, attention: Any, args: Any) -> None:
        self.attention, self.args = attention, args

    def round(self, part: str, states: torch.Tensor) -> torch.Tensor:
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize

        rounded: torch.Tensor = fake_quantize(states, getattr(self.attention, f"{part}_scale"), None, self.args)
        return rounded

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.round("k", keys), self.round("v", values)


@torch.no_grad()
def fake_quantized(model: Any, kind: str, strategy: str) -> torch.Tensor:
    """Logits of IDS with keys, values and queries as compressed-tensors rounds them in ``modeling/``."""
    from compressed_tensors.quantization import QuantizationArgs
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy)
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def rounded_queries(module: Any, query: torch.Tensor, *rest: Any, **more: Any) -> Any:
        return original(module, Rounding(module, args).round("q", query), *rest, **more)

    if kind == "attention":
        ALL_ATTENTION_FUNCTIONS.register("rounded_queries_of_the_test", rounded_queries)
        ALL_MASK_ATTENTION_FUNCTIONS.register("rounded_queries_of_the_test", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        model.set_attn_implementation("rounded_queries_of_the_test")
    for layer in model.model.layers:
        hook: Any = lambda module, given, named: (given, {**named, CACHE: Rounding(module, args)})  # noqa: E731
        layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    logits: torch.Tensor = model(IDS, use_cache=False).logits
    return logits


#: what transformers calls the cache, as an argument and among the outputs
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"


def cache_of(output: Any) -> Any:
    return output[CACHE] if CACHE in output else output["past_key_values"]


def caches(model: Any) -> list[QuantCache]:
    return [module for module in model.modules() if isinstance(module, QuantCache)]


def close(a: torch.Tensor, b: torch.Tensor, limit: float = 1e-5) -> bool:
    return bool((a.double() - b.double()).norm() <= limit * b.double().norm())


CASES = [
    *((kind, strategy, "llama") for kind in ("kv_cache", "attention") for strategy in ("tensor", "attn_head")),
    *((kind, "tensor", family) for kind in ("kv_cache", "attention") for family in ("mistral", "gemma3")),
    ("kv_cache", "tensor", "deepseek"),
]


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


def test_the_old_spelling(checkpoint: Make, tmp_path: Path) -> None:
    """Output scales of the projections that fill the cache; saved in the present spelling."""
    folder, expected = checkpoint()
    copied = _copied(folder, tmp_path, lambda name: name.replace(".k_scale", ".k_proj.output_scale")
                     .replace(".v_scale", ".v_proj.output_scale"))  # fmt: skip
    assert "model.layers.0.self_attn.k_proj.output_scale" in load_file(copied / "model.safetensors")
    model = qd.load(copied, dtype=torch.float32)
    with torch.no_grad():
        assert close(model(IDS).logits, expected)
    assert {k for k in model.state_dict() if "scale" in k} == {k for k in load_file(folder / "model.safetensors")
                                                              if "scale" in k}  # fmt: skip


def _copied(folder: Path, target: Path, rename: Callable[[str], str | None]) -> Path:
    target.mkdir(exist_ok=True)
    tensors = {new: t for k, t in load_file(folder / "model.safetensors").items() if (new := rename(k)) is not None}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


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
def test_no_graph_break(checkpoint: Make) -> None:
    folder, expected = checkpoint("attention")
    torch._dynamo.reset()
    compiled = torch.compile(qd.load(folder, dtype=torch.float32), backend="eager", fullgraph=True)
    for use_cache in (True, False):
        assert close(compiled(IDS, use_cache=use_cache).logits, expected)


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
    copied = _copied(checkpoint()[0], tmp_path, lambda name: None if name == gone else name)
    with pytest.raises(qd.QuantDispatchError) as caught:
        qd.load(copied)
    error = caught.value.errors[0] if isinstance(caught.value, qd.PlanError) else caught.value
    assert isinstance(error, qd.CheckpointError) and error.layer == "model.layers.1.self_attn"
    assert "k_scale is missing" in str(error)


def test_scales_of_other_heads(checkpoint: Make, tmp_path: Path) -> None:
    copied = _copied(checkpoint(strategy="attn_head")[0], tmp_path, lambda name: name)
    tensors = load_file(copied / "model.safetensors")
    wrong = {k: v.repeat(2, 1, 1) if k.endswith(("k_scale", "v_scale")) else v for k, v in tensors.items()}
    save_file(wrong, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(qd.CheckpointError, match="another number of heads") as caught:
        qd.load(copied)
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
