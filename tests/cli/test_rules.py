"""``rules`` and ``doctor`` over registries made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from quantdispatch.cli.app import main
from quantdispatch.cli.coverage import DEVICES, KINDS, covers, written_format
from quantdispatch.registry.config_reading import Notes, read_args
from quantdispatch.registry.kernels import Absent, Args, Kernel, Needs
from quantdispatch.registry.plugins import Source
from quantdispatch.registry.predicates import When
from quantdispatch.registry.presets import PRESETS
from quantdispatch.registry.registry import Registry, build
from quantdispatch.registry.rules import Rule

INT4 = Kernel(
    name="cpu/int4",
    op="linear",
    requires=Needs(device="cpu", weights=Args(type="int", num_bits={4}), inputs=Absent),
    target="nowhere:Impl",
    rank=50,
)
MARLIN = Kernel(name="marlin/int4", op="linear", requires=Needs(device="cuda", arch={"sm90"}), target="nowhere:Impl")


class Plugin:
    """A module as an entry point loads it."""

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules

    def load(self) -> Any:
        from types import ModuleType

        from quantdispatch import hookimpl

        module = ModuleType("acme")

        def quantdispatch_rules() -> Any:
            return list(self._rules)

        module.quantdispatch_rules = hookimpl(quantdispatch_rules)  # type: ignore[attr-defined]
        return module


def broken() -> Any:
    raise ImportError("no module named 'cuda'")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the commands see this registry."""

    monkeypatch.delenv("QUANTDISPATCH_STRICT", raising=False)

    def install(*sources: Source, kernels: tuple[Kernel, ...] = (INT4, MARLIN)) -> Registry:
        monkeypatch.setattr("quantdispatch.registry.registry.BUILTIN_KERNELS", ())
        with pytest.warns(RuntimeWarning) if any(s.load is broken for s in sources) else _nothing():
            made = build(sources)
        registry = Registry(made.rules, kernels, made._collected, made.problems)
        for place in ("rules", "doctor"):
            monkeypatch.setattr(f"quantdispatch.cli.{place}.get_registry", lambda: registry)
        return registry

    return install


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def source(name: str, load: Any) -> Source:
    return Source(name, f"{name}-dist", "1.2", load)


def test_the_listing_names_rule_scheme_origin_and_conditions(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use()
    assert main(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("wNa16_int   "))
    block = lines[start : start + 11]
    assert block[1] == "    scheme   wNa16_int"
    assert block[2].startswith("    from     quantdispatch ") and "registry/rules/int_weights.py:" in block[2]
    assert block[3].startswith("    when     format pack-quantized, kind ")
    assert "             inputs absent" in block
    assert any(line.startswith("    either   weights ") for line in block)
    assert any(line.startswith("    or       weights ") and "group_size >= 1" in line for line in block)
    assert lines[-1].endswith("2 kernels · backends: cpu, marlin")


def test_json_has_everything_and_the_scheme_by_name(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    registry = use()
    assert main(["rules", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [rule["name"] for rule in document["rules"]] == [rule.name for rule in registry.rules.rules]
    assert {"wNa16_int", "w8a8_fp8", "dense"} <= {rule["scheme"] for rule in document["rules"]}
    assert [kernel["name"] for kernel in document["kernels"]] == ["cpu/int4", "marlin/int4"]


OVERLAP = Rule(
    name="acme-int4",
    when=When(kind="linear", format="pack-quantized", weights=Args(type="int", strategy="channel"), inputs=Absent),
    scheme="quantdispatch.schemes.dense:Dense",
)
UNUSABLE = Rule(name="acme-nvfp4", when=When(format="nvfp4-pack-quantized", weights=Args()), scheme="acme.gone:Scheme")


@pytest.mark.parametrize(
    ("sources", "code", "finding"),
    [
        ([], 0, None),
        ([source("acme", broken)], 1, "broken-plugin"),
        ([source("acme", Plugin(OVERLAP).load)], 1, "overlap"),
        ([source("acme", Plugin(replace(OVERLAP, name="wNa16_int")).load)], 1, "name-clash"),
        ([source("acme", Plugin(UNUSABLE).load)], 1, "unusable-scheme"),
    ],
)
def test_check(
    sources: list[Source], code: int, finding: str | None, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    use(*sources)
    assert main(["rules", "--check"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"{len(lines) - 1} problem")
    assert [line.split()[1] for line in lines[:-1]] == ([f"{finding}:"] if finding else [])
    assert main(["rules", "--check", "--json"]) == code
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [entry["code"] for entry in found] == ([finding] if finding else [])


def test_coverage_tells_scheme_and_kernel_for_each_device(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    registry = use()
    found = {(cover.preset, cover.kind): cover for cover in covers(registry)}
    assert len(found) == len(PRESETS) * len(KINDS)
    int4 = found["W4A16", "linear"]
    kernels = dict(zip(DEVICES, int4.kernels, strict=True))
    assert (int4.scheme, kernels["cpu"], kernels["cuda:sm90"], kernels["cuda:sm80"]) == (
        "wNa16_int",
        "cpu/int4",
        "marlin/int4",
        None,
    )
    assert main(["rules", "--coverage"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:4] == ["preset", "kinds", "format", "scheme"] and tuple(rows[0][4:]) == DEVICES
    assert any(row[0] == "W4A16" and "cpu/int4" in row for row in rows)
    assert main(["rules", "--coverage", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["coverage"]) == len(found)


def test_formats_are_those_that_compressed_tensors_writes() -> None:
    torch = pytest.importorskip("torch", reason="the installed compressed-tensors needs torch")
    reason = "compares with the format that an installed compressed-tensors >= 0.20 chooses"
    formats = pytest.importorskip("compressed_tensors.compressors.format", reason=reason)
    schemes = pytest.importorskip("compressed_tensors.quantization.quant_scheme", reason=reason)
    for name, preset in schemes.PRESET_SCHEMES.items():
        theirs = formats.infer_module_format(torch.nn.Linear, schemes.QuantizationScheme(targets=["Linear"], **preset))
        sides = (read_args(PRESETS[name].get(side), name, Notes()) for side in ("weights", "input_activations"))
        assert written_format(*sides) == theirs.value, name


@pytest.mark.parametrize(
    ("sources", "code", "line"),
    [
        ([], 0, "plugins    none installed"),
        ([source("good", Plugin().load)], 0, "    ok        good (good-dist 1.2, 0 rules, 0 kernels)"),
        ([source("acme", broken)], 1, "    broken    acme (acme-dist 1.2, 0 rules, 0 kernels)"),
        (
            [source("acme", Plugin(OVERLAP).load)],
            0,
            "    conflict  acme (acme-dist 1.2, 1 rules, 0 kernels)",
        ),
    ],
)
def test_doctor_shows_the_state_of_plugins(
    sources: list[Source], code: int, line: str, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    use(*sources)
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    assert line in out.splitlines()
    assert ("no module named 'cuda'" in out) is (code == 1)
    assert main(["doctor", "--json"]) == code
    assert len(json.loads(capsys.readouterr().out)["plugins"]) == len(sources)


def test_doctor_says_what_is_lost_without_a_package(
    use: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use()
    monkeypatch.setattr(
        "quantdispatch.cli.doctor.OPTIONAL", (("no-such-package", "warp kernels", "quantdispatch[warp]"),)
    )
    assert main(["doctor"]) == 0
    shown = "    no-such-package  missing  without it no warp kernels; pip install 'quantdispatch[warp]'"
    assert shown in capsys.readouterr().out.splitlines()
