"""Code of a user of the package, which ``mypy --strict`` accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import quantdispatch as qd
from quantdispatch import Absent, Args, Kernel, Rule, When, at_least, hookimpl
from quantdispatch.testing import check_row, load_table, registry_with


def kernels(checkpoint: Path) -> dict[str, str]:
    plan: qd.Plan = qd.plan(checkpoint, device="cuda:sm90", strict=False, modules={"lm_head": ("MyLinear", "Linear")})
    found: dict[str, str] = {}
    for name, layer in plan.layers.items():
        if layer.error is not None:
            found[name] = layer.error.code
        elif layer.kernel is not None:
            found[name] = layer.kernel
    return found


def message(source: dict[str, object]) -> str:
    try:
        qd.plan(source)
    except qd.PlanError as error:
        return ", ".join(str(each.layer) for each in error.errors)
    except (qd.ConfigError, qd.CheckpointError) as error:
        return f"{error.field}: {error.observed}, {error.required}"
    return ""


@hookimpl
def quantdispatch_rules() -> Iterator[Rule]:
    args = Args(type="int", num_bits={4, 8}, strategy={"channel", "group"}, group_size=at_least(32), symmetric=False)
    yield Rule(name="mine", when=When(kind="moe", inputs=Absent, outputs=Absent, weights=args), scheme="mine:Scheme")


@hookimpl
def quantdispatch_kernels() -> Iterator[Kernel]:
    yield from ()


def check(path: Path) -> None:
    registry = registry_with("mine")
    for row in load_table(path).rows:
        check_row(row)
    qd.plan(path, registry=registry)
    model = qd.load(path, allow=("int8-activations",))
    model.eval()
