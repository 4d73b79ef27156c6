"""Models in nvfp4 and the mx formats: written by compressed-tensors, loaded packed, and compared with the same model as
compressed-tensors decompresses it and, where inputs are quantized, fake-quantizes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are transformers models")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="the tests rewrite safetensors files")

import usual_kernels as usual  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.cli.app import app  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.tensors import resident_bytes  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

# transformers warns of every quantization_config that is passed for a quantized checkpoint, wanted or not
pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")

Make = Callable[..., Path]
IDS = torch.arange(40).reshape(2, 20) * 5
#: variant to scheme
VARIANTS = {
    "nvfp4": "w4a4_nvfp4",
    "nvfp4a16": "w4a16_nvfp4",
    "nvfp4a16-lm_head": "w4a16_nvfp4",
    "mxfp4": "w4a4_mxfp4",
    "mxfp4a16": "w4a16_mxfp4",
    "mxfp4-fp8": "w4a8_mxfp4",
    "mxfp4-fp8-g64": "w4a8_mxfp4",
    "mxfp4-mxfp8": "w4a8_mxfp4",
    "mxfp6a8": "w6a8_mxfp6",
    "mxfp6a16": "w6a16_mxfp6",
    "mxfp8": "w8a8_mxfp8",
    "mxfp8a16": "w8a16_mxfp8",
    "mxfp8-lm_head": "w8a8_mxfp8",
}
WEIGHT_ONLY = [name for name, scheme in VARIANTS.items() if "a16_" in scheme]
#: those whose inputs compressed-tensors fake-quantizes as we do; its fp8 takes one scale for a column of tokens
FAKE_QUANTIZED = ["nvfp4", "mxfp4", "mxfp4-mxfp8", "mxfp6a8", "mxfp8", "mxfp8-lm_head"]


@pytest.fixture
def checkpoint(tiny_checkpoint: Make) -> Make:
    def make(variant: str, **options: Any) -> Path:
        if variant.startswith("mxfp6"):
            pytest.importorskip("compressed_tensors.compressors.mxfp6", reason="this writer has no mxfp6")
        return tiny_checkpoint(variant, **options)

    return make


def packed(model: Any) -> dict[str, QuantLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantLinear)}


def decompressed(folder: Path, dtype: torch.dtype) -> Any:
    """The same model with dense weights, as plain transformers and compressed-tensors make them."""
    config = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=config).eval()


def in_full(model: Any, folder: Path) -> Any:
    """The decompressed model with nvfp4 weights as they are before compressed-tensors rounds them to bfloat16. (The
    values of mx weights fit that dtype.)"""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    stored: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        stored |= safetensors_torch.load_file(shard)
    for name, module in model.named_modules():
        if f"{name}.weight_global_scale" in stored:
            n, k = module.weight.shape
            codes = unpack_fp4_from_uint8(stored[f"{name}.weight_packed"], n, k, dtype=torch.float32)
            scale = stored[f"{name}.weight_scale"].float() / stored[f"{name}.weight_global_scale"]
            module.weight.data = (codes.unflatten(-1, (-1, 16)) * scale.unsqueeze(-1)).flatten(1)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(IDS).logits.float()
    assert result.isfinite().all() and float(result.std()) > 0.05
    return result


def distance(ours: torch.Tensor, truth: torch.Tensor) -> float:
    return float((ours - truth).norm() / truth.norm())


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_plan_and_what_is_resident(checkpoint: Make, variant: str) -> None:
    folder = checkpoint(variant)
    plan = qd.plan(folder)
    expected = 15 if "lm_head" in variant else 14
    schemes = [layer.scheme for layer in plan.layers.values() if layer.scheme != "dense"]
    assert schemes == [VARIANTS[variant]] * expected
    assert not plan.problems and not any(layer.error for layer in plan.layers.values())
    model = qd.load(folder)
    layers = packed(model)
    assert len(layers) == expected and {layer.kernel.name for layer in layers.values()} == {usual.MICROFLOAT}
    # as dense as in the file
    stored = sum(tensor.nbytes for layer in layers.values() for tensor in layer.stored_tensors().values())
    dense = sum(parameter.numel() * 2 for parameter in model.parameters())
    # the native kernels keep six bits in a byte
    wide = 1.35 if usual.NATIVE and "mxfp6" in variant else 1.02
    assert resident_bytes(model) - dense < wide * stored
    twin = decompressed(folder, torch.bfloat16)
    for name, layer in layers.items():
        assert torch.equal(layer.dense_weight(), twin.get_submodule(name).weight), name


@pytest.mark.parametrize("variant", WEIGHT_ONLY)
@pytest.mark.parametrize("options", [{}, {"family": "qwen2", "max_shard_size": "60KB"}], ids=["llama", "qwen2-shards"])
def test_weight_only_models_are_the_decompressed_ones(checkpoint: Make, variant: str, options: dict[str, Any]) -> None:
    folder = checkpoint(variant, **options)
    ours = logits(qd.load(folder, dtype=torch.float32))
    twin = decompressed(folder, torch.float32)
    # what rounding the weights of every layer to bfloat16 makes of the logits
    assert distance(ours, logits(twin)) < 2e-2
    assert distance(ours, logits(in_full(twin, folder))) < 1e-5
    assert distance(logits(qd.load(folder)), ours) < 2e-2


def fake_quantizing(model: Any, folder: Path) -> Any:
    """The decompressed model with compressed-tensors' own fake-quantization before every quantized layer."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    group = next(iter(config["config_groups"].values()))
    args = QuantizationArgs(**group["input_activations"])
    stored = safetensors_torch.load_file(folder / "model.safetensors")

    def hook(overall: torch.Tensor | None) -> Callable[..., Any]:
        def quantize(_: Any, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
            x = inputs[0]
            scale, zero = compute_dynamic_scales_and_zp(x, args, model, global_scale=overall)
            result: torch.Tensor = fake_quantize(x, scale, zero, args, global_scale=overall)
            return result

        return quantize

    for name, module in model.named_modules():
        if f"{name}.weight_scale" in stored:
            module.register_forward_pre_hook(hook(stored.get(f"{name}.input_global_scale")))
    return model


@pytest.mark.parametrize("variant", FAKE_QUANTIZED)
def test_quantized_inputs_are_their_fake_quantized_ones(checkpoint: Make, variant: str) -> None:
    folder = checkpoint(variant)
    plain = in_full(decompressed(folder, torch.float32), folder)
    weights_only = logits(plain)
    truth = logits(fake_quantizing(plain, folder))
    ours = logits(qd.load(folder, dtype=torch.float32))
    # the order of a sum decides a rounding here and there, and that is a whole step of a few bits in what follows
    effect = distance(weights_only, truth)
    assert effect > 5e-3
    assert distance(ours, truth) < 0.1 * effect, effect


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_layer_verifies(checkpoint: Make, variant: str, dtype: torch.dtype) -> None:
    for row in verify(checkpoint(variant), dtype=dtype):
        assert row.weights_equal and row.exact and not row.note, row
        # decompression's rounding of nvfp4 weights to bfloat16, beside the rounding of the output
        assert row.error < 4e-3, row


def test_the_command_verifies(checkpoint: Make) -> None:
    result = CliRunner().invoke(app, ["verify", str(checkpoint("nvfp4"))])
    assert result.exit_code == 0 and "w4a4_nvfp4" in result.output, result.output


@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_and_loaded_again(checkpoint: Make, tmp_path: Path, variant: str) -> None:
    folder = checkpoint(variant)
    model = qd.load(folder)
    model.save_pretrained(tmp_path)
    before = safetensors_torch.load_file(folder / "model.safetensors")
    after = safetensors_torch.load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and after[name].shape == tensor.shape, name
        assert torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert torch.equal(logits(qd.load(tmp_path)), logits(model))


def test_a_model_moves_between_dtypes_without_its_scales(checkpoint: Make) -> None:
    model = qd.load(checkpoint("nvfp4"))
    before = {name: layer.stored_tensors() for name, layer in packed(model).items()}
    model.to(torch.float32)
    for name, layer in packed(model).items():
        for local, tensor in layer.stored_tensors().items():
            assert tensor.dtype == before[name][local].dtype, local
            assert torch.equal(tensor.view(torch.uint8), before[name][local].view(torch.uint8)), local
    assert torch.equal(logits(model), logits(qd.load(checkpoint("nvfp4"), dtype=torch.float32)))


# -- checkpoints that cannot be meant


@pytest.fixture
def changed(checkpoint: Make, tmp_path: Path) -> Callable[[str, Callable[[dict[str, torch.Tensor]], Any]], Path]:
    def make(variant: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
        folder = tmp_path / variant
        shutil.copytree(checkpoint(variant), folder)
        tensors = safetensors_torch.load_file(folder / "model.safetensors")
        change(tensors)
        safetensors_torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


NAME = "model.layers.1.mlp.down_proj"


def _put(local: str, value: float) -> Callable[[dict[str, torch.Tensor]], Any]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{NAME}.{local}"].view(-1)[0] = value

    return change


def _drop(local: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.pop(f"{NAME}.{local}")


def _swap(local: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], Any]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{NAME}.{local}"] = function(tensors[f"{NAME}.{local}"]).contiguous()

    return change


@pytest.mark.parametrize(
    ("variant", "change", "tensor"),
    [
        ("nvfp4", _put("weight_global_scale", 0.0), "weight_global_scale"),
        ("nvfp4", _put("weight_global_scale", float("nan")), "weight_global_scale"),
        ("nvfp4", _put("input_global_scale", float("inf")), "input_global_scale"),
        ("nvfp4a16", _put("weight_scale", float("nan")), "weight_scale"),
        ("mxfp4", _put("weight_scale", 255), "weight_scale"),
        ("mxfp8a16", _put("weight_scale", 255), "weight_scale"),
        ("nvfp4", _drop("input_global_scale"), "input_global_scale"),
        ("nvfp4a16", _drop("weight_global_scale"), "weight_global_scale"),
        ("mxfp4", _drop("weight_packed"), "weight_scale"),
        ("mxfp8", _drop("weight_scale"), "weight_scale"),
        ("mxfp4", _swap("weight_scale", lambda scale: scale.float()), "weight_scale"),
        ("mxfp4", _swap("weight_packed", lambda codes: codes[:, :40]), "K = 80"),
        ("nvfp4", _swap("weight_scale", lambda scale: scale[:, :-1]), "weight_scale"),
        ("mxfp8", _swap("weight", lambda codes: codes.to(torch.bfloat16)), "weight"),
    ],
)
def test_the_tensor_is_named(changed: Any, variant: str, change: Any, tensor: str) -> None:
    with pytest.raises(qd.QuantDispatchError) as caught:
        qd.load(changed(variant, change))
    errors = getattr(caught.value, "errors", None) or [caught.value]
    assert any(NAME in str(error) and tensor in str(error) for error in errors), errors


@pytest.mark.parametrize("variant", ["mxfp4", "mxfp8a16"])
def test_exponents_under_their_own_dtype(checkpoint: Make, changed: Any, variant: str) -> None:
    """F8_E8M0 instead of U8: the same model, verified, and saved as compressed-tensors writes it."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if name.endswith("weight_scale"):
                tensors[name] = tensors[name].view(torch.float8_e8m0fnu)

    folder = changed(variant, change)
    model = qd.load(folder)
    assert torch.equal(logits(model), logits(qd.load(checkpoint(variant))))
    assert all(row.weights_equal for row in verify(folder))
    assert {layer.stored_tensors()["weight_scale"].dtype for layer in packed(model).values()} == {torch.uint8}


@pytest.mark.parametrize("format", ["float-quantized", "naive-quantized"])
def test_exponents_in_a_format_of_plain_scales(checkpoint: Make, tmp_path: Path, format: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("mxfp8a16"), folder)
    text = (folder / "config.json").read_text()
    assert text.count('"mxfp8-quantized"') == 2
    (folder / "config.json").write_text(text.replace('"mxfp8-quantized"', f'"{format}"'))
    assert {layer.scheme for layer in qd.plan(folder).layers.values()} == {"w8a16_mxfp8", "dense"}
    assert torch.equal(logits(qd.load(folder)), logits(qd.load(checkpoint("mxfp8a16"))))
    for row in verify(folder):
        assert row.weights_equal and row.error < 4e-3, row
