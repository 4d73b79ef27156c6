"""How a plan fails, and a plan as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from planning import ATTN, MLP, OUTSIDE, codes, error, soft, tiny_registry  # noqa: F401
from tiny_plans import checkpoint, layers

from quantdispatch.registry.errors import (
    ConfigError,
    NoKernelFound,
    NoSchemeFound,
    PlanError,
    QuantDispatchError,
    UnreadableCheckpointError,
)
from quantdispatch.registry.plan import plan

# -------------------------------------------------------------------------------------------- failures


def test_a_miss_names_layer_args_format_rules_and_remedy(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(4)]
    tensors = {
        f"{n}.{t}": v
        for n in names
        for t, v in {"weight_packed": ("U8", [64, 32]), "weight_scale": ("U8", [64, 2])}.items()
    }  # noqa: E501
    fp4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": False}
    config = tiny.config(tiny.group(fp4), fmt="mxfp4-pack-quantized")
    folder = checkpoint(tmp_path, config, {**tensors, **OUTSIDE})
    with pytest.raises(PlanError) as caught:
        plan(folder)
    assert len(caught.value.errors) == 4 and caught.value.exit_code == 1
    text = str(caught.value)
    assert "4 of 6 layers do not resolve" in text and "3 more layers fail alike" in text and "\n" not in text
    for name, found in zip(names, caught.value.errors, strict=True):
        assert isinstance(found, NoSchemeFound) and found.layer == name and len(found.nearest) == 3
        assert all(word in str(found) for word in (name, "fp4", "mxfp4-pack-quantized", "would resolve as"))
        assert all(c.mismatches and c.rule.name in str(c) and "requires" in str(c) for c in found.nearest)
    shown = plan(folder, strict=False).to_json()["layers"][2]["error"]
    parts = {"layer", "field", "observed", "required", "remedy"}
    assert set(shown) == {"code", "type", "message", "nearest", *parts} and shown["code"] == "QD701"
    assert shown["layer"] in names and all(shown[part] for part in parts)
    assert shown["type"] == "NoSchemeFound" and len(shown["nearest"]) == 3


@pytest.mark.parametrize("key", [5, None, 1.5, ("a",)])
@pytest.mark.parametrize("modules", [None, {"m.x": "Linear"}])
def test_a_dict_may_have_keys_that_no_json_has(key: Any, modules: Any) -> None:
    block = tiny.config()
    for raw in ({**block, key: {"vocab_size": 9}}, {"quantization_config": block, key: 1}):
        assert all(layer.error is None for layer in plan(raw, modules=modules).layers.values())


def test_a_format_that_nothing_tells_is_none() -> None:
    layer = plan(tiny.config(fmt="mixed-precision"), strict=False).layers["Linear"]
    assert isinstance(layer.error, ConfigError) and "there are no tensors to tell it" in str(layer.error)
    assert layer.format is None and layer.to_json()["format"] is None


def test_no_kernel_names_each_with_its_reason(tmp_path: Path) -> None:
    result = soft(tmp_path, tiny.config(), layers("m.x"), device="rocm:gfx942")
    found, layer = error(result, "m.x"), result.layers["m.x"]
    assert isinstance(found, NoKernelFound) and len(found.nearest) == 3 and layer.scheme == "wNa16_int"
    linear = [kernel.name for kernel in tiny.KERNELS if kernel.op == "linear"]
    assert all(name in str(found) for name in linear) and "device is rocm" in str(found)
    assert (layer.kernel, layer.backend) == (None, None)


def test_kernels_by_device_and_backend(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, tiny.config(), layers("m.x"))
    assert plan(folder, device="cuda:sm90").layers["m.x"].kernel == "reference"
    assert plan(folder, backend="reference").layers["m.x"].kernel == "reference"
    w8 = checkpoint(tmp_path / "w8", tiny.config(tiny.group(tiny.INT8), fmt="int-quantized"), tiny.int8("m.x"))
    assert plan(w8).layers["m.x"].deviations == ("inputs stay unquantized",)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "tpu"}, "device"),
        ({"dtype": "int8"}, "dtype"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"tensor_parallel": True}, "tensor_parallel"),
        ({"modules": {"m.x": 3}}, "modules"),
        ({"modules": {"m.x": ()}}, "modules"),
        ({"modules": ["m.x"]}, "modules"),
        ({"modules": {5: "Linear"}}, "modules"),
        ({"environment": {"no such fact": 1}}, "environment"),
        ({"environment": {"triton": []}}, "environment"),
        ({"environment": ["triton"]}, "environment"),
        ({"environment": {5: "3.9"}}, "environment"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(checkpoint(tmp_path, tiny.config(), layers("m.x")), **options)
    assert caught.value.field == field and caught.value.exit_code == 2


def test_several_kinds_of_failure_in_one_line(tmp_path: Path) -> None:
    tensors = {**layers("m.x", make=tiny.fp8), **layers("m.y", symmetric=False)}
    with pytest.raises(PlanError, match="2 of 2 layers do not resolve: m.x: .*1 other kinds of failure"):
        plan(checkpoint(tmp_path, tiny.config(), tensors))


# ---------------------------------------------------------------------------------------- plan as data


def test_json_is_complete_and_stable(tmp_path: Path) -> None:
    tensors = {**layers(f"{ATTN}.q_proj", *(f"model.layers.{i}.mlp.up_proj" for i in (10, 2))), **OUTSIDE}
    folder = checkpoint(tmp_path, tiny.config(unknown_thing=1), tensors)
    first, second = (json.dumps(plan(folder).to_json()) for _ in range(2))
    data = json.loads(first)
    assert first == second and data["version"] == 1 and data["device"] == "cpu"
    names = [layer["name"] for layer in data["layers"]]
    assert names.index("model.layers.2.mlp.up_proj") < names.index("model.layers.10.mlp.up_proj")
    contract = {
        "name", "kind", "group", "target", "ignored_by", "weights", "inputs", "outputs", "format", "rule", "scheme",
        "backend", "kernel", "deviations", "equivalents", "differs", "trace", "error",
    }  # fmt: skip
    assert all(contract <= set(layer) for layer in data["layers"])
    dense = next(layer for layer in data["layers"] if layer["name"] == "lm_head")
    assert (dense["scheme"], dense["ignored_by"], dense["weights"], dense["error"]) == ("dense", "lm_head", None, None)
    assert {"code", "message"} <= set(data["problems"][0]) and data["problems"][0]["code"] == "unknown-key"


def test_summary_puts_alike_layers_together(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(12)]
    tensors = {**layers(*names), **layers("model.layers.0.mlp.down_proj", n=32, k=64), **OUTSIDE}
    config = tiny.config()
    folder = tiny.folder(tmp_path / "c", config, tensors, {
        name: tiny.shape_bytes(32 if "down" in name else 64) for name in tensors if name.endswith("weight_shape")
    })  # fmt: skip
    groups = plan(folder).summary
    assert [len(group.names) for group in groups] == [1, 1, 13] and groups[2].names[-1] == names[-1]


def test_no_tensor_library_is_imported(tmp_path: Path) -> None:

    folder = checkpoint(tmp_path, tiny.config(), layers("m.x"))
    code = (
        "import sys; from quantdispatch.registry.plan import plan; plan(sys.argv[1], strict=False); "
        "print([m for m in ('torch', 'transformers', 'numpy', 'safetensors', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_layers_alike_are_decided_once(tmp_path: Path) -> None:
    """Layers alike are decided once and share what was decided; only their names and errors are their own."""
    names = [f"model.layers.{i}.mlp.experts.{e}.up_proj" for i in range(20) for e in range(50)]
    folder = checkpoint(tmp_path, tiny.config(tiny.group(targets=["re:.*"]), ignore=()), layers(*names))
    result = plan(folder, strict=False)
    assert len(result.layers) == 1000
    assert len({id(layer.trace) for layer in result.layers.values()}) == 1
    assert [layer.error.layer for layer in result.layers.values() if layer.error] in ([], names)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda p: p / "gone", UnreadableCheckpointError, "no file or folder"),
        (lambda p: "a\0b", UnreadableCheckpointError, "not a path"),
        (lambda p: write(p / "x.json", "[1"), ConfigError, "not JSON"),
        (lambda p: write(p / "x.json", "3"), ConfigError, "no JSON object"),
        (lambda p: write(p / "x.json", "{}"), ConfigError, "no quantization_config"),
        (lambda p: {"model_type": "llama"}, ConfigError, "no quantization_config"),
        (lambda p: {"quantization_config": {"quant_method": "awq", "bits": 4}}, ConfigError, "awq"),
        (lambda p: write(p / "x.bin", "\x80\x02"), ConfigError, "x.bin"),
        (lambda p: os.mkdir(p / "empty") or p / "empty", ConfigError, "no config.json"),
    ],
)
def test_sources_that_cannot_be_read(tmp_path: Path, make: Any, kind: type[QuantDispatchError], words: str) -> None:
    with pytest.raises(kind) as caught:
        plan(make(tmp_path))
    assert words in str(caught.value) and caught.value.exit_code == 2 and "\n" not in str(caught.value)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="latin-1")
    return path
