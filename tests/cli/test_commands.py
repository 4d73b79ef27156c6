"""The commands on real files: a tiny checkpoint, configs alone, and everything that can be wrong with a source."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantdispatch.cli.app import main

Checkpoint = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def config(**changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", **changes.pop("weights", {})}
    block = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
        **changes,
    }
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": block}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], str]:
    def write(document: Any) -> str:
        path = tmp_path / "config.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return str(path)

    return write


def test_a_folder_is_explained_in_blocks(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = str(tiny_checkpoint("w4a16-asym"))
    capsys.readouterr()  # what making the checkpoint said
    assert main(["explain", folder, "--device", "cuda:sm90"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and lines[0].startswith("LlamaForCausalLM · pack-quantized · written by compressed-tensors ")
    assert lines[0].endswith(" · device cuda sm90")
    assert any(line.split()[:3] == ["14", "layers", "wNa16_int"] for line in lines)
    assert "    model.layers.0-1.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj}" in lines
    assert '    target   "Linear" in group_0 (from tensors: weight_packed, weight_zero_point)' in lines
    (rule,) = {line for line in lines if line.startswith("    rule  ")}
    assert rule.split()[1] == "wNa16_int" and "registry/rules/int_weights.py:" in rule
    assert any("cpu/" in line and " no   device is cuda, requires cpu" in line for line in lines)
    assert lines[-1].endswith("no broken plugins · every stored tensor has an owner")


def test_json_is_complete_and_never_collapsed(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = str(tiny_checkpoint("w4a16-asym"))
    assert main(["explain", folder, "--json", "--why-not", "reference"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1 and document["device"] == "cpu" and isinstance(document["problems"], list)
    layers = {layer["name"]: layer for layer in document["layers"]}
    assert sum(layer["scheme"] == "wNa16_int" for layer in layers.values()) == 14
    assert layers["model.layers.1.mlp.down_proj"]["equivalents"]["vllm"] == ["CompressedTensorsWNA16"]
    assert {entry["layer"] for entry in document["why_not"]} <= layers.keys()
    assert {entry["chosen"] for entry in document["why_not"]} == {False}
    assert main(["explain", folder, "--json", "--layer", "model.layers.1.mlp.down_proj"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["layers"]
    assert only == layers["model.layers.1.mlp.down_proj"]


def test_one_layer_in_full(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    assert main(["explain", str(tiny_checkpoint("w4a16-asym")), "--layer", "model.layers.0.mlp.up_proj"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("model.layers.0.mlp.up_proj · linear (Linear, from its weight_packed) · N ")
    assert any("weight_packed" in line and " I32 " in line for line in lines)
    assert any(line.startswith("    rules    wNa16_int") and " yes " in line for line in lines)
    assert any("w8a8_fp8 " in line and "weights.type is int, requires float" in line for line in lines)
    assert "    same as  vllm: CompressedTensorsWNA16" in lines


def test_why_not_says_who_ranks_higher(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    assert main(["explain", str(tiny_checkpoint("w4a16-asym")), "--why-not", "reference"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("reference" in line and "would do, but cpu/" in line and "ranks higher" in line for line in lines)
    assert any("none was asked: dense layers run as they are" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layer", "model.layers.0.mlp.up_pro"], "did you mean model.layers.0.mlp.up_proj"),
        (["--layer", "zzz"], "the plan has"),
        (["--why-not", "warp"], "no backend 'warp' is installed; installed: cpu, marlin, reference, torch, triton"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--device", "cuda:gfx942"], "unknown device"),
    ],
)
def test_questions_that_make_no_sense(
    arguments: list[str], says: str, tiny_checkpoint: Checkpoint, capsys: Capture
) -> None:
    assert main(["explain", str(tiny_checkpoint("w4a16-asym")), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_a_miss_names_the_nearest_rules_and_a_remedy(write: Any, capsys: Capture) -> None:
    path = write(config(weights={"num_bits": 9}))
    assert main(["explain", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    error    NoSchemeFound: "))
    assert lines[start + 1].startswith("    nearest  wNa16_int: weights.num_bits is 9, requires 1..8")
    assert [line[:13].strip() for line in lines[start + 1 : start + 5]] == ["nearest", "", "", "remedy"]
    assert main(["explain", path, "--json"]) == 1
    error = next(layer["error"] for layer in json.loads(capsys.readouterr().out)["layers"] if layer["error"])
    assert error["type"] == "NoSchemeFound" and len(error["nearest"]) == 3


def test_modules_may_be_named_where_there_are_no_tensors(write: Any, capsys: Capture) -> None:
    named = ["--module", "a.0.fc=MyLinear,Linear", "--module", "a.1.fc=Linear", "--module", "a.norm=RMSNorm"]
    assert main(["explain", write(config()), *named]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "    a.0-1.fc" in lines
    assert lines[lines.index("    a.norm") - 1].split() == ["1", "layer", "dense", "torch"]


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def lie_about_the_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes((2**40).to_bytes(8, "little") + file.read_bytes()[8:])


@pytest.mark.parametrize("break_it", [truncate, lie_about_the_header])
def test_broken_files_are_two(break_it: Any, tiny_checkpoint: Checkpoint, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint("w4a16-asym"), folder)
    break_it(folder)
    assert main(["explain", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: UnreadableCheckpointError: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ({"model_type": "llama"}, "quantization"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        (config(weights={"num_bits": {"experts": 4}}), "num_bits"),
        (config(config_groups={"group_0": {"targets": ["re:("], "weights": {"num_bits": 4}}}), "regular"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_malformed_configs_are_two_and_one_line(
    document: Any, says: str, as_json: bool, write: Any, capsys: Capture
) -> None:
    assert main(["explain", write(document), *(["--json"] if as_json else [])]) == 2
    out, err = capsys.readouterr()
    assert says in err and err.startswith("error: ConfigError: ") and err.count("\n") == 1
    if not as_json:
        assert out == ""
        return
    shown = json.loads(out)
    assert shown["version"] == 1 and shown["error"]["type"] == "ConfigError" and says in shown["error"]["message"]


@pytest.mark.parametrize("command", [["explain"], ["verify"], ["run", "--prompt", "x"]])
def test_a_folder_that_is_not_there(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    if command[0] != "explain":
        pytest.importorskip("transformers", reason="running a model needs transformers")
    assert main([command[0], str(tmp_path / "none"), *command[1:]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"ignore": ["a\x1b[31mb\u202e"]},
        {"ignore": ["re:(\x1b[31m"]},
        {"format": "\x1b[31mred"},
        {"config_groups": {"\x1b[31m": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}}},
        {"\x1b[31mkey": 1},
        {"weights": {"type": "\x1b[31m"}},
    ],
)
def test_no_text_of_a_file_can_move_the_cursor(changes: dict[str, Any], write: Any, capsys: Capture) -> None:
    main(["explain", write(config(**changes))])
    out, err = capsys.readouterr()
    assert not any(ord(c) < 32 and c != "\n" for c in out + err) and "\u202e" not in out + err
    assert "[31m" in out + err


LIGHT = """
import sys
from quantdispatch.cli.app import main
code = main(sys.argv[1:])
heavy = {"torch", "numpy", "transformers", "compressed_tensors", "safetensors", "triton", "huggingface_hub", "rich"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def cpu_seconds(*command: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COVERAGE_PROCESS_START")}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


@pytest.mark.parametrize("source", ["folder", "config"])
def test_explaining_needs_neither_torch_nor_time(source: str, tiny_checkpoint: Checkpoint, write: Any) -> None:
    path = str(tiny_checkpoint("w4a16-asym")) if source == "folder" else write(config())
    times, starts = [], []
    for _ in range(4):
        starts.append(cpu_seconds(sys.executable, "-c", "pass")[0])
        seconds, result = cpu_seconds(sys.executable, "-c", LIGHT, "explain", path)
        times.append(seconds)
        assert result.returncode == 0 and result.stderr == "[]\n", result.stderr
    # 0.5 s where an empty interpreter takes 30 ms, which benchmarks/startup.py measures. A slower or busier machine
    # gets more in proportion, and four times of that: tests run side by side.
    assert min(times) < 4 * 0.5 * max(1.0, min(starts) / 0.03), (times, starts)


@pytest.mark.parametrize("variant", ["w4a16-asym", "w8a8-int8", "fp8-dynamic"])
def test_verify_shows_the_worst_layer_first(variant: str, tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = str(tiny_checkpoint(variant))
    assert main(["verify", folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["error", "largest", "weight", "scheme", "kernel", "layer"]
    errors = [float(line.split()[0]) for line in lines[1:15]]
    assert errors == sorted(errors, reverse=True) and all(line.split()[2] == "equal" for line in lines[1:15])
    assert lines[-1].startswith("14 of 14 layers within 0.01")


def test_verify_fails_where_an_error_exceeds_the_tolerance(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = str(tiny_checkpoint("w4a16-asym"))
    assert main(["verify", folder, "--tolerance", "1e-9", "--backend", "reference", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] == len(document["layers"]) == 14
    assert {layer["kernel"] for layer in document["layers"]} == {"reference"}


def test_run_answers_on_stdout_and_counts_on_stderr(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = str(tiny_checkpoint("w4a16-asym"))
    assert main(["run", folder, "--prompt", "Hi", "--max-new-tokens", "4"]) == 0
    assert " new tokens · " in capsys.readouterr().err
    assert main(["run", folder, "--prompt", "Hi", "--max-new-tokens", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert 1 <= answer["new_tokens"] <= 4 and answer["weight_bytes"] > 0 and isinstance(answer["text"], str)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--prompt", "x", "--backend", "warp"], "no backend 'warp' is installed"),
        (["verify", "--backend", "warp"], "no backend 'warp' is installed"),
        (["run", "--prompt", "a\udc80"], "--prompt is no text"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_loaded(
    arguments: list[str], says: str, tiny_checkpoint: Checkpoint, capsys: Capture
) -> None:
    assert main([*arguments, str(tiny_checkpoint("w4a16-asym"))]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_meta_gives_the_names_of_experts_as_files_have_them(write: Any, capsys: Capture) -> None:
    pytest.importorskip("transformers", reason="--meta builds a transformers model")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "vocab_size": 100}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    made = {**config(), "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    main(["explain", write({**made, **sizes, **heads, **experts}), "--meta"])
    lines = capsys.readouterr().out.splitlines()
    assert "    model.layers.0-1.self_attn.{q,k,v,o}_proj" in lines
    assert "    model.layers.0-1.mlp.experts.0-3.{gate,up,down}_proj" in lines


def test_meta_agrees_with_the_tensors(tiny_checkpoint: Checkpoint, capsys: Capture) -> None:
    assert main(["explain", str(tiny_checkpoint("w4a16-asym")), "--meta"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "    model.layers.0-1.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj}" in lines
    assert not any(line.startswith(("error", "warning")) for line in lines)


def test_meta_says_why_a_model_cannot_be_built(write: Any, capsys: Capture) -> None:
    pytest.importorskip("transformers", reason="--meta builds a transformers model")
    made = {**config(), "architectures": ["NoSuchForCausalLM"], "model_type": "no_such_model"}
    assert main(["explain", write(made), "--meta"]) == 2
    err = capsys.readouterr().err
    assert "cannot build this model" in err and err.count("\n") == 1
