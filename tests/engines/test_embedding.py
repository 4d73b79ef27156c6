"""Quantized embeddings in transformers models, tied and untied, against what compressed-tensors decompresses."""

from __future__ import annotations

import copy
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are built by transformers")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

import usual_kernels as usual  # noqa: E402
from demo_models.rtn import quantize_and_save  # noqa: E402
from demo_models.variants import Group, Variant  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines import transformers as qdt  # noqa: E402
from quantdispatch.engines.embedding import QuantEmbedding, TiedHead  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.tensors import resident_bytes  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

V, H = 256, 64
IDS = torch.arange(2 * 12).reshape(2, 12) * 7 % V
SIZES = {
    "vocab_size": V, "hidden_size": H, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 3,
}  # fmt: skip
MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
ARGS: dict[str, dict[str, Any]] = {
    "int4 g32": INT4,
    "int4 g32 asymmetric": {**INT4, "symmetric": False},
    "int8 channel": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "int3 channel": {"num_bits": 3, "type": "int", "strategy": "channel"},
    "int6 tensor": {"num_bits": 6, "type": "int", "strategy": "tensor"},
    "fp8 channel": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
              "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"},
    "mxfp4": {"num_bits": 4, **MX, "zp_dtype": "torch.uint8"},
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "gemma3": (
        transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM,
        {"layer_types": ["full_attention"], "query_pre_attn_scalar": 16},
    ),
}  # fmt: skip
Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """``checkpoint(args, head)``: embeddings quantized by ``ARGS[args]``, everything else dense. ``head``: "tied" (its
    tensor is not in the file), "dense", or "quantized"."""
    made: dict[Any, Path] = {}

    def make(args: str, head: str = "tied", family: str = "llama", dtype: torch.dtype = torch.bfloat16) -> Path:
        key = (args, head, family, dtype)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("embedding") / "model"
            _write(made[key], args, head, family, dtype)
        return made[key]

    return make


def _write(folder: Path, args: str, head: str, family: str, dtype: torch.dtype) -> None:
    config, cls, more = FAMILIES[family]
    torch.manual_seed(0)
    model = cls(config(**SIZES, **more, tie_word_embeddings=head == "tied"))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.1)
    targets = ("Embedding", "lm_head") if head == "quantized" else ("Embedding",)
    quantize_and_save(model.to(dtype), Variant((Group(ARGS[args], targets=targets),), ignore=()), folder)
    if head == "tied":
        # compressed-tensors leaves the head's dense half of the pair behind; writers that keep the tie do not
        tensors = load_file(folder / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def decompressed(folder: Path, dtype: torch.dtype, tied: bool) -> Any:
    """The model as transformers computes it from the weights that compressed-tensors decompresses."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    raw = json.loads((folder / "config.json").read_text())
    block = QuantizationConfig.model_validate(raw["quantization_config"])
    scheme = next(iter(block.config_groups.values()))
    compressor = BaseCompressor.get_value_from_registry(scheme.format or block.format)
    tensors = load_file(folder / "model.safetensors")
    dense: dict[str, torch.Tensor] = {}
    quantized: dict[str, dict[str, torch.Tensor]] = {}
    names = {name.rpartition(".")[0] for name in tensors if name.endswith("_scale")}
    for name, tensor in tensors.items():
        module, _, local = name.rpartition(".")
        if module in names:
            quantized.setdefault(module, {})[local] = tensor
        else:
            dense[name] = tensor
    for module, stored in quantized.items():
        dense[f"{module}.weight"] = compressor.decompress(stored, scheme)["weight"]
    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if tied:
        dense["lm_head.weight"] = dense["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict({k: v.to(dtype) for k, v in dense.items()}, strict=False)
    assert not missing and not unexpected
    return model


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    return model(ids).logits.float()


@pytest.mark.parametrize("head", ["tied", "dense", "quantized"])
@pytest.mark.parametrize("args", ARGS)
def test_logits_are_those_of_the_decompressed_model(args: str, head: str, checkpoint: Checkpoint) -> None:
    folder = checkpoint(args, head)
    # in fp32 a kernel multiplies codes by scales as they are, compressed-tensors rounds each weight to the scales' bf16
    for dtype, limit in ((torch.float32, 4e-3), (torch.bfloat16, 4e-2)):
        model, truth = qd.load(folder, dtype=dtype), decompressed(folder, dtype, head == "tied")
        table = model.model.embed_tokens
        assert isinstance(table, QuantEmbedding) and table.padding_idx == 3
        assert torch.equal(table(IDS), truth.model.embed_tokens(IDS)), "a look-up is exact"
        expected = logits(truth)
        assert (logits(model) - expected).norm() < limit * expected.norm()
        kinds = {"tied": TiedHead, "dense": torch.nn.Linear, "quantized": QuantLinear}
        assert isinstance(model.lm_head, kinds[head])


@pytest.mark.parametrize(
    ("args", "kernel"),
    [
        *(("int4 g32", usual.INT4), ("int3 channel", usual.INT4), ("int8 channel", usual.INT8)),
        *(("fp8 channel", usual.FP8), ("nvfp4", None)),
    ],
)
def test_one_copy_serves_the_embedding_and_the_tied_head(args: str, kernel: str | None, checkpoint: Checkpoint) -> None:
    # without a linear kernel that gives single rows, the head dequantizes some rows at a time
    model = qd.load(checkpoint(args), backend=None if kernel else "reference")
    table, head = model.model.embed_tokens, model.lm_head
    assert table.kernel.name == (kernel or "reference/embedding") and table.kernel.name in repr(table)
    assert table.shares_kernel == bool(kernel)
    assert head.embedding is table and not list(head.buffers()) and not list(head.parameters())
    assert "tied to model.embed_tokens" in repr(head)
    assert (f"kernel={kernel}" if kernel else "rows dequantized at a time") in repr(head)
    x = torch.randn(3, H).bfloat16()
    expected = x.double() @ table.dense_weight().double().T
    assert (head(x).double() - expected).norm() < 6e-3 * expected.norm()
    with pytest.raises(TypeError, match=r"model\.to"):
        head(x.float())


@pytest.mark.parametrize("head", ["tied", "dense"])
@pytest.mark.parametrize(("args", "limit"), [("int4 g32", 0.65), ("int3 channel", 0.65), ("nvfp4", 0.65),
                                             ("mxfp4", 0.65), ("fp8 channel", 1.1)])  # fmt: skip
def test_packed_in_memory(args: str, limit: float, head: str, checkpoint: Checkpoint) -> None:
    table = qd.load(checkpoint(args, head)).model.embed_tokens
    assert resident_bytes(table) <= limit * V * H


@pytest.mark.parametrize("head", ["tied", "dense"])
def test_single_rows_any_shape_and_errors(head: str, checkpoint: Checkpoint) -> None:
    table = qd.load(checkpoint("int4 g32 asymmetric", head)).model.embed_tokens
    weight = table.dense_weight(torch.bfloat16)
    for index in (torch.tensor(5), torch.tensor([255, 0, 255]), torch.tensor([[[9]]]), torch.empty(2, 0).long()):
        assert torch.equal(table(index), weight[index])
    for outside in (-1, V):
        with pytest.raises((IndexError, RuntimeError)):
            table(torch.tensor([0, outside]))
    assert table.weight.shape == (V, H) and torch.equal(table.weight + 0, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scaled_embeddings(dtype: torch.dtype, checkpoint: Checkpoint) -> None:
    folder = checkpoint("int4 g32", "tied", family="gemma3")
    model, truth = qd.load(folder, dtype=dtype), decompressed(folder, dtype, True)
    assert torch.equal(model.model.embed_tokens(IDS), truth.model.embed_tokens(IDS))
    expected = logits(truth)
    assert (logits(model) - expected).norm() < 4e-2 * expected.norm()
    dense = model.dequantize()
    assert torch.equal(dense.model.embed_tokens(IDS), truth.model.embed_tokens(IDS))


def test_an_embedding_that_does_more_is_refused(checkpoint: Checkpoint) -> None:
    from quantdispatch.engines.transformers.tables import packed_embedding

    class Normed(torch.nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).tanh()

    class Shifted(torch.nn.Embedding):
        embed_scale = 2.0

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * self.embed_scale + 1

    layer = qd.plan(checkpoint("int4 g32")).layers["model.embed_tokens"]
    for module in (Normed(V, H), Shifted(V, H), torch.nn.Linear(H, V), torch.nn.Embedding(V, H + 1)):
        with pytest.raises(qd.CheckpointError) as caught:
            packed_embedding(module, layer, torch.bfloat16, None, False)
        assert caught.value.layer == "model.embed_tokens"
    assert packed_embedding(torch.nn.Embedding(V, H), layer, torch.bfloat16, None, False).factor is None


def test_a_quantized_head_beside_a_dense_tied_embedding_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("int4 g32", "quantized"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    # both are stored: both are used
    assert torch.equal(logits(qd.load(folder)), logits(qd.load(checkpoint("int4 g32", "quantized"))))
    tensors = load_file(folder / "model.safetensors")
    dense = {k: v for k, v in tensors.items() if "embed_tokens" not in k}
    dense["model.embed_tokens.weight"] = torch.randn(V, H).bfloat16()
    save_file(dense, folder / "model.safetensors", metadata={"format": "pt"})
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["lm_head"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(qd.CheckpointError, match="ties its weight") as caught:
        qd.load(folder)
    assert caught.value.layer == "lm_head" and caught.value.field == "tie_word_embeddings"


def saved_and_loaded(model: Any) -> Any:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("head", ["tied", "dense", "quantized"])
@pytest.mark.parametrize("args", ["int4 g32 asymmetric", "nvfp4"])
def test_saving_copying_and_moving(args: str, head: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint(args, head)
    model = qd.load(folder)
    truth = logits(model)
    model.save_pretrained(tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert torch.equal(logits(qd.load(tmp_path)), truth)
    for twin in (copy.deepcopy(model), saved_and_loaded(model)):
        if head == "tied":
            assert twin.lm_head.embedding is twin.model.embed_tokens
        assert torch.equal(logits(twin), truth)
        twin.load_state_dict(model.state_dict())
        assert torch.equal(logits(twin), truth)
    moved, table = model.to(torch.float32), qd.load(folder, dtype=torch.float32).model.embed_tokens
    assert moved.model.embed_tokens.kernel == table.kernel
    assert torch.equal(moved.model.embed_tokens(IDS), table(IDS))
    dense = moved.to(torch.bfloat16).dequantize()
    assert type(dense.model.embed_tokens) is torch.nn.Embedding and type(dense.lm_head) is torch.nn.Linear
    assert (dense.lm_head.weight is dense.model.embed_tokens.weight) == (head == "tied")
    assert (logits(dense) - truth).norm() < 4e-2 * truth.norm()


@pytest.mark.parametrize("head", ["tied", "dense"])
@pytest.mark.parametrize("call", [{}, {"device_map": "auto"}, {"dtype": torch.float32}], ids=str)
def test_plain_from_pretrained(call: dict[str, Any], head: str, checkpoint: Checkpoint) -> None:
    folder = checkpoint("int4 g32", head)
    with qdt.enable():
        model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, **call, output_loading_info=True)
        base = transformers.AutoModel.from_pretrained(folder)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(logits(model), logits(qd.load(folder, dtype=model.dtype)))
    assert isinstance(base.embed_tokens, QuantEmbedding)
    model.tie_weights()  # somebody may call it again: there is nothing to share


@pytest.mark.parametrize(("args", "head"), [("int4 g32 asymmetric", "tied"), ("int3 channel", "dense")])
def test_no_graph_break(args: str, head: str, checkpoint: Checkpoint) -> None:
    model = qd.load(checkpoint(args, head))
    torch._dynamo.reset()
    for module, x in ((model.model.embed_tokens, IDS), (model.lm_head, torch.randn(2, 3, H).bfloat16())):
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            assert torch.equal(compiled(x), module(x))


def test_generating_with_a_tied_head(checkpoint: Checkpoint) -> None:
    folder = checkpoint("int4 g32")
    model, truth = qd.load(folder, dtype=torch.float32), decompressed(folder, torch.float32, True)
    call = {"max_new_tokens": 20, "do_sample": False}
    assert torch.equal(model.generate(IDS, **call), truth.generate(IDS, **call))


@pytest.mark.parametrize("args", ["int4 g32 asymmetric", "fp8 channel", "nvfp4"])
def test_verify_covers_embeddings(args: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = (row for row in verify(checkpoint(args)) if row.name == "model.embed_tokens")
    assert row.weights_equal is True and row.error < 5e-3 and row.exact
    look_up = QuantEmbedding.forward
    monkeypatch.setattr(QuantEmbedding, "forward", lambda self, index: look_up(self, index) * 1.05)
    assert next(row for row in verify(checkpoint(args)) if row.name == "model.embed_tokens").error > 0.04
