"""``rules`` and ``doctor`` over registries made by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from quantdispatch.cli.app import main
from quantdispatch.cli.coverage import DEVICES, KINDS, covers, written_format
from quantdispatch.registry.analysis.coverage import VALUES, coverage
from quantdispatch.registry.args import STRATEGIES, QuantArgs
from quantdispatch.registry.config_reading import Notes, read_args
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.errors import PluginError
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.kernels import Absent, Args, Kernel, Needs
from quantdispatch.registry.plan import plan
from quantdispatch.registry.plugins import Source
from quantdispatch.registry.predicates import When
from quantdispatch.registry.presets import PRESETS
from quantdispatch.registry.registry import Registry, build
from quantdispatch.registry.rules import Rule
from quantdispatch.registry.table import RuleTable

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
    assert block[3].startswith("    when     format pack-quantized")
    assert "             inputs absent" in block
    assert any(line.startswith("    either   kind ") for line in block)
    assert any(line.startswith("    or       kind ") and "group_size >= 1" in line for line in block)
    assert lines[-1].endswith("2 kernels · backends: marlin, cpu")


def test_json_has_everything_and_the_scheme_by_name(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    registry = use()
    assert main(["rules", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [rule["name"] for rule in document["rules"]] == [rule.name for rule in registry.rules.rules]
    assert {"wNa16_int", "w8a8_fp8", "dense"} <= {rule["scheme"] for rule in document["rules"]}
    assert [kernel["name"] for kernel in document["kernels"]] == ["marlin/int4", "cpu/int4"]


OVERLAP = Rule(
    name="acme-int4",
    when=When(kind="linear", format="pack-quantized", weights=Args(type="int", strategy="channel"), inputs=Absent),
    scheme="quantdispatch.schemes.dense:Dense",
)
UNUSABLE = Rule(name="acme", when=When(format="acme-quantized", weights=Args()), scheme="acme.gone:Scheme")
SPARE = Rule(
    name="acme-int4",
    when=When(kind="linear", weights=Absent, inputs=Absent, outputs=Absent),
    scheme="quantdispatch.schemes.dense:Dense",
    overrides=("dense",),
)
CLASHING = Rule(
    name="acme",
    when=When(format="acme-quantized", weights=Args()),
    scheme="quantdispatch.schemes.dense:Dense",
    overrides=("acme",),
)


@pytest.mark.parametrize(
    ("sources", "code", "expected"),
    [
        ([], 0, []),
        ([source("acme", broken)], 1, ["QD302 broken-plugin"]),
        ([source("acme", Plugin(OVERLAP).load)], 1, ["QD201 overlap"]),
        ([source("acme", Plugin(replace(OVERLAP, name="wNa16_int")).load)], 1, ["QD205 name-clash"]),
        ([source("acme", Plugin(UNUSABLE).load)], 1, ["QD301 unusable-scheme"]),
        ([source("acme", Plugin(SPARE).load)], 0, ["QD104 redundant-rule"]),
        ([source("acme", Plugin(CLASHING).load)], 1, ["QD204 override-cycle"]),
    ],
)
def test_check(
    sources: list[Source], code: int, expected: list[str], use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = use(*sources)
    assert main(["rules", "--check"]) == code
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines[:-1] if not line.startswith(" ")]
    assert [" ".join(line.split()[1:3]).rstrip(":") for line in heads] == expected
    errors = sum(line.startswith("error") for line in heads)
    assert code == (1 if errors else 0)
    counted = f"{errors} error{'s' if errors != 1 else ''}, {len(heads) - errors} warning"
    assert lines[-1].startswith(counted) and f" in {len(registry.registered)} rules, 2 kernels" in lines[-1]
    assert main(["rules", "--check", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert [f"{f['code']} {f['name']}" for f in document["findings"]] == expected
    assert document["errors"] == errors


def test_check_shows_place_remedy_and_a_config_that_has_the_fault(
    use: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = use(source("acme", Plugin(OVERLAP).load))
    assert main(["rules", "--check"]) == 1
    head, remedy, config, _ = capsys.readouterr().out.splitlines()
    assert "acme-int4 (acme-dist, " in head and "test_rules.py:" in head and "wNa16_int (quantdispatch, " in head
    assert remedy.split()[:2] == ["remedy", "let"]
    pasted = json.loads(config.partition("config")[2])["quantization_config"]
    # the plugin's rule is out, so that the table has a decision; with both there is none
    monkeypatch.setattr("quantdispatch.registry.plan.get_registry", lambda: registry)
    (layer,) = plan(pasted, strict=False).layers.values()
    assert layer.rule is not None and layer.rule.name == "wNa16_int"
    both = Registry(RuleTable(registry.registered), ())
    monkeypatch.setattr("quantdispatch.registry.plan.get_registry", lambda: both)
    (layer,) = plan(pasted, strict=False).layers.values()
    assert isinstance(layer.error, PluginError) and "acme-int4, wNa16_int" in str(layer.error)


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
    for head in (["weights", "inputs", "outputs", "layers", "scheme"], ["preset", "kinds", "format", "scheme"]):
        assert [*head, *DEVICES] in rows
    assert any(row[:1] == ["W4A16"] and "cpu/int4" in row for row in rows)
    (fp16,) = (row for row in rows if row[:3] == ["fp4", "none", "none"])
    assert fp16[5] == "-"  # cpu: this registry has an int4 kernel only
    assert any(row[:2] == ["no", "scheme"] and "int16" in row for row in rows)
    assert sum(row[:1] == ["e.g."] for row in rows) == 3
    assert main(["rules", "--coverage", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["coverage"]) == len(found) and document["devices"] == list(DEVICES)
    shares = {(s["weights"], s["inputs"], s["outputs"]): s for s in document["legal"]}
    int4_share = shares["int4", "none", "none"]
    assert 0 < int4_share["kernels"]["cpu"]["fast"] <= int4_share["schemes"] < int4_share["layers"]
    assert len(int4_share["without"]) == 3


def test_counts_of_coverage_agree_with_looking_at_every_layer() -> None:
    """Int4 weights without quantized inputs: each layer of the values counted, resolved and given a kernel."""
    registry = build()
    share = next(s for s in coverage(registry) if (s.weights, s.inputs, s.outputs) == ("int4", "none", "none"))
    layers = schemes = 0
    environments = {device: Environment.detect(device) for device in ("cpu", "cuda:sm90")}
    fast = dict.fromkeys(environments, 0)
    for facts in int4_layers():
        layers += 1
        rule = next((rule for rule in registry.rules.rules if holds(rule, facts)), None)
        if rule is None:
            continue
        schemes += 1
        spec = registry.scheme_class(rule)(facts).kernel_spec(None, "bfloat16")
        for device, environment in environments.items():
            kernel = registry.select(spec, environment).kernel
            fast[device] += kernel is not None and not kernel.slow
    assert (share.layers, share.schemes) == (layers, schemes)
    assert {device: share.fast[device] for device in environments} == fast
    for facts in share.without:
        assert registry.resolve(facts).rule is None


def holds(rule: Rule, facts: LayerFacts) -> bool:
    """Yes or no, without the reasons that thousands of layers need not give."""
    return any(all(facts.flat[name] in wanted for name, wanted in box.fields) for box in rule.predicate.boxes)


def int4_layers() -> Iterator[LayerFacts]:
    fields = {name: values for name, values in VALUES.items() if name not in ("num_bits", "zp_dtype")}
    free = {"strategy": STRATEGIES, "symmetric": (True, False), "dynamic": (False, True, "local"), **fields}
    for chosen in itertools.product(*free.values()):
        raw = dict(zip(free, chosen, strict=True))
        try:
            weights = QuantArgs(num_bits=4, **raw)
        except ValueError:
            continue
        for kind in KINDS:
            yield LayerFacts(kind, written_format(weights, None), weights)


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
