"""The text of a plan, line by line, for plans made by hand: no file, no registry, no device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quantdispatch.cli.explain_text import plan_lines
from quantdispatch.cli.page import Page
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import CheckpointError, NoKernelFound, NoSchemeFound

INT4 = QuantArgs(num_bits=4, symmetric=False, group_size=64)
INT9 = QuantArgs(num_bits=9, group_size=64)
PARTS = [f"self_attn.{x}_proj" for x in "kovq"] + [f"mlp.{x}_proj" for x in ("down", "gate", "up")]
RULE = SimpleNamespace(
    name="wNa16_int", distribution="quantdispatch", version="0.1.0", source="registry/rules/int_weights.py:41"
)


def kernel(name: str, slow: bool = False) -> Any:
    return SimpleNamespace(name=name, backend=name.partition("/")[0], slow=slow)


MARLIN, CPU, REFERENCE = kernel("marlin/int4"), kernel("cpu/int4_torch"), kernel("reference", slow=True)


def candidate(kernel: Any, status: str, *reasons: str) -> Any:
    return SimpleNamespace(kernel=kernel, status=status, reasons=reasons)


def selection(*trace: Any) -> Any:
    return SimpleNamespace(trace=trace, ranked="")


ANSWERS = selection(
    candidate(MARLIN, "no", "device is cpu, requires cuda"), candidate(CPU, "yes"), candidate(REFERENCE, "yes")
)


def layer(name: str, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "name": name,
        "kind": "linear",
        "group": "group_0",
        "target": "Linear",
        "ignored_by": None,
        "inferred": "Linear, as given",
        "format": "pack-quantized",
        "weights": INT4,
        "inputs": None,
        "outputs": None,
        "rule": RULE,
        "scheme": "wNa16_int",
        "backend": "cpu",
        "kernel": "cpu/int4_torch",
        "transforms": (),
        "deviations": (),
        "error": None,
        "selection": ANSWERS,
        "spec": SimpleNamespace(op="linear", dtype="bfloat16"),
        "tensors": {n: None for n in ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")},
    }
    return SimpleNamespace(**{**values, **changes})


def dense(name: str, **changes: Any) -> Any:
    return layer(
        name,
        **{
            **{"group": None, "target": None, "ignored_by": name, "weights": None, "format": "dense"},
            **{"rule": None, "scheme": "dense", "backend": None, "kernel": None, "selection": None, "spec": None},
            **{"tensors": {"weight": None}, **changes},
        },
    )


def plan(*layers: Any, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "layers": {entry.name: entry for entry in layers},
        "problems": (),
        "failing": [entry for entry in layers if entry.error is not None],
        "errors": tuple(entry.error for entry in layers if entry.error is not None),
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "format": "pack-quantized",
        "version": "0.19.0",
        "environment": SimpleNamespace(describe=lambda: "cpu (avx2, 2 threads)"),
        "checkpoint": object(),
    }
    return SimpleNamespace(**{**values, **changes})


def text(made: Any, page: Page = Page()) -> list[str]:  # noqa: B008
    lines = ("".join(part if isinstance(part, str) else part[0] for part in line) for line in plan_lines(made, page))
    return [line.rstrip() for line in lines]


def problem(code: str, severity: str, message: str, where: str | None = None) -> Any:
    return SimpleNamespace(code=code, severity=severity, message=message, where=where)


def test_the_sample_of_the_docs() -> None:
    layers = [layer(f"model.layers.{i}.{part}") for i in range(30) for part in PARTS]
    assert text(plan(*layers, dense("lm_head", kind="lm_head"))) == [
        "LlamaForCausalLM · pack-quantized · written by compressed-tensors 0.19.0 · device cpu (avx2, 2 threads)",
        "",
        "210 layers   wNa16_int   int4 asymmetric, group 64 -> bf16   cpu / int4_torch",
        "    model.layers.0-29.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj}",
        '    target   "Linear" in group_0 (from tensors: weight_packed, weight_zero_point)',
        "    rule     wNa16_int          quantdispatch 0.1.0, registry/rules/int_weights.py:41",
        "    kernels  marlin/int4        no   device is cpu, requires cuda",
        "             cpu/int4_torch     yes  chosen",
        "             reference          yes  slow, last",
        "  1 layer    dense       lm_head                             torch",
        '    ignored  "lm_head"',
        "",
        "nothing unmatched · no broken plugins · every stored tensor has an owner",
    ]


def test_a_miss_shows_the_nearest_rules_and_the_remedy() -> None:
    error = NoSchemeFound(
        "no rule accepts int9 symmetric, group 64",
        layer="a.b",
        nearest=("wNa16_int: weights.num_bits is 9, requires 2..8", "w8a16_fp8: weights.type is int, requires float"),
        remedy="install a plugin that has such a rule",
    )
    missed = layer("a.b", weights=INT9, rule=None, scheme=None, kernel=None, selection=None, spec=None, error=error)
    assert text(plan(missed, dense("lm_head"), format=None, version=None, architecture=None, model_type=None)) == [
        "device cpu (avx2, 2 threads)",
        "",
        "1 layer    no scheme   int9 symmetric, group 64   no kernel",
        "    a.b",
        '    target   "Linear" in group_0 (from tensors: weight_packed, weight_zero_point)',
        "    error    NoSchemeFound: no rule accepts int9 symmetric, group 64",
        "    nearest  wNa16_int: weights.num_bits is 9, requires 2..8",
        "             w8a16_fp8: weights.type is int, requires float",
        "    remedy   install a plugin that has such a rule",
        "1 layer    dense                                  torch",
        '    ignored  "lm_head"',
        "",
        "1 of 2 layers do not resolve · nothing unmatched · no broken plugins · every stored tensor has an owner",
    ]


def test_layers_that_fail_alike_are_one_block() -> None:
    def failed(name: str) -> Any:
        error = NoKernelFound("no kernel computes it", layer=name, remedy="use another device")
        return layer(name, kernel=None, backend=None, error=error, selection=selection(candidate(MARLIN, "no", "cpu")))

    shown = text(plan(failed("h.0.x"), failed("h.1.x")))
    assert shown[2:8] == [
        "2 layers   wNa16_int   int4 asymmetric, group 64 -> bf16   no kernel",
        "    h.0-1.x",
        '    target   "Linear" in group_0 (from tensors: weight_packed, weight_zero_point)',
        "    rule     wNa16_int          quantdispatch 0.1.0, registry/rules/int_weights.py:41",
        "    kernels  marlin/int4        no   cpu",
        "    error    NoKernelFound: no kernel computes it",
    ]


def test_kernels_may_answer_layers_of_one_group_differently() -> None:
    odd = selection(candidate(MARLIN, "no", "k%128 is 64, requires 0"), candidate(CPU, "yes"))
    even = selection(candidate(MARLIN, "no", "device is cpu"), candidate(CPU, "yes"))
    shown = text(plan(layer("a.0", selection=even), layer("a.1", selection=even), layer("a.2", selection=odd)))
    assert shown[6:9] == [
        "    kernels  marlin/int4        no   device is cpu (2 of 3 layers)",
        "                                no   k%128 is 64, requires 0 (1 of 3 layers)",
        "             cpu/int4_torch     yes  chosen",
    ]


def test_a_choice_under_a_condition_says_which() -> None:
    open_shape = selection(candidate(CPU, "if", "k%32 is unknown, requires 0"), candidate(REFERENCE, "yes"))
    shown = text(plan(layer("a", selection=open_shape, tensors={}), checkpoint=None))
    assert shown[4:] == [
        '    target   "Linear" in group_0 (Linear, as given)',
        "    rule     wNa16_int          quantdispatch 0.1.0, registry/rules/int_weights.py:41",
        "    kernels  cpu/int4_torch     if   chosen if k%32 is unknown, requires 0",
        "             reference          yes  slow, last",
        "",
        "nothing unmatched · no broken plugins",
    ]


@pytest.mark.parametrize(
    ("problems", "errors", "last"),
    [
        (
            [
                problem("unmatched-ignore", "warning", 'nothing matches "re:x"'),
                problem("unmatched-target", "note", "y"),
            ],
            [],
            [
                'warning  unmatched-ignore: nothing matches "re:x"',
                "note     unmatched-target: y",
                "2 unmatched patterns · no broken plugins · every stored tensor has an owner",
            ],
        ),
        (
            [
                problem("unknown-key", "note", "not read", "quantization_config.foo"),
                problem("overlap", "error", "a, b"),
            ],
            [],
            [
                "error    overlap: a, b",
                "note     unknown-key: not read (quantization_config.foo)",
                "nothing unmatched · no broken plugins · every stored tensor has an owner",
            ],
        ),
        (
            [problem("broken-plugin", "warning", "acme: ImportError")],
            [CheckpointError("tensor x.y has no owner", field="x.y")],
            [
                "warning  broken-plugin: acme: ImportError",
                "error    CheckpointError: tensor x.y has no owner",
                "nothing unmatched · 1 broken plugin",
            ],
        ),
    ],
)
def test_footer(problems: list[Any], errors: list[Any], last: list[str]) -> None:
    assert text(plan(dense("lm_head"), problems=tuple(problems), errors=tuple(errors)))[-len(last) :] == last


def test_what_differs_is_never_merged() -> None:
    first = layer("h.0")
    for changes in (
        {"weights": QuantArgs(num_bits=4, symmetric=False, group_size=32)},
        {"kernel": "reference"},
        {"target": None},
        {"deviations": ("inputs stay unquantized",)},
        {"inputs": QuantArgs(strategy="token", dynamic=True)},
    ):
        heads = [line for line in text(plan(first, layer("h.1", **changes))) if line[:1].isdigit()]
        assert len(heads) == 2, changes


def test_deviations_are_said() -> None:
    shown = text(plan(layer("a", deviations=("inputs stay unquantized",))))
    assert "    deviates inputs stay unquantized" in shown


def test_an_untargeted_layer_says_so() -> None:
    assert "    target   none: no config group names it" in text(plan(dense("a.norm", ignored_by=None)))


def test_dense_layers_are_one_block_whatever_ignored_them() -> None:
    layers = [dense(f"v.{i}.fc", ignored_by="re:v.*") for i in range(3)]
    layers += [dense("head", ignored_by="head"), dense("gate", ignored_by=None)]
    assert text(plan(*layers))[2:8] == [
        "5 layers   dense      torch",
        "    v.0-2.fc",
        "    {head,gate}",
        '    ignored  "re:v.*" (3)',
        '    ignored  "head" (1)',
        "    target   none: no config group names it (1)",
    ]


def test_a_long_ignore_list_is_cut() -> None:
    made = plan(*[dense(f"a.{i}") for i in range(50)])
    assert sum(line.startswith("    ignored  ") for line in text(made)) == 12
    assert "             and 38 more entries (all of them with --full)" in text(made)
    assert sum(line.startswith("    ignored  ") for line in text(made, Page(full=True))) == 50


def test_entries_that_decide_the_same_are_counted_in_one_block() -> None:
    """A config may name each layer by itself, or in groups that say the same."""
    layers = [layer(f"a.{i}", target=f"a.{i}") for i in range(3)] + [layer("b.0"), layer("b.1", group="group_1")]
    assert text(plan(*layers))[2:9] == [
        "5 layers   wNa16_int   int4 asymmetric, group 64 -> bf16   cpu / int4_torch",
        "    a.0-2",
        "    b.0-1",
        '    target   "a.0" in group_0 (1, from tensors: weight_packed, weight_zero_point)',
        '             "a.1" in group_0 (1)',
        '             "a.2" in group_0 (1)',
        '             "Linear" in group_0 (1)',
    ]


def test_transforms_are_shown_and_keep_layers_apart() -> None:
    turned = {"transforms": ("R4 at input (hadamard)",), "tensors": {"weight_packed": None, "R4_input.weight": None}}
    shown = text(
        plan(layer("a"), layer("b", **turned), dense("c"), dense("d", transforms=("R4 at output (hadamard)",)))
    )
    assert sum("layer " in line for line in shown) == 4
    assert [line.split()[1:] for line in shown if "applies" in line] == [
        ["R4", "at", "input", "(hadamard)"], ["R4", "at", "output", "(hadamard)"],
    ]  # fmt: skip
    assert not any("R4_input" in line for line in shown)
