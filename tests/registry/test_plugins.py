"""Plugins as distributions: collected, isolated, and settled among each other.

The in-process tests hand sources to ``build``; the last ones build a wheel and install it for real.
"""

import os
import subprocess
import sys
import textwrap
import types
import venv
import warnings
from dataclasses import replace
from typing import Any

import pytest

from quantdispatch import Absent, Args, Kernel, LayerFacts, Needs, PluginError, Rule, When, hookimpl
from quantdispatch.cli.coverage import covers
from quantdispatch.registry.analysis import check_rules
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.plan import plan
from quantdispatch.registry.plugins import Source
from quantdispatch.registry.registry import Registry, build
from quantdispatch.testing import using_registry

SCHEME = "quantdispatch.schemes.dense:Dense"
MOE4 = LayerFacts("moe", "pack-quantized", QuantArgs(num_bits=4, group_size=128, symmetric=False))
W4 = LayerFacts("linear", "pack-quantized", QuantArgs(num_bits=4, group_size=128))


def source(name: str, *rules: Rule, kernels: tuple[Kernel, ...] = (), load: Any = None, **extra: Any) -> Source:
    module = types.ModuleType(name)

    @hookimpl
    def quantdispatch_rules() -> Any:
        yield from rules

    @hookimpl
    def quantdispatch_kernels() -> Any:
        yield from kernels

    module.quantdispatch_rules = quantdispatch_rules  # type: ignore[attr-defined]
    module.quantdispatch_kernels = quantdispatch_kernels  # type: ignore[attr-defined]
    for key, value in extra.items():
        setattr(module, key, value)
    return Source(name, f"dist-{name}", "1.0", load or (lambda: module))


def moe_rule(name: str = "asym-moe", overrides: tuple[str, ...] = (), kind: str = "moe", **args: Any) -> Rule:
    """Asymmetric int weights, which no built-in rule has for routed experts; ``args`` say it otherwise."""
    weights = Args(**{"type": "int", "symmetric": False, **args})
    return Rule(name, When(kind=kind, weights=weights, inputs=Absent), SCHEME, overrides=overrides)


def name_of(registry: Registry, facts: LayerFacts) -> str | None:
    decision = registry.resolve(facts)
    return decision.rule.name if decision.rule else None


def test_a_plugin_adds_a_rule_and_is_named_in_it() -> None:
    registry = build([source("good", moe_rule())])
    rule = registry.resolve(MOE4).rule
    assert rule is not None
    assert (rule.name, rule.distribution, rule.version) == ("asym-moe", "dist-good", "1.0")
    assert name_of(build(), MOE4) is None
    assert registry.plugins[0].state == "ok" and registry.plugins[0].rules == ("asym-moe",)


def raises() -> None:
    raise ZeroDivisionError("boom")


def ends_the_process() -> None:
    raise SystemExit("needs a GPU")


def unknown_hook() -> Any:
    module = types.ModuleType("typo")

    @hookimpl
    def quantdispatch_rule() -> Any:
        yield moe_rule()

    module.quantdispatch_rule = quantdispatch_rule  # type: ignore[attr-defined]
    return module


BROKEN = {
    "raises on import": (source("bad", load=raises), "ZeroDivisionError: boom"),
    "ends the process": (source("bad", load=ends_the_process), "SystemExit: needs a GPU"),
    "other interface": (source("bad", moe_rule(), QUANTDISPATCH_API=2), "made for plugin interface 2"),
    "not a rule": (source("bad", "a rule"), "registers 'a rule' as a rule"),  # type: ignore[arg-type]
    "twice": (source("bad", moe_rule(num_bits=4), moe_rule(num_bits=8)), "asym-moe twice"),
    "misspelt hook": (source("bad", load=unknown_hook), "unknown hook 'quantdispatch_rule'"),
    "bad kernel": (source("bad", kernels=(object(),)), "as a kernel"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_changes_nothing_but_its_status_and_one_warning(case: str) -> None:
    bad, reason = BROKEN[case]
    with pytest.warns(RuntimeWarning, match="left out") as caught:
        registry = build([bad, source("good", moe_rule("other"))])
    assert len(caught) == 1
    states = {p.name: p for p in registry.plugins}
    assert states["bad"].state == "broken" and reason in (states["bad"].error or "")
    assert states["bad"].rules == states["bad"].kernels == ()
    assert name_of(registry, MOE4) == "other"
    assert [p.code for p in registry.problems] == ["broken-plugin"]


@pytest.mark.parametrize("case", BROKEN)
def test_strict_raises(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDISPATCH_STRICT", "1")
    with pytest.raises(PluginError, match="plugin bad of dist-bad 1.0"):
        build([BROKEN[case][0]])


SCHEME_FAULTS = {
    "no such module": ("no_such_module:X", "cannot import no_such_module:X: No module named"),
    "raises": ("raising_scheme:X", "cannot import raising_scheme:X: ValueError: two lines"),
    "no Python": ("no_python_scheme:X", "SyntaxError"),
    "ends the process": ("ending_scheme:X", "SystemExit: bye"),
    "no scheme": ("json:dumps", "is not a subclass of Scheme"),
    "half a scheme": ("half_scheme:X", "is a Scheme without kernel_spec, shape, stored, tensor_names"),
    "raises when made": ("failing_scheme:X", "of rule asym-moe fails: RuntimeError: not today"),
}
SCHEME_SOURCES = {
    "raising_scheme": "raise ValueError('two\\nlines')",
    "no_python_scheme": "def (",
    "ending_scheme": "import sys\nsys.exit('bye')",
    "half_scheme": "from quantdispatch import Scheme\nclass X(Scheme): pass",
    "failing_scheme": """
        from quantdispatch.schemes.wna16_int import WNA16Int
        class X(WNA16Int):
            def __init__(self, *args, **options): raise RuntimeError("not today")
        """,
}


@pytest.mark.parametrize("case", SCHEME_FAULTS)
def test_a_scheme_that_fails_is_the_layers_error(case: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SCHEME_SOURCES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    target, words = SCHEME_FAULTS[case]
    rule = replace(moe_rule(), scheme=target)
    registry = build([source("p", rule)])
    block = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": MOE4.weights.to_json()}},  # type: ignore[union-attr]
    }  # fmt: skip
    names = ("model.layers.0.mlp.experts.0.up_proj", "model.layers.0.mlp.experts.1.up_proj", "model.layers.0.mlp.gate")
    with using_registry(registry):
        result = plan(block, modules=dict.fromkeys(names, "Linear"), strict=False)
    assert [error.layer for error in result.errors] == list(names[:2])
    assert all(isinstance(error, PluginError) and words in str(error) for error in result.errors)
    assert all(name in str(error) for name, error in zip(names, result.errors, strict=False))
    found = {finding.name for finding in check_rules([rule])}
    assert ("unusable-scheme" in found) is (case != "raises when made")
    # and `rules --coverage` shows the others all the same
    moe = next(cover for cover in covers(registry) if (cover.preset, cover.kind) == ("W4A16_ASYM", "moe"))
    assert moe.scheme == target and not any(moe.kernels)


CONFLICTS: dict[str, tuple[list[Source], str, list[str]]] = {
    "two plugins overlap": (
        [source("a", moe_rule("x")), source("b", moe_rule("y", num_bits=4))],
        "overlap",
        ["a", "b"],
    ),
    "a plugin overlaps a built-in rule": ([source("a", moe_rule("x", kind="linear", num_bits=4))], "overlap", ["a"]),
    "two plugins, one name": ([source("a", moe_rule()), source("b", moe_rule(num_bits=4))], "name-clash", ["a", "b"]),
    "a built-in name": ([source("a", moe_rule("wNa16_int"))], "name-clash", ["a"]),
    "unknown override": ([source("a", moe_rule(overrides=("nobody",)))], "unknown-override", ["a"]),
    "cycle": (
        [source("a", moe_rule("x", ("y",))), source("b", moe_rule("y", ("x",)))],
        "override-cycle",
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
@pytest.mark.parametrize("turn", [1, -1])
def test_conflicts_disable_the_conflicting_rules_only(case: str, turn: int) -> None:
    sources, code, blamed = CONFLICTS[case]
    registry = build([*sources, source("bystander", moe_rule("by", kind="embedding", num_bits=9))][::turn])
    assert {p.code for p in registry.problems} == {code}
    assert [p.name for p in registry.plugins if p.state == "conflict"] == blamed
    assert name_of(registry, MOE4) is None
    assert name_of(registry, W4) == "wNa16_int"
    assert name_of(registry, LayerFacts("embedding", None, QuantArgs(num_bits=9, symmetric=False))) == "by"
    for problem in registry.problems:
        assert all(f"dist-{name}" in str(problem) for name in blamed)


def test_a_plugin_may_override_a_built_in_rule_by_name() -> None:
    registry = build(
        [source("a", moe_rule("mine", ("wNa16_int", "wNa16_int-unpacked"), kind="linear", num_bits=4, symmetric=True))]
    )
    assert registry.problems == ()
    assert name_of(registry, W4) == "mine"
    assert name_of(registry, LayerFacts("linear", "pack-quantized", QuantArgs(group_size=64))) == "wNa16_int"


def test_kernel_names_are_unique() -> None:
    record = Kernel("p/k", "linear", Needs(device="cpu"), "m:K")
    registry = build([source("a", kernels=(record,)), source("b", kernels=(record,))])
    assert "p/k" not in {k.name for k in registry.kernels}
    assert [p.code for p in registry.problems] == ["name-clash"]
    assert "p/k" in {k.name for k in build([source("a", kernels=(record,))]).kernels}


def test_a_plugin_may_rewrite_a_foreign_config() -> None:
    @hookimpl
    def quantdispatch_config(config: Any) -> Any:
        return {"quant_method": "compressed-tensors"} if config.get("quant_method") == "awq" else None

    registry = build([source("awq", quantdispatch_config=quantdispatch_config)])
    assert registry.rewrite_config({"quant_method": "awq"}) == ({"quant_method": "compressed-tensors"}, "dist-awq")
    assert registry.rewrite_config({"quant_method": "gptq"}) == ({"quant_method": "gptq"}, None)


PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{dist}"
version = "2.3"
[project.entry-points.quantdispatch]
{module} = "{module}"
[tool.setuptools]
py-modules = ["{module}"]
"""
GOOD = """
from quantdispatch import Absent, Args, LayerShape, Rule, Scheme, When, hookimpl
from quantdispatch.schemes.wna16_int import WNA16Int


class Experts(WNA16Int):
    name = "w4a16_experts"


@hookimpl
def quantdispatch_rules():
    yield Rule(
        name="experts-asymmetric",
        when=When(kind="moe", format="pack-quantized", inputs=Absent, outputs=Absent,
                  weights=Args(type="int", num_bits={4, 8}, strategy="group", symmetric=False, dynamic=False)),
        scheme="qd_test_good:Experts",
    )
"""
ASK = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import quantdispatch as qd
    from quantdispatch.registry.registry import get_registry
    args = {"num_bits": 4, "group_size": 32, "symmetric": False}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [],
              "config_groups": {"group_0": {"targets": ["re:.*experts.*"], "weights": args}}}
    plan = qd.plan(config, modules={"model.layers.0.mlp.experts.0.up_proj": "Linear"}, strict=False)
    layer = plan.layers["model.layers.0.mlp.experts.0.up_proj"]
    states = {p.name: p.state for p in get_registry().plugins}
print(json.dumps({"scheme": layer.scheme, "dist": layer.rule and layer.rule.distribution, "states": states,
                  "warnings": [str(w.message) for w in caught if "qd_test" in str(w.message)]}))
"""


@pytest.fixture(scope="module")
def plugin_site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A venv of its own that sees this one's packages, so that installing there touches nothing here."""
    root = tmp_path_factory.mktemp("plugins")
    venv.create(root / "venv", with_pip=False, symlinks=os.name != "nt")
    python = root / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = next((root / "venv").rglob("site-packages"))
    mine = [p for p in sys.path if p.endswith("site-packages")]
    # .pth files of the outer site (an editable install) are honoured only through addsitedir
    (site / "outer.pth").write_text("\n".join(f"import site; site.addsitedir({p!r})" for p in mine), encoding="utf-8")

    def pip(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(python), *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def install(dist: str, module: str, code: str) -> None:
        folder = root / dist
        folder.mkdir()
        (folder / "pyproject.toml").write_text(PYPROJECT.format(dist=dist, module=module), encoding="utf-8")
        (folder / f"{module}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        pip("install", "-q", "--no-deps", "--no-build-isolation", str(folder))

    def ask(code: str = ASK, **environment: str) -> subprocess.CompletedProcess[str]:
        outside = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return subprocess.run(
            [str(python), "-c", code], capture_output=True, text=True, cwd=root, env={**outside, **environment}
        )

    return types.SimpleNamespace(pip=pip, install=install, ask=ask, root=root)


def test_an_installed_distribution_comes_and_goes(plugin_site: Any) -> None:
    import json

    def state() -> dict[str, Any]:
        done = plugin_site.ask()
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    before = state()
    assert before["scheme"] is None and "qd_test_good" not in before["states"]

    plugin_site.install("qd-test-good", "qd_test_good", GOOD)
    there = state()
    assert (there["scheme"], there["dist"]) == ("w4a16_experts", "qd-test-good")
    assert there["states"]["qd_test_good"] == "ok" and there["warnings"] == []

    explain = plugin_site.ask(
        "import sys; sys.argv = ['quantdispatch', 'doctor']\nfrom quantdispatch.cli.app import main\nmain()\n"
    )
    assert "qd-test-good" in explain.stdout and "2.3" in explain.stdout, explain.stdout + explain.stderr

    plugin_site.install("qd-test-bad", "qd_test_bad", "raise RuntimeError('not today')")
    beside = state()
    assert beside["states"]["qd_test_bad"] == "broken"
    assert (beside["scheme"], beside["dist"]) == (there["scheme"], there["dist"])
    assert len(beside["warnings"]) == 1 and "not today" in beside["warnings"][0]
    strict = plugin_site.ask(QUANTDISPATCH_STRICT="1")
    assert strict.returncode != 0 and "not today" in strict.stderr

    plugin_site.pip("uninstall", "-q", "-y", "qd-test-bad", "qd-test-good")
    assert state() == before


def test_nothing_warns_without_plugins() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build([]).plugins == ()
