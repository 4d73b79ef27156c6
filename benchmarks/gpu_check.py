"""What no machine without a GPU can show of the Triton kernels: ``benchmarks/gpu_check.sh``.

First every form that a kernel's record admits, on fresh random inputs, against float64. Then times under CUDA graphs,
beside bf16 ``torch.matmul`` and the floor: the larger of the bytes that have to be read over the copy bandwidth and of
the operations over the rate of a large bf16 product, both measured in the same run. Sections that the time does not
allow are named as not run. ``--dry-run``: a few small layers, on the CPU in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

from .gpu_forms import FORMS, LIMIT, WITHOUT_PYDANTIC, Form, Run, bound  # first: it stands in for what is not installed

# isort: split
from quantdispatch.backends.triton import config, tuning, wna16_product
from quantdispatch.backends.triton.launch import device_name

from . import gpu_layers, gpu_moe, gpu_timing

SHAPES = ((8192, 28672), (11008, 4096))
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)


def correctness(run: Run) -> None:
    sizes = ((48, 128, (1, 5)),) if run.dry else ((1000, 2048, (1, 17, 300)),)
    rows = []
    forms = FORMS[:1] + FORMS[9:10] + FORMS[12:13] if run.dry else FORMS
    for number, (scheme, weights, inputs) in enumerate(forms):
        for n, k, tokens in sizes:
            dtype = "float16" if run.dry or number % 2 else "bfloat16"
            layer = gpu_layers.make(scheme, weights, inputs, n, k, dtype, run.device, number)
            name, impl = bound(layer, run.device)
            title = f"{scheme} {weights.describe()}" + (f", inputs {inputs.describe()}" if inputs else "")
            row: dict[str, Any] = {"form": title, "dtype": dtype, "kernel": name, "errors": {}}
            rows.append(row)
            if impl is None:
                run.say(f"  none  {title}: {name}")
                continue
            try:
                state = impl.pack(layer.operands)
                row["errors"] = {m: _error(impl, state, layer, m) for m in tokens}
                if scheme.startswith("wNa16") and not inputs:
                    with wna16_product.forced(config.Config(16, 64, 1, dense=True)):
                        row["errors"]["weight alone"] = _error(impl, state, layer, 5)
            except Exception as error:  # one kernel that does not run must not hide the others
                row["failure"] = f"{type(error).__name__}: {str(error)[:300]}"
            worst = max(row["errors"].values(), default=0.0)
            good = "failure" not in row and worst < LIMIT[dtype]
            run.failed += not good
            run.say(f"  {'ok  ' if good else 'FAIL'}  {worst:.1e}  {title} ({name}) {row.get('failure', '')}")
    run.results["correctness"] = rows


def _error(impl: Any, state: Any, layer: gpu_layers.Layer, m: int) -> float:
    x = torch.randn(m, layer.spec.k, device=next(iter(state.values())).device).to(getattr(torch, layer.spec.dtype))
    exact = layer.output(x)
    error = float((impl.apply(x, state).double() - exact).norm() / exact.norm())
    return error if error == error else float("inf")


def rounds(layer: gpu_layers.Layer, impl: Any, m: int, device: str) -> tuple[list[Callable[[], object]], int]:
    """Calls over copies of the layer's weights that go past the cache, and the bytes of one."""
    state = impl.pack(layer.operands)
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    copies = [state, *({name: t.clone() for name, t in state.items()} for _ in range(gpu_timing.copies_past_l2(size, device) - 1))]  # fmt: skip  # noqa: E501
    x = torch.randn(m, layer.spec.k, device=device).to(getattr(torch, layer.spec.dtype))
    return [lambda one=one: impl.apply(x, one) for one in copies], size  # type: ignore[misc]


def dense_seconds(n: int, k: int, m: int, device: str) -> float:
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    copies = gpu_timing.copies_past_l2(2 * n * k, device)
    weights = [torch.randn(n, k, device=device, dtype=dtype) for _ in range(copies)]
    x = torch.randn(m, k, device=device, dtype=dtype)
    return gpu_timing.seconds([lambda w=w: x @ w.t() for w in weights], device)  # type: ignore[misc]


def timing(run: Run, title: str, form: Form, shape: tuple[int, int], tokens: Any,
           tuned: bool) -> None:  # fmt: skip
    """One layer shape over numbers of tokens: seconds, times bf16, and parts of the floors."""
    scheme, weights, inputs = form
    n, k = shape
    layer = gpu_layers.make(scheme, weights, inputs, n, k, "float16" if run.dry else "bfloat16", run.device, 1)
    name, impl = bound(layer, run.device)
    if impl is None:
        run.say(f"  {title}: no kernel: {name}")
        return
    rows = run.results.setdefault("timing", [])
    read, rate = run.results["ceilings"]
    run.say(f"  {title} {n} x {k} ({name})\n     M        us   bf16 us   ratio   of read   of bf16 rate")
    for m in tokens:
        if run.left < 20:
            run.say(f"  M={m} not run: out of time")
            continue
        try:
            calls, size = rounds(layer, impl, m, run.device)
            choice = tune(run, calls) if tuned else None
            took, dense = gpu_timing.seconds(calls, run.device), dense_seconds(n, k, m, run.device)
        except Exception as error:  # as above
            run.failed += 1
            run.say(f"  M={m} FAIL {type(error).__name__}: {str(error)[:200]}")
            continue
        moved = size + 2 * m * (n + k)
        row = {"title": title, "n": n, "k": k, "m": m, "kernel": name, "seconds": took, "bf16_seconds": dense,
               "ratio": dense / took, "of_read": moved / read / took, "of_rate": 2 * m * n * k / rate / took,
               "config": choice}  # fmt: skip
        rows.append(row)
        run.say(f"  {m:5d} {took * 1e6:9.1f} {dense * 1e6:9.1f} {row['ratio']:7.2f} {row['of_read']:9.2f} "
                f"{row['of_rate']:14.2f}  {choice or ''}")  # fmt: skip


def tune(run: Run, calls: list[Callable[[], object]]) -> Any:
    """Measure the configs of every choice that the first call makes while there is time, also those with an entry."""
    stop = time.monotonic() + (2.0 if run.dry else min(12.0, max(run.left - 150, 0.0)))

    def measure(_call: Callable[[], object]) -> float:
        return gpu_timing.seconds(calls[:2], run.device)

    found = tuning.tune(calls[0], measure, go_on=lambda: time.monotonic() < stop, again=True)
    run.results.setdefault("tuned", []).extend(one.to_json() for one in found)
    return [f"{one.task}: {one.best}" for one in found]


def plan(run: Run) -> Iterator[tuple[str, Callable[[], None]]]:
    """The sections in order, what matters most first."""
    shapes = ((48, 128),) if run.dry else SHAPES
    tokens = (1,) if run.dry else TOKENS
    few = (1,) if run.dry else (1, 16, 4096)
    yield "correctness against float64", lambda: correctness(run)
    for shape in shapes:
        yield (f"W4A16 g128 {shape}", lambda shape=shape: timing(run, "int4 g128", FORMS[0], shape, tokens, True))
    for number, title in ((12, "fp8 W8A8"), (15, "int8 W8A8"), (9, "nvfp4 weight-only"), (5, "int8 weight-only")):
        yield (title, lambda number=number, title=title:
               timing(run, title, FORMS[number], shapes[0] if run.dry else (8192, 8192), few, False))  # fmt: skip
    yield "MoE int4 g128", lambda: gpu_moe.measure(run, (1, 16) if not run.dry else (2,))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--seconds", type=float, default=420.0, help="the time there is; sections past it are left out")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with TRITON_INTERPRET=1")
    asked = parser.parse_args()
    if not asked.dry_run and not torch.cuda.is_available():
        print("torch sees no GPU; --dry-run tries the script itself, with TRITON_INTERPRET=1", file=sys.stderr)
        return 2
    run = Run("cpu" if asked.dry_run else "cuda:0", asked.dry_run, time.monotonic() + asked.seconds)
    if not asked.dry_run:
        torch.cuda.set_device(0)
        # float64 references and bf16 products are compared: neither may use a reduced precision of its own accord
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    versions = {"torch": torch.__version__, "triton": triton.__version__, "device": device_name(-1 if run.dry else 0)}
    run.results |= {**versions, "without_pydantic": WITHOUT_PYDANTIC, "dry_run": run.dry}
    run.say(f"{versions['device']}, torch {versions['torch']}, Triton {versions['triton']}")
    with torch.inference_mode():
        run.results["ceilings"] = gpu_timing.ceilings(run.device)
        read, rate = run.results["ceilings"]
        run.say(f"copy {read / 1e12:.2f} TB/s, bf16 product {rate / 1e12:.0f} TFLOP/s")
        for title, section in plan(run):
            if run.left < 15:
                run.say(f"== {title}: not run, out of time")
                continue
            run.say(f"== {title} ({run.left:.0f} s left)")
            section()
            if asked.json:
                with open(asked.json, "w", encoding="utf-8") as file:
                    json.dump({**run.results, "failed": run.failed, "lines": run.lines}, file, indent=1)
    run.say(f"{run.failed} failed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
