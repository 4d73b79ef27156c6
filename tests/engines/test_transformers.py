"""The transformers adapter: switching it on and off, plain from_pretrained, saving."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the adapter is for transformers")

from transformers.quantizers import auto  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines import transformers as qdt  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402

# transformers warns of every quantization_config that is passed for a quantized checkpoint, wanted or not
pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")

Make = Callable[..., Path]
IDS = torch.arange(40).reshape(2, 20)
AutoModelForCausalLM = transformers.AutoModelForCausalLM


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    qdt.disable()


def tables() -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(auto.AUTO_QUANTIZER_MAPPING), dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)


def packed(model: Any) -> dict[str, QuantLinear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, QuantLinear)}


def test_enable_and_disable_leave_no_trace() -> None:
    before = tables()
    qdt.disable()
    qdt.enable()
    qdt.enable()
    assert qdt.is_enabled() and tables() != before
    qdt.disable()
    assert not qdt.is_enabled() and tables() == before


def test_blocks_nest_and_end_only_what_they_began() -> None:
    before = tables()
    with qdt.enable():
        with qdt.enable():
            pass
        assert qdt.is_enabled()
    assert tables() == before
    qdt.enable()
    with qdt.enable():
        pass
    assert qdt.is_enabled()
    qdt.disable()
    with pytest.raises(RuntimeError, match="inside"), qdt.enable():
        raise RuntimeError("inside")
    assert tables() == before


def test_what_somebody_else_put_there_since_is_theirs() -> None:
    original = auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"]
    try:
        qdt.enable()
        other = auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"] = type("Other", (original,), {})
        qdt.disable()
        assert auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"] is other
    finally:
        auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"] = original


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "auto dtype": {"dtype": "auto"},
    "float16 by name": {"dtype": "float16"},
    "float32": {"dtype": torch.float32},
    "cpu map": {"device_map": "cpu", "dtype": torch.bfloat16},
    "auto map": {"device_map": "auto", "dtype": torch.bfloat16},
    "dict map": {"device_map": {"model": "cpu", "lm_head": "cpu"}, "dtype": torch.bfloat16},
    "same config": {"quantization_config": transformers.CompressedTensorsConfig(), "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("call", CALLS)
def test_plain_from_pretrained_gives_the_model_of_load(call: str, tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w4a16-asym", family="qwen2")
    with qdt.enable(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You passed `quantization_config`")
        model = AutoModelForCausalLM.from_pretrained(folder, **CALLS[call])
    truth = qd.load(folder, dtype=model.dtype)
    assert set(packed(model)) == set(packed(truth)) and packed(model)
    assert all(m.kernel == packed(truth)[name].kernel for name, m in packed(model).items())
    assert model.quantdispatch_plan.layers.keys() == truth.quantdispatch_plan.layers.keys()
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, truth(IDS).logits)


def test_no_report_of_our_tensors_and_none_is_hidden(tiny_checkpoint: Make, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny_checkpoint("w4a16-lm_head")
    with qdt.enable():
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert model._keys_to_ignore_on_load_unexpected in (None, set())
        # the base model has no head: its tensors are reported, as for any checkpoint
        base, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert {key.rpartition(".")[0] for key in report["unexpected_keys"]} == {"lm_head"}
    assert "weight_packed" not in capfd.readouterr().err.replace("lm_head.weight_packed", "")
    assert len(packed(base)) == len(packed(model)) - 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_base_model_loads_what_it_has_modules_for(dtype: torch.dtype, tiny_checkpoint: Make) -> None:
    """Its names lose a prefix on load; every unquantized tensor still comes in the dtype that was asked for."""
    folder = tiny_checkpoint("w4a16-asym")
    with qdt.enable(), torch.no_grad():
        base = transformers.AutoModel.from_pretrained(folder, dtype=dtype)
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        assert {p.dtype for p in base.parameters()} == {dtype}
        assert torch.equal(base(IDS).last_hidden_state, whole.model(IDS).last_hidden_state)


def test_without_enable_transformers_is_itself(tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w4a16-sym")
    qd.load(folder)
    assert not packed(AutoModelForCausalLM.from_pretrained(folder))


@pytest.mark.parametrize("flag", [{"dequantize": True}, {"run_compressed": False}], ids=str)
def test_dequantize_on_load_gives_plain_linears(flag: dict[str, bool], tiny_checkpoint: Make) -> None:
    folder = tiny_checkpoint("w4a16-asym")
    config = transformers.CompressedTensorsConfig(**flag)
    truth = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    with qdt.enable():
        model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    assert not packed(model) and getattr(model, "hf_quantizer", None) is None
    assert not hasattr(model.config, "quantization_config")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, truth.get_parameter(name)), name


@pytest.mark.parametrize("variant", ["w4a16-asym", "w8a8-int8", "fp8-dynamic"])
def test_dequantize_afterwards(variant: str, tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = tiny_checkpoint(variant)
    truth = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=transformers.CompressedTensorsConfig(dequantize=True)
    )
    model = qd.load(folder).dequantize()
    assert not packed(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, truth.get_parameter(name)), name
    model.save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())


ROUND_TRIP: list[tuple[str, dict[str, Any]]] = [
    ("w4a16-asym", {}),
    ("w4a16-sym", {"family": "qwen2"}),
    ("w4a16-lm_head", {}),
    ("w8a8-int8", {"max_shard_size": "60KB"}),
    ("fp8-dynamic", {}),
    ("w4a16-asym-g_idx", {}),
]


def stored(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(("variant", "options"), ROUND_TRIP, ids=str)
def test_save_pretrained_writes_the_checkpoint_back(
    variant: str, options: dict[str, Any], tiny_checkpoint: Make, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(variant, **options)
    qd.load(folder).save_pretrained(tmp_path, max_shard_size="60KB")
    before, after = stored(folder), stored(tmp_path)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and torch.equal(tensor, after[name]), name
    configs = [json.loads((f / "config.json").read_text()) for f in (folder, tmp_path)]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]
    with torch.no_grad():
        assert torch.equal(qd.load(tmp_path)(IDS).logits, qd.load(folder)(IDS).logits)


def test_a_saved_checkpoint_is_read_by_plain_transformers(tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = tiny_checkpoint("w4a16-asym")
    qd.load(folder, dtype=torch.float32).save_pretrained(tmp_path)
    config = transformers.CompressedTensorsConfig(dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, quantization_config=config)
    truth = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)
    for name, parameter in truth.named_parameters():
        assert torch.equal(parameter, theirs.get_parameter(name)), name


def test_padded_packing_is_saved_densely_and_says_so(tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = tiny_checkpoint("w3a16-asym-padded")
    model = qd.load(folder)
    model.save_pretrained(tmp_path)
    block = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert block["version"] == "0.18.0"
    again = qd.load(tmp_path)
    for name, layer in packed(model).items():
        assert torch.equal(layer.dense_weight(), packed(again)[name].dense_weight()), name
    assert any(before.shape != stored(tmp_path)[name].shape for name, before in stored(folder).items())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "disk": ({"device_map": {"model": "cpu", "lm_head": "disk"}}, "offloaded"),
    "optimized": (
        {"quantization_config": transformers.CompressedTensorsConfig(use_optimized_inference=True)},
        "use_optimized_inference",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_a_config_error(case: str, tiny_checkpoint: Make) -> None:
    arguments, text = REFUSED[case]
    with qdt.enable(), warnings.catch_warnings(), pytest.raises(qd.ConfigError, match=text):
        warnings.simplefilter("ignore")
        AutoModelForCausalLM.from_pretrained(tiny_checkpoint("fp8-dynamic"), **arguments)


def test_a_config_for_an_unquantized_checkpoint_is_refused(tiny_checkpoint: Make) -> None:
    with qdt.enable(), pytest.raises(qd.ConfigError, match="does not quantize"):
        AutoModelForCausalLM.from_pretrained(
            tiny_checkpoint("bf16"), quantization_config=transformers.CompressedTensorsConfig()
        )


def test_a_plan_that_does_not_resolve_is_our_error(tiny_checkpoint: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint("w4a16-asym"), tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with qdt.enable(), pytest.raises(qd.QuantDispatchError):
        AutoModelForCausalLM.from_pretrained(folder)


def test_resizing_a_quantized_head_is_refused_clearly(tiny_checkpoint: Make) -> None:
    model = qd.load(tiny_checkpoint("w4a16-lm_head"))
    assert isinstance(model.get_output_embeddings(), QuantLinear)
    with pytest.raises(TypeError, match="QuantLinear"):
        model.resize_token_embeddings(300)
    tied = qd.load(tiny_checkpoint("w4a16-asym"))
    assert tied.resize_token_embeddings(300).weight.shape[0] == 300


def test_a_plain_call_needs_no_no_grad(tiny_checkpoint: Make) -> None:
    """No gradient passes a packed layer: nothing asks for one, and who does is told."""
    folder = tiny_checkpoint("w4a16-asym")
    model = qd.load(folder)
    with torch.no_grad():
        expected = model(IDS).logits
    assert torch.is_grad_enabled() and torch.equal(model(IDS).logits, expected)
    with qdt.enable():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")(IDS).logits, expected)
    embedded = torch.zeros(1, 2, 128, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(qd.QuantDispatchError, match="no gradient"):
        model(inputs_embeds=embedded)
    dense = model.dequantize()
    assert all(parameter.requires_grad for parameter in dense.parameters())
    dense(IDS).logits.float().sum().backward()


@torch.no_grad()
def test_what_became_dense_is_ignored_in_what_is_saved(tiny_checkpoint: Make, tmp_path: Path) -> None:
    model = qd.load(tiny_checkpoint("w4a16-asym"))
    name, layer = next(iter(packed(model).items()))
    model.set_submodule(name, layer.dequantize())
    model.save_pretrained(tmp_path / "partly")
    again = qd.load(tmp_path / "partly")
    assert set(packed(again)) == set(packed(model)) and torch.equal(again(IDS).logits, model(IDS).logits)
    kind = transformers.AutoModelForSequenceClassification
    with qdt.enable():
        classifier = kind.from_pretrained(tiny_checkpoint("w4a16-asym"), num_labels=3)
        classifier.save_pretrained(tmp_path / "head")
        again = kind.from_pretrained(tmp_path / "head")
    assert torch.equal(again(IDS).logits, classifier(IDS).logits)
