"""A row holds when the plan says so, and its failure says why."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from usual_kernels import INT4

from quantdispatch import Args, Kernel, Needs, Rule, When
from quantdispatch.registry.plan import plan
from quantdispatch.registry.presets import PRESETS
from quantdispatch.testing import Row, RowMismatch, TableError, check_row, load_table, registry_with, using_registry
from quantdispatch.testing.observing import observe

BUILT_IN = registry_with()
W4 = {"num_bits": 4, "group_size": 128}
LAYER = "model.layers.0.mlp.down_proj"
FACTS = {"id": "x", "format": "pack-quantized", "weights": W4}
CONFIG = {"id": "x", "config": tiny.config(tiny.group({**tiny.INT4, "group_size": 128})), "layer": LAYER}


def check(row: dict[str, Any], registry: Any = BUILT_IN) -> None:
    check_row(Row.read(row), registry)


def mismatch(row: dict[str, Any], registry: Any = BUILT_IN) -> str:
    with pytest.raises(RowMismatch) as caught:
        check(row, registry)
    return str(caught.value)


HOLDS: dict[str, dict[str, Any]] = {
    "facts": {**FACTS, "rule": "wNa16_int", "scheme": "wNa16_int", "backend": "cpu", "deviations": []},
    "a preset": {"id": "x", "preset": "w4a16", "format": "pack-quantized", "rule": "wNa16_int"},
    "a preset but for one arg": {
        "id": "x", "preset": "W4A16", "format": "pack-quantized", "weights": {"num_bits": 16},
        "error": "NoSchemeFound", "message": ["int16", "pack-quantized"], "near": "wNa16_int",
    },
    "args that contradict each other": {
        **FACTS, "weights": {"strategy": "token"}, "error": "ConfigError", "message": "weights.dynamic",
    },
    "a kernel elsewhere": {
        **FACTS, "device": "cuda:sm90", "environment": {"triton": False}, "kernel": "reference", "backend": "reference",
    },
    "a size that the groups do not divide": {
        **FACTS, "shape": [64, 200], "scheme": "wNa16_int", "kernel": "", "error": "CheckpointError",
        "message": ["K = 200", "128"],
    },
    "a backend alone": {**FACTS, "force_backend": "reference", "kernel": "reference"},
    "a backend that nobody has": {**FACTS, "force_backend": "none", "error": "PluginError"},
    "a device that is none": {**FACTS, "device": "tpu", "error": "ConfigError", "message": "tpu"},
    "a config": {**CONFIG, "rule": "wNa16_int", "group": "group_0", "target": "Linear", "ignored_by": "",
                 "kind": "linear", "format": "pack-quantized", "problems": []},
    "an ignored layer": {**CONFIG, "layer": "lm_head", "scheme": "dense", "ignored_by": "lm_head", "group": ""},
    "every layer that is quantized": {
        **{k: v for k, v in CONFIG.items() if k != "layer"}, "scheme": "wNa16_int",
        "modules": {LAYER: "Linear", "model.embed_tokens": "Embedding"},
    },
    "a class that a config cannot mean": {
        **CONFIG, "modules": {LAYER: ["MyLinear", "Linear"]}, "rule": "wNa16_int", "target": "Linear",
    },
    "a config of another method": {
        "id": "x", "config": {"quant_method": "nonesuch"}, "error": "ConfigError", "message": "nonesuch",
    },
    "a config with a problem": {
        **CONFIG, "config": {**CONFIG["config"]["quantization_config"], "strange": 1},
        "rule": "wNa16_int", "problems": ["unknown-key"],
    },
}  # fmt: skip


@pytest.mark.parametrize("row", HOLDS.values(), ids=HOLDS)
def test_rows_that_hold(row: dict[str, Any]) -> None:
    check(row)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**FACTS, "rule": "wNa8_int"}, ["expected  wNa8_int", "observed  wNa16_int", "inputs is absent"]),
        ({**FACTS, "rule": "wNa16-int"}, ["no such rule", "near names: wNa16_int"]),
        ({**FACTS, "scheme": "w8a8_fp8"}, ["kept out", "w8a8_fp8-block: ", "weights.type is int, requires float"]),
        ({**FACTS, "scheme": "w4a5"}, ["no rule of this registry has the scheme w4a5"]),
        ({**FACTS, "kernel": "reference"}, ["kernels", "reference", "chosen", "int_weights.py"]),
        ({**FACTS, "kernel": "cpu/int9"}, ["no such kernel"]),
        ({**FACTS, "error": "NoSchemeFound"}, ["error", "observed  none", "decided by  rule wNa16_int"]),
        ({**FACTS, "format": "dense", "rule": "wNa16_int"}, ["NoSchemeFound", "format is dense"]),
        ({**FACTS, "format": "dense", "error": "ConfigError"}, ["observed  NoSchemeFound: "]),
        ({**FACTS, "format": "dense", "error": "NoSchemeFound", "near": "dense"}, ["near", "weights is present"]),
        ({**FACTS, "format": "dense", "error": "NoSchemeFound", "message": ["no rule", "?!"]}, ["message", "?!"]),
        ({**FACTS, "rule": "wNa16_int", "deviations": ["slow"]}, ["deviations", "expected  slow", "observed  none"]),
        ({**FACTS, "rule": "wNa16_int", "differs": {"other": "x"}}, ["differs", "expected  other: x"]),
        ({**FACTS, "error": "QuantDispatchError", "format": "dense"}, ["QuantDispatchError"]),
        ({**CONFIG, "rule": "wNa16_int", "problems": ["overlap"]}, ["problems", "overlap"]),
        ({**CONFIG, "rule": "wNa16_int", "ignored_by": "re:.*"}, ["ignored_by", "re:.*"]),
        ({**CONFIG, "rule": "wNa16_int", "kind": "moe"}, ["kind", "observed  linear"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else "-".join(str(v) for v in list(value.values())[3:]),
)
def test_a_failure_says_what_and_why(row: dict[str, Any], words: list[str]) -> None:
    text = mismatch(row)
    assert 'row "x" does not hold' in text
    assert all(word in text for word in words), text


def test_a_failure_names_the_place_of_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('plugins = []\n\n[[row]]\nid = "a"\nformat = "dense"\nweights = {}\nrule = "dense"\n')
    with pytest.raises(RowMismatch, match=r"t\.toml:3\) does not hold") as caught:
        check_row(load_table(path)[0])
    assert {d.field for d in caught.value.differences} == {"rule", "error"}


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"UNQUANTIZED"}))
@pytest.mark.parametrize("kind", ["linear", "moe", "lm_head"])
def test_facts_are_resolved_as_a_config_that_says_the_same(name: str, kind: str) -> None:
    format_ = next(
        text for sign, text in [("NV", "nvfp4-pack-quantized"), ("MXFP4", "mxfp4-pack-quantized"),
                                ("MXFP6", "mxfp6-pack-quantized"), ("MXFP8", "mxfp8-quantized"),
                                ("FP8", "float-quantized"), ("", "pack-quantized")] if name.startswith(sign)
    )  # fmt: skip
    module = {"linear": LAYER, "moe": "model.layers.0.mlp.experts.0.down_proj", "lm_head": "lm_head"}[kind]
    facts = Row.read({"id": "f", "preset": name, "format": format_, "kind": kind, "layer": module, "rule": "x"})
    block = {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"g": {"targets": ["Linear"], **PRESETS[name]}},
    }
    (by_facts,) = observe(facts, BUILT_IN)
    with using_registry(BUILT_IN):
        planned = plan(block, modules={module: "Linear"}, strict=False).layers[module]
    assert by_facts.layer is not None
    for field in ("kind", "weights", "inputs", "format", "rule", "scheme", "kernel", "conditions", "deviations"):
        assert getattr(by_facts.layer, field) == getattr(planned, field), field
    assert str(by_facts.error) == str(planned.error)


def test_a_checkpoint_is_planned_with_its_tensors(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, tiny.config(), tiny.layers(LAYER))
    path = tmp_path / "t.json"
    rows = [{"id": "x", "checkpoint": folder.name, "layer": LAYER, "scheme": "wNa16_int", "kernel": INT4}]
    path.write_text(json.dumps({"plugins": [], "row": rows}))
    check_row(load_table(path)[0])


STORED = {
    f"{LAYER}.weight_packed": "I32 64x8",
    f"{LAYER}.weight_scale": "BF16 64x2",
    f"{LAYER}.weight_shape": "I64 = 64, 64",
}


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (STORED, {"scheme": "wNa16_int", "kind": "linear"}),
        ({**STORED, f"{LAYER}.weight_shape": "I64 = 64, 96"}, {"error": "CheckpointError", "message": "weight_packed"}),
        ({**STORED, f"{LAYER}.weight_scale": "BF16 64x3"}, {"error": "CheckpointError", "message": "weight_scale"}),
        ({**STORED, f"{LAYER}.input_scale": "F32 scalar"}, {"error": "CheckpointError", "message": "input_scale"}),
        ({f"{LAYER}.weight": "BF16 64x64"}, {"error": "CheckpointError"}),
    ],
)
def test_stored_tensors_can_be_written_in_a_row(tensors: dict[str, str], expected: dict[str, Any]) -> None:
    check({"id": "x", "config": tiny.config(), "layer": LAYER, "tensors": tensors, **expected})


@pytest.mark.parametrize("spelled", ["bf16 64x64", "BF16", "BF17 4x4", "I64 = ", "BF16 4x"])
def test_a_tensor_is_spelled_in_one_way(spelled: str) -> None:
    with pytest.raises(TableError, match="not a dtype and a shape"):
        check({"id": "x", "config": tiny.config(), "layer": LAYER, "tensors": {"a": spelled}, "error": "ConfigError"})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**CONFIG, "layer": "re:nothing", "rule": "x"}, "no layer re:nothing"),
        ({"id": "x", "config": tiny.config(tiny.group(targets=[])), "rule": "x"}, "quantizes no layer"),
        ({"id": "x", "config": "nowhere.json", "error": "ConfigError"}, "no file or folder"),
        ({"id": "x", "checkpoint": "nowhere", "error": "CheckpointError"}, "no file or folder"),
    ],
)
def test_a_row_about_what_is_not_there_is_no_answer(row: dict[str, Any], words: str) -> None:
    with pytest.raises(TableError, match=words):
        check(row)


def test_one_layer_that_differs_fails_a_row_about_all() -> None:
    row = {"id": "x", "config": tiny.config(), "modules": {LAYER: "Linear", "model.layers.1.k_proj": "Linear"}}
    check({**row, "kind": "linear", "rule": "wNa16_int"})
    odd = {**row, "modules": {**row["modules"], "model.layers.0.mlp.experts.0.w1": "Linear"}}
    assert "experts.0.w1" in mismatch({**odd, "kind": "linear", "rule": "wNa16_int"})


NEVER = Kernel("sample/never", "linear", Needs(weights=Args(num_bits=99)), "a:B")
OTHER_OP = Kernel("sample/other", "convolution", Needs(), "a:B")


def test_a_kernel_that_was_not_asked_says_so() -> None:
    registry = registry_with(NEVER, OTHER_OP)
    assert "sample/never" in mismatch({**FACTS, "kernel": "sample/never"}, registry)
    assert "it computes convolution, the layer needs linear" in mismatch({**FACTS, "kernel": "sample/other"}, registry)


def test_environment_facts_can_be_assumed() -> None:
    kernel = Kernel("sample/triton", "linear", Needs({"package.triton": "3.9.0", "isa.avx2": True}), "a:B", rank=1)
    registry = registry_with(kernel)
    facts = {**FACTS, "kernel": "sample/triton", "force_backend": "sample"}
    check({**facts, "environment": {"triton": "3.9.0", "isa.avx2": True}}, registry)
    for other in ({"triton": False, "isa.avx2": True}, {"triton": "3.9.0", "isa.avx2": False}):
        check({**facts, "kernel": "", "error": "NoKernelFound", "scheme": "wNa16_int", "environment": other}, registry)


def test_equivalents_and_differs_are_exact() -> None:
    own = Rule(
        "sample", When(format="sample", weights=Args()), "quantdispatch.schemes.wna16_int:WNA16Int",
        equivalents={"vllm": ("A", "B")}, differs={"sglang": "drops the inputs"},
    )  # fmt: skip
    registry, row = registry_with(own), {**FACTS, "format": "sample", "rule": "sample"}
    check({**row, "equivalents": {"vllm": ["B", "A"]}, "differs": {"sglang": "inputs"}}, registry)
    for wrong in ({"equivalents": {"vllm": ["A"]}}, {"equivalents": {}}, {"differs": {}}, {"differs": {"sglang": "x"}}):
        assert "expected" in mismatch({**row, **wrong}, registry)
