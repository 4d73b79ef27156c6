"""A plugin is tested without being installed: its registry, its table, its static checks."""

import types

import pytest
import sample_experts

import quantdispatch as qd
from quantdispatch import Absent, Args, Backend, Kernel, Needs, PluginError, Rule, When, hookimpl
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.registry import get_registry
from quantdispatch.testing import assert_rules_clean, check_row, check_rules, registry_with, using_registry

SCHEME = "quantdispatch.schemes.wna16_int:WNA16Int"
OWN = Rule("own", When(format="own", weights=Args(num_bits=4), inputs=Absent, outputs=Absent), SCHEME)
CLASH = Rule("wNa16_int", When(format="own"), SCHEME)
GREEDY = Rule("greedy", When(format="pack-quantized"), SCHEME)
EXPERTS = "model.layers.0.mlp.experts.0.up_proj"


class Hooks:
    @hookimpl
    def quantdispatch_rules(self):
        yield OWN


def names(registry) -> set[str]:
    return {rule.name for rule in registry.rules.rules}


@pytest.mark.parametrize(
    ("plugins", "added"),
    [
        ((), set()),
        ((sample_experts,), {"wNa16_int-asymmetric-moe"}),
        (("sample_experts",), {"wNa16_int-asymmetric-moe"}),
        ((OWN,), {"own"}),
        ((Hooks(),), {"own"}),
        (("sample_experts", OWN), {"wNa16_int-asymmetric-moe", "own"}),
    ],
)
def test_a_registry_has_what_is_built_in_and_what_is_given(plugins, added) -> None:
    assert names(registry_with(*plugins)) - names(registry_with()) == added


def test_kernels_and_backends_can_be_given_alone() -> None:
    registry = registry_with(Kernel("own/k", "linear", Needs(device="cpu"), "a:B"), Backend("own", 900))
    assert registry.kernels[0].name == "own/k"


def broken() -> types.ModuleType:
    module = types.ModuleType("broken_plugin")
    module.quantdispatch_rules = hookimpl(lambda: [1])
    return module


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (CLASH, "rule wNa16_int of under test has the name of a built-in rule"),
        (GREEDY, "greedy is disabled"),
        ("no_such_module", "No module named 'no_such_module'"),
        (broken(), "registers 1 as a rule"),
    ],
)
def test_what_would_be_left_out_is_an_error(plugin, words) -> None:
    with pytest.raises(PluginError, match=words):
        registry_with(plugin)
    lenient = registry_with(plugin, strict=False)
    assert names(lenient) == names(registry_with())
    assert any(words in str(problem) for problem in lenient.problems)


def test_plans_made_inside_see_the_registry() -> None:
    config = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"W4A16_ASYM": ["Linear"]},
    }  # fmt: skip
    outside = qd.plan(config, modules={EXPERTS: "Linear"}, strict=False)
    with using_registry(registry_with(sample_experts)) as registry:
        inside = qd.plan(config, modules={EXPERTS: "Linear"})
        assert inside.layers[EXPERTS].rule in registry.rules.rules
    after = qd.plan(config, modules={EXPERTS: "Linear"}, strict=False)
    assert outside.layers[EXPERTS].rule is after.layers[EXPERTS].rule
    assert outside.layers[EXPERTS].rule is None or "asym" in outside.layers[EXPERTS].rule.distribution


def test_the_registry_comes_back_after_an_error() -> None:
    before = get_registry()
    with using_registry(registry_with()) as outer:
        with pytest.raises(ZeroDivisionError), using_registry(registry_with()) as inner:
            assert get_registry() is inner
            raise ZeroDivisionError
        assert get_registry() is outer
    assert get_registry() is before


def test_a_registry_for_one_plan() -> None:
    config = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"W4A16_ASYM": ["Linear"]},
    }  # fmt: skip
    found = qd.plan(config, modules={EXPERTS: "Linear"}, registry=registry_with(sample_experts))
    assert found.layers[EXPERTS].rule.name == "wNa16_int-asymmetric-moe"


def test_what_is_loaded_inside_is_bound_by_the_registry() -> None:
    """Kernels of a plugin under test are chosen too, not only planned."""
    torch = pytest.importorskip("torch")
    from quantdispatch.engines.binding import choose_kernel

    spec = KernelSpec("linear", "linear", "own", None, None, None, 32, 32, "bfloat16", reference="a:B")
    kernel = Kernel("own/k", "linear", Needs(device="cpu"), "a:B")
    with using_registry(registry_with(Backend("own", 500), kernel)):
        assert choose_kernel("x", spec, torch.device("cpu")).name == "own/k"


def test_a_row_may_be_given_as_its_keys_and_with_a_registry() -> None:
    row = {"id": "x", "format": "own", "weights": {"num_bits": 4}, "rule": "own"}
    check_row(row, registry_with(OWN))
    with pytest.raises(AssertionError, match="NoSchemeFound"):
        check_row(row, registry_with())


def test_a_plugin_is_checked_by_one_import() -> None:
    assert_rules_clean("sample_experts")
    assert check_rules(registry_with(sample_experts).rules.rules) == ()


EMPTY = Rule("empty", When(format="own", weights=Args(type="int", strategy="token", dynamic=False)), SCHEME)


def test_a_finding_is_listed_with_its_rule() -> None:
    with pytest.raises(AssertionError, match=r"QD101[\s\S]*empty|empty[\s\S]*QD101") as caught:
        assert_rules_clean([OWN, EMPTY])
    assert "the static checks of 2 rules find:" in str(caught.value)
    assert "own" not in str(caught.value).replace("format own", "")


@pytest.mark.parametrize(("plugins", "error"), [((), ValueError), (([],), ValueError), ((broken(),), PluginError)])
def test_a_check_of_nothing_is_no_check(plugins, error) -> None:
    with pytest.raises(error):
        assert_rules_clean(*plugins)
