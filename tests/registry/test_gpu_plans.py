"""Plans for GPUs that are not here: every config, every family, with reasons for the kernels that were not taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quantdispatch as qd
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.gpus import SHOWN, family_of
from quantdispatch.registry.kernel_ranks import STANDINGS, arranged
from quantdispatch.registry.registry import build
from quantdispatch.registry.values import ABSENT, UNKNOWN

HERE = Path(__file__).parents[1] / "data" / "configs"
SHARED = Path(__file__).parents[3] / "shared" / "configs"
CONFIGS = sorted({path.name: path for folder in (HERE, SHARED) for path in folder.glob("*.json")}.values())
ASSUMED = {"torch": "2.11.0", "triton": "3.9.0", "vllm": "0.32.0", "sglang": None}
INT4: dict[str, Any] = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 128}}
        },
        "ignore": ["lm_head"],
    }
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_on_every_gpu(path: Path) -> None:
    """The same layers resolve as on the CPU, by other kernels; and every kernel before the chosen one says why not."""
    try:
        usual = qd.plan(path, strict=False)
    except qd.QuantDispatchError:
        for device in SHOWN:  # a config that cannot be read cannot be read for any device
            with pytest.raises(qd.QuantDispatchError):
                qd.plan(path, device=device, environment=ASSUMED, strict=False)
        return
    for device in SHOWN:
        made = qd.plan(path, device=device, environment=ASSUMED, strict=False)
        assert list(made.layers) == list(usual.layers)
        for name, layer in made.layers.items():
            assert (layer.scheme, layer.rule) == (usual.layers[name].scheme, usual.layers[name].rule)
            if layer.selection is None or layer.selection.kernel is None:
                continue
            assert layer.backend in ("marlin", "triton", "torch", "reference")
            for candidate in layer.selection.trace:
                if candidate.kernel is layer.selection.kernel:
                    break
                assert candidate.status == "no" and candidate.reasons, candidate


def test_explain_says_it_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from quantdispatch.cli.app import main

    path = tmp_path / "config.json"
    path.write_text(json.dumps(INT4))
    assert (
        main(["explain", str(path), "--device", "cuda:sm90", "--assume", "triton=3.6.0", "--assume", "vllm=none"]) == 0
    )
    assert "triton" in capsys.readouterr().out
    arguments = [
        "explain",
        str(path),
        "--device",
        "cuda:sm90",
        "--assume",
        "vllm=0.32.0",
        "--assume",
        "rows=2048",
        "--json",
    ]
    assert main([*arguments, "--assume", "triton=3.6.0"]) == 0
    layer = json.loads(capsys.readouterr().out)["layers"][0]
    assert layer["backend"] == "triton" and "published" in layer["ranked"]
    assert main(["explain", str(path), "--device", "cuda:sm90", "--assume", "triton"]) == 2
    assert "--assume takes NAME=VALUE" in capsys.readouterr().err
    assert main(["explain", str(path), "--device", "cuda:sm90", "--assume", "colour=red"]) == 2
    assert "unknown environment fact" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "environment", "said"),
    [
        ("cuda:sm75", ASSUMED, "family is sm75"),
        ("cuda:sm90", {**ASSUMED, "triton": None}, "version.triton is absent"),
        ("cuda:sm90", {**ASSUMED, "triton": "3.5.1"}, "version.triton is 3.5, requires 3.8"),
        ("cuda:sm100", {**ASSUMED, "triton": "3.7.1"}, "version.triton is 3.7, requires 3.8"),
        ("cpu", ASSUMED, "device is cpu"),
    ],
)
def test_a_forced_backend_that_is_not_admissible_is_an_error_with_the_reasons(
    device: str, environment: dict[str, Any], said: str
) -> None:
    with pytest.raises(qd.PlanError) as caught:
        qd.plan(INT4, device=device, environment=environment, backend="triton")
    errors = [error for error in caught.value.errors if isinstance(error, qd.NoKernelFound)]
    assert errors and all(said in str(error) for error in errors)
    assert all("was asked for" not in str(error) and "triton/" in str(error) for error in errors)
    assert all("backend='triton'" in (error.remedy or "") for error in errors)


def test_a_forced_backend_that_is_admissible() -> None:
    made = qd.plan(INT4, device="cuda:sm90", environment=ASSUMED, backend="triton")
    assert {layer.backend for layer in made.layers.values() if layer.scheme != "dense"} == {"triton"}
    free = qd.plan(INT4, device="cuda:sm90", environment=ASSUMED)
    assert {layer.backend for layer in free.layers.values() if layer.scheme != "dense"} == {"marlin"}


@pytest.mark.parametrize(
    ("arch", "family"),
    [("sm75", "sm75"), ("sm80", "sm80"), ("sm86", "sm80"), ("sm87", "sm80"), ("sm89", "sm89"), ("sm90", "sm90"),
     ("sm90a", "sm90"), ("sm100", "sm100"), ("sm100f", "sm100"), ("sm103", "sm100"), ("sm120a", "sm120"),
     ("sm101", "sm101"), ("sm110a", "sm110"), ("sm121", "sm120"), ("sm70", "sm70"), ("sm130", "sm130"),
     ("gfx942", "gfx942"), ("gfx90a", "gfx90a")],
)  # fmt: skip
def test_families(arch: str, family: str) -> None:
    assert family_of(arch) == family
    kind = "cuda" if arch.startswith("sm") else "rocm"
    assert Environment.detect(f"{kind}:{arch}").facts["family"] == family


@pytest.mark.parametrize(
    ("version", "number"),
    [("3.6.0", 306), ("3.10.1", 310), ("2.11.0+cu130", 211), ("v0.32.0rc1", 32), ("main", UNKNOWN), (None, ABSENT)],
)
def test_versions_are_numbers(version: str | None, number: Any) -> None:
    facts = Environment.detect("cuda:sm90", {"triton": version}).facts
    assert facts["version.triton"] == number or facts["version.triton"] is number


def test_the_cpu_has_no_family() -> None:
    assert Environment.detect("cpu").facts["family"] is ABSENT


def test_orders_between_backends_hold_where_they_say() -> None:
    registry = build()
    layer = qd.plan(INT4, device="cuda:sm90", environment=ASSUMED).layers
    spec = next(one.spec for one in layer.values() if one.spec is not None and one.scheme == "wNa16_int")
    assert spec is not None
    order = {}
    for rows in (1, 16, 1024):
        facts = Environment.detect("cuda:sm90", {**ASSUMED, "rows": rows}).facts
        order[rows] = [k.backend for k in arranged(registry.kernels, spec, facts, registry.ranks)]
        assert sorted(order[rows]) == sorted(k.backend for k in registry.kernels)
        assert order[rows][-1] == "reference"
    assert order[1].index("marlin") < order[1].index("triton")
    assert order[1024].index("triton") < order[1024].index("marlin")
    names = {kernel.name for kernel in registry.kernels} | {kernel.backend for kernel in registry.kernels}
    assert all(entry.who in names and entry.source for entry in STANDINGS)
