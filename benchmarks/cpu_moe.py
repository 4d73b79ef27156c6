"""Routed experts on the CPU against a loop over dense experts in bf16, by number of tokens: CPU time of one thread.

    python -m benchmarks.cpu_moe [--json FILE] [--ops OP ...] [--m M ...] [--isa NAME]

8 experts of gate, up and down projection, 2 for each token; hidden size 2048, inner size 1024. The dense loop takes the
experts that were chosen, one after the other, each with all of its tokens. Needs a minute, and 1.5 GB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu_layers import OPS, Copies, operands, spec, weight64
from benchmarks.cpu_options import add_options, capped, finish
from benchmarks.cpu_report import Floors
from benchmarks.cpu_roof import Roof
from benchmarks.timing import interleaved, ratio

EXPERTS, CHOSEN, INNER, HIDDEN = 8, 2, 1024, 2048
ROWS = (1, 16, 64, 256)
#: op of the table to op of the layers
MOE_OPS = {
    "moe_w4a16": "w4a16_sym",
    "moe_w4a16_asym": "w4a16_asym",
    "moe_w8a16": "w8a16",
    "moe_w8a16_fp8": "w8a16_fp8",
    "moe_w4a16_nvfp4": "w4a16_nvfp4",
    "moe_w4a16_mxfp4": "w4a16_mxfp4",
}
FLOORS = Floors(rows=ROWS, ratios={"moe_w4a16": (4.5, 3.2, 1.9, 1.2)})
MOST_ROUNDS, SECONDS = 25, 4.0
#: of an expert, in the order in which a token goes through them: name, outputs, inputs
PARTS = (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER))


def measure(
    ops: Iterable[str] = tuple(MOE_OPS),
    rows: Iterable[int] = ROWS,
    *,
    seconds: float = SECONDS,
    note: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each op and number of tokens. ``n``, ``k``: of the gate. ``gbps``: the chosen experts' weights."""
    import torch

    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    roof = Roof()
    with torch.inference_mode():
        layers = {name: _Experts(MOE_OPS[name]) for name in ops}
        generator = torch.Generator().manual_seed(1)
        dense = {
            f"{expert} {part}": torch.randn(n, k, generator=generator).mul_(k**-0.5).bfloat16()
            for expert in range(EXPERTS)
            for part, n, k in PARTS
        }
        copies = Copies(dense)
        for m in rows:
            if note:
                note(f"M = {m}")
            found += _cell(layers, copies, roof, m, seconds)
    return found


class _Experts:
    """An op's experts, in as many copies as caches do not hold: each copy one function of x, index and weights."""

    def __init__(self, op: str) -> None:
        self.op = OPS[op]
        self.made = [
            {part: operands(self.op, n, k, seed=3 * expert + number) for number, (part, n, k) in enumerate(PARTS)}
            for expert in range(EXPERTS)
        ]
        self.kernel, self.impls = _kernels(self.op)
        packed = {
            f"{expert} {part} {name}": tensor
            for expert, parts in enumerate(self.made)
            for part, made in parts.items()
            for name, tensor in self.impls[part].pack(made).items()
        }
        self.copies = Copies(packed)
        self.bytes = self.copies.bytes
        self.functions = [self._function(weights) for weights in self.copies.weights]
        self.turn = 0

    def _function(self, weights: dict[str, Any]) -> Callable[[Any, Any, Any], Any]:
        from quantdispatch.backends.cpu.native.linear import NativeLinear
        from quantdispatch.backends.cpu.native.moe import fuse

        def bound(expert: int, part: str) -> tuple[Any, dict[str, Any]]:
            prefix = f"{expert} {part} "
            state = {name[len(prefix) :]: tensor for name, tensor in weights.items() if name.startswith(prefix)}
            return self.impls[part], state

        layers = [[bound(expert, part) for part, _, _ in PARTS] for expert in range(EXPERTS)]
        if all(isinstance(impl, NativeLinear) for impl in self.impls.values()):
            whole = fuse([own[:2] for own in layers], [own[2] for own in layers], "silu")
            if whole is not None:
                return whole
        return _loop(lambda x, expert, part: layers[expert][part][0].apply(x, layers[expert][part][1]))

    def __call__(self, x: Any, index: Any, weights: Any) -> Any:
        self.turn = (self.turn + 1) % len(self.functions)
        return self.functions[self.turn](x, index, weights)


def _kernels(op: Any) -> tuple[str, dict[str, Any]]:
    import torch

    from quantdispatch.engines.binding import choose_kernel, implementation

    impls, names = {}, []
    for part, n, k in PARTS:
        wanted = spec(op, n, k, "moe")
        kernel = choose_kernel("benchmark", wanted, torch.device("cpu"))
        impls[part] = implementation(kernel, wanted)
        names.append(kernel.name)
    return ", ".join(dict.fromkeys(names)), impls


def _loop(multiply: Callable[[Any, int, int], Any]) -> Callable[[Any, Any, Any], Any]:
    """The chosen experts one after the other. ``multiply``: x, the expert's number, the part's number."""
    import torch
    import torch.nn.functional as F

    def run(x: Any, index: Any, weights: Any) -> Any:
        y = torch.zeros_like(x)
        for expert in index.unique().tolist():
            token, place = (index == expert).nonzero(as_tuple=True)
            rows = x.index_select(0, token)
            inner = F.silu(multiply(rows, expert, 0)) * multiply(rows, expert, 1)
            share = multiply(inner, expert, 2) * weights[token, place].unsqueeze(1).to(x.dtype)
            y.index_add_(0, token, share)
        return y

    return run


def _cell(layers: dict[str, _Experts], dense: Copies, roof: Roof, m: int, seconds: float) -> list[dict[str, Any]]:
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(m)
    x = torch.randn(m, HIDDEN, generator=generator).bfloat16()
    scores = torch.rand(m, EXPERTS, generator=generator)
    weights, index = scores.softmax(-1).topk(CHOSEN)
    names = [part for part, _, _ in PARTS]

    def bf16() -> Any:
        own = dense()
        return _loop(lambda rows, expert, part: F.linear(rows, own[f"{expert} {names[part]}"]))(x, index, weights)

    candidates: dict[str, Callable[[], object]] = {**roof.calls, "bf16": bf16}
    candidates |= {name: _call(layer, x, index, weights) for name, layer in layers.items()}
    times = interleaved(candidates, MOST_ROUNDS, seconds)
    middle = {name: statistics.median(values) for name, values in times.items()}
    in_order, streams = roof.gbps(middle)
    active = len(index.unique())
    return [
        {
            "op": name,
            "m": m,
            "n": INNER,
            "k": HIDDEN,
            "group_size": layer.op.group or HIDDEN,
            "ms": middle[name] * 1e3,
            "bf16_ms": middle["bf16"] * 1e3,
            "ratio": ratio(times["bf16"], times[name]),
            "gbps": layer.bytes * active / EXPERTS / middle[name] / 1e9,
            "roof_gbps": in_order,
            "error": _error(layer, x, index, weights, layer(x, index, weights)),
            "roof_4_streams_gbps": streams,
            "kernel": layer.kernel,
        }
        for name, layer in layers.items()
    ]


def _call(layer: _Experts, *arguments: Any) -> Callable[[], object]:
    return lambda: layer(*arguments)


def _error(layer: _Experts, x: Any, index: Any, weights: Any, y: Any) -> float:
    """Relative error against float64 throughout, of the first tokens."""
    import torch
    import torch.nn.functional as F

    tokens = slice(0, 8)
    x, index, weights, y = (t[tokens] for t in (x, index, weights, y))
    exact = torch.zeros(x.shape, dtype=torch.float64)
    for expert in index.unique().tolist():
        parts: Sequence[Any] = [weight64(layer.op, layer.made[expert][part], slice(None)) for part, _, _ in PARTS]
        rows = x.double()
        out = (F.silu(rows @ parts[0].T) * (rows @ parts[1].T)) @ parts[2].T
        exact += out * ((index == expert) * weights.double()).sum(-1, keepdim=True)
    return float((y.double() - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_moe", description=__doc__.split("\n")[0])
    add_options(parser, tuple(MOE_OPS), ROWS, SECONDS)
    options = parser.parse_args()
    with capped(options.isa):
        found = measure(options.ops, options.m, seconds=options.seconds, note=lambda text: print(text, file=sys.stderr))
        finish(options, "time of the dense loop over ours", found, FLOORS)


if __name__ == "__main__":
    main()
