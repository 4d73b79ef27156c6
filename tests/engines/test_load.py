"""quantdispatch.load on checkpoints that compressed-tensors itself wrote."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are transformers models")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="the tests rewrite safetensors files")

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.tensors import resident_bytes  # noqa: E402

# transformers warns of every quantization_config that is passed for a quantized checkpoint, wanted or not
pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")

Make = Callable[..., Path]
IDS = torch.arange(40).reshape(2, 20)

#: variant, options of the checkpoint
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("w4a16-asym", {}),
    ("w4a16-sym", {"tied": False}),
    ("w4a16-lm_head", {}),
    ("w4a16-asym", {"family": "qwen2"}),
    ("w8a8-int8", {"family": "qwen2", "max_shard_size": "60KB"}),
    ("fp8-dynamic", {"max_shard_size": "60KB"}),
    ("w3a16", {}),
    ("w4a16-asym-g_idx", {}),
]


def name_of(case: Any) -> str:
    return case if isinstance(case, str) else "-".join(f"{k}={v}" for k, v in case.items()) or "plain"


def packed(model: Any) -> dict[str, QuantLinear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, QuantLinear)}


def dense_twin(folder: Path, dtype: torch.dtype) -> Any:
    """The same model as plain transformers and compressed-tensors decompress it."""
    config = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=config).eval()


@pytest.mark.parametrize(("variant", "options"), SHAPES, ids=name_of)
def test_every_quantized_layer_is_packed_and_its_weight_is_the_decompressed_one(
    variant: str, options: dict[str, Any], tiny_checkpoint: Make
) -> None:
    folder = tiny_checkpoint(variant, **options)
    model = qd.load(folder)
    assert not model.training and model.dtype is torch.bfloat16 and model.device.type == "cpu"
    layers = packed(model)
    planned = {r.name for r in model.quantdispatch_plan.layers.values() if r.scheme not in (None, "dense")}
    assert set(layers) == planned and len(layers) >= 14
    assert not any(t.device.type == "meta" for t in (*model.parameters(), *model.buffers()))
    if "g_idx" in variant:
        return  # activation ordering by group: today's compressed-tensors does not read it back
    twin = dense_twin(folder, torch.bfloat16)
    for name, layer in layers.items():
        linear = twin.get_submodule(name)
        assert torch.equal(layer.dense_weight(torch.bfloat16), linear.weight), name
        assert (linear.bias is None) == (layer.bias is None)
        assert linear.bias is None or torch.equal(layer.bias, linear.bias), name
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, twin.get_parameter(name)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("variant", ["w4a16-asym", "w4a16-lm_head"])
def test_logits_agree_with_the_decompressed_model(variant: str, dtype: torch.dtype, tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint(variant)
    with torch.no_grad():
        ours = qd.load(folder, dtype=dtype)(IDS).logits.double()
        truth = dense_twin(folder, torch.float32)(IDS).logits.double()
    # decompression rounds weights to the scales' bfloat16, which a kernel need not: no dtype comes closer than that
    assert (ours - truth).norm() / truth.norm() < 3e-2


def test_backends_agree_and_reference_can_be_asked_for(tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w8a8-int8")
    with torch.no_grad():
        reference = qd.load(folder, backend="reference")
        chosen = qd.load(folder)
        assert {m.kernel.backend for m in packed(reference).values()} == {"reference"}
        left, right = reference(IDS).logits.double(), chosen(IDS).logits.double()
    assert (left - right).norm() / left.norm() < 3e-2
    with pytest.raises(qd.QuantDispatchError, match="unknown backend 'nowhere'"):
        qd.load(folder, backend="nowhere")


def test_embeddings_stay_tied_and_nothing_dense_is_kept(tiny_checkpoint: Make) -> None:
    model = qd.load(tiny_checkpoint("w4a16-asym"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    parameters = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values())
    stored = sum(t.end - t.start for r in model.quantdispatch_plan.layers.values() if r.scheme != "dense"
                 for t in r.tensors.values())  # fmt: skip
    assert resident_bytes(model) <= parameters + 1.6 * stored


def test_the_model_copies_pickles_and_generates(tiny_checkpoint: Make) -> None:
    model = qd.load(tiny_checkpoint("w4a16-asym"))
    with torch.no_grad():
        truth = model(IDS).logits
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(IDS).logits, truth)
            assert set(twin.quantdispatch_plan.layers) == set(model.quantdispatch_plan.layers)
    output = model.generate(IDS[:1, :4], max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert output.shape == (1, 7)


def test_a_cast_of_the_model_takes_every_layer_along(tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w4a16-asym")
    with torch.no_grad():
        model = qd.load(folder).to(torch.float32)
        assert {m.spec.dtype for m in packed(model).values()} == {"float32"}
        # embeddings and norms were rounded to bfloat16 on the way: compare with a model that was as well
        truth = qd.load(folder, dtype=torch.float32)(IDS).logits
        assert (model(IDS).logits - truth).norm() / truth.norm() < 1e-2
        before = qd.load(folder).state_dict()
        after = model.to(torch.bfloat16).state_dict()
    assert before.keys() == after.keys()
    assert all(before[k].dtype == after[k].dtype and torch.equal(before[k], after[k]) for k in before)


def test_compiles_without_a_graph_break(tiny_checkpoint: Make) -> None:
    model = qd.load(tiny_checkpoint("w4a16-asym"))
    with torch.no_grad():
        truth = model(IDS, use_cache=False).logits
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(IDS, use_cache=False).logits, truth)


def test_is_silent_without_a_terminal_and_leaves_settings_alone(
    tiny_checkpoint: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging as hf_logging

    before = (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled(), logging.root.level)
    folder = tiny_checkpoint("w4a16-asym")
    capfd.readouterr()
    qd.load(folder)
    assert capfd.readouterr() == ("", "")
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled(), logging.root.level) == before


# -- what is wrong with a checkpoint

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.0.mlp.up_proj"


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, value: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: value})


def fill(name: str, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name][0, 0] = value

    return change


WRONG: dict[str, tuple[Callable[[Tensors], None], tuple[str, ...]]] = {
    "quantized tensor missing": (drop(f"{LAYER}.weight_scale"), (LAYER, "weight_scale")),
    "quantized tensor left over": (put(f"{LAYER}.weight_global_scale", torch.ones(1)), (LAYER, "weight_global_scale")),
    "norm missing": (drop("model.norm.weight"), ("model.norm.weight",)),
    "norm of another shape": (put("model.norm.weight", torch.ones(7)), ("model.norm.weight", "[7]", "[128]")),
    "stray tensor": (put("model.layers.0.stray", torch.ones(2)), ("model.layers.0.stray",)),
    "stray bias": (put(f"{LAYER}.bias", torch.ones(192).bfloat16()), (LAYER, "bias")),
    "NaN scale": (fill(f"{LAYER}.weight_scale", float("nan")), (LAYER, "weight_scale")),
    "zero scale": (fill(f"{LAYER}.weight_scale", 0.0), (LAYER, "weight_scale")),
    "wrong dtype": (put(f"{LAYER}.weight_packed", torch.zeros(192, 16)), (LAYER, "weight_packed")),
    "wrong shape": (put(f"{LAYER}.weight_packed", torch.zeros(192, 9, dtype=torch.int32)), (LAYER, "weight_packed")),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tensors_are_checkpoint_errors_that_name_them(what: str, tiny_checkpoint: Make, tmp_path: Path) -> None:
    change, names = WRONG[what]
    folder = rewritten(tiny_checkpoint("w4a16-asym"), tmp_path, change)
    with pytest.raises((qd.CheckpointError, qd.PlanError)) as caught:
        qd.load(folder)
    errors = getattr(caught.value, "errors", None) or (caught.value,)
    assert all(isinstance(error, qd.CheckpointError) for error in errors)
    text = " ".join(map(str, (caught.value, *errors)))
    assert all(name in text for name in names), text
    assert "\n" not in str(caught.value)


def test_a_tied_config_over_a_quantized_head_is_refused(tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_checkpoint("w4a16-lm_head"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(qd.QuantDispatchError, match="tie_word_embeddings"):
        qd.load(folder)


def test_a_config_without_weights_is_refused(tiny_checkpoint: Make, tmp_path: Path) -> None:
    shutil.copy(tiny_checkpoint("w4a16-asym") / "config.json", tmp_path)
    for source in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(qd.QuantDispatchError, match="no weights"):
            qd.load(source)


def test_files_that_transformers_would_not_find_are_refused(tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_checkpoint("w4a16-asym"), tmp_path / "copy")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.raises(qd.CheckpointError, match=r"neither model\.safetensors nor"):
        qd.load(folder)


def test_a_device_that_torch_does_not_know_is_refused(tiny_checkpoint: Make) -> None:
    with pytest.raises(qd.ConfigError, match="no device 'warp'"):
        qd.load(tiny_checkpoint("w4a16-asym"), device="warp")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"architectures": ["NobodysForCausalLM"]}, "NobodysForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"model_type": "nobodys"}, "model_type"),
        ({"hidden_size": "128"}, "hidden_size"),
        ({"num_attention_heads": 7}, "attention heads"),
    ],
    ids=["architecture", "no architecture", "model type", "wrong type", "wrong value"],
)
def test_a_model_that_transformers_does_not_know(
    change: dict[str, Any], text: str, tiny_checkpoint: Make, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("w4a16-asym"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(qd.ConfigError, match=text):
        qd.load(folder)


def rewritten(source: Path, target: Path, change: Callable[[Tensors], None]) -> Path:
    folder = Path(shutil.copytree(source, target / "copy"))
    (file,) = folder.glob("*.safetensors")
    tensors = safetensors_torch.load_file(file)
    change(tensors)
    safetensors_torch.save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_threads_may_load_at_once(tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w4a16-asym")
    with torch.no_grad(), ThreadPoolExecutor(3) as pool:
        expected = qd.load(folder)(IDS).logits
        for model in pool.map(qd.load, [folder] * 6):
            assert torch.equal(model(IDS).logits, expected)


@pytest.mark.parametrize(
    "variant", ["w4a16-asym", "w4a16-asym-g_idx", "w3a16-asym", "w8a8-int8-asym-inputs", "fp8-dynamic"]
)
def test_the_default_device_and_dtype_change_nothing(variant: str, tiny_checkpoint: Make) -> None:
    for layer in list(packed(qd.load(tiny_checkpoint(variant))).values())[:2]:
        state = layer.state_dict()
        for x in (torch.randn(rows, layer.in_features).bfloat16() for rows in (1, 9)):
            expected = layer(x)
            torch.set_default_dtype(torch.float64)
            try:
                with torch.device("meta"):
                    other = copy.deepcopy(layer)
                    other.load_state_dict(state)
                    result, after = layer(x), other.to(torch.float32).to(torch.bfloat16).state_dict()
            finally:
                torch.set_default_dtype(torch.float32)
            assert torch.equal(result, expected) and torch.equal(other(x), expected)
            assert all(tensor.dtype == after[name].dtype for name, tensor in state.items())
            assert all(torch.equal(tensor.float(), after[name].float()) for name, tensor in state.items())
