"""Linear layers on the CPU against bf16 `F.linear`, by number of rows: CPU time of one thread, weights out of memory.

    python -m benchmarks.cpu_linear [--json FILE] [--peers] [--ops OP ...] [--m M ...] [--shapes NxK ...] [--isa NAME]

Needs about 5 minutes for everything, and 3 GB. Each op runs through the kernel that a plan would choose for it here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu_layers import OPS, Copies, error, operands, spec
from benchmarks.cpu_options import add_options, capped, finish
from benchmarks.cpu_peers import linear_peers
from benchmarks.cpu_report import Floors
from benchmarks.cpu_roof import Roof
from benchmarks.timing import interleaved, ratio

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))
ROWS = (1, 4, 16, 64, 256)
_INT4 = (6.0, 3.2, 1.75, 1.1, 0.97)
FLOORS = Floors(
    rows=ROWS,
    ratios={
        "w4a16_sym": _INT4,
        "w4a16_asym": _INT4,
        "w8a16": (3.8, 1.9, 1.0, 0.85, 0.85),
        "w8a16_fp8": (3.6, 2.0, 1.2, 0.85, 0.85),
        "w4a16_nvfp4": (6.0, 3.1, 1.4, 0.85, 0.8),
        "w4a16_mxfp4": (6.0, 3.1, 1.4, 0.85, 0.8),
        "w8a8_int8": (3.2, 2.5, 2.3, 1.8, 1.9),
        "w4a8_int": (5.0, 3.0, 2.2, 1.9, 1.7),
    },
    over_peer={"vllm": (5.0, 3.8, 2.8, 2.3, 2.2)},
    of_roof={"w4a16_sym": 0.9, "w4a16_asym": 0.8},
)
MOST_ROUNDS, SECONDS = 25, 5.0


def measure(
    ops: Iterable[str] = tuple(OPS),
    rows: Iterable[int] = ROWS,
    shapes: Iterable[tuple[int, int]] = SHAPES,
    *,
    peers: bool = False,
    kernel: str | None = None,
    seconds: float = SECONDS,
    note: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each op, number of rows and shape; and one of each peer, with its name in ``peer``.

    ``kernel``: run this one (``cpu/dequant``) for every op, in place of the best. ``seconds``: of a cell (all ops of a
    shape and number of rows), once it has three rounds.
    """
    import torch

    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    roof = Roof()
    with torch.inference_mode():
        for n, k in shapes:
            layers = {name: _Layer(name, n, k, kernel, peers) for name in ops}
            weight = torch.randn(n, k, generator=torch.Generator().manual_seed(1)).mul_(k**-0.5)
            dense = Copies({"weight": weight.bfloat16()})
            for m in rows:
                if note:
                    note(f"{n} x {k}, M = {m}")
                found += _cell(layers, dense, roof, m, seconds)
    return found


class _Layer:
    """An op's layer of one shape: the kernel, copies of its weight, and its peers."""

    def __init__(self, name: str, n: int, k: int, kernel: str | None, peers: bool) -> None:
        self.op, self.n, self.k = OPS[name], n, k
        self.made = operands(self.op, n, k)
        self.kernel, self.impl = _kernel(spec(self.op, n, k), kernel)
        self.weights = Copies(self.impl.pack(self.made))
        found = linear_peers(self.op, self.made) if peers else {}
        self.peers = {peer: (Copies(one.weight), one.call) for peer, one in found.items()}

    def candidates(self, name: str, x: Any) -> dict[Any, Callable[[], object]]:
        def ours() -> object:
            return self.impl.apply(x, self.weights())

        def peer(weights: Copies, call: Callable[..., object]) -> Callable[[], object]:
            return lambda: call(x, weights())

        return {name: ours, **{(name, other): peer(*pair) for other, pair in self.peers.items()}}


def _kernel(wanted: Any, name: str | None) -> tuple[str, Any]:
    import torch

    from quantdispatch.engines.binding import choose_kernel, implementation
    from quantdispatch.registry.registry import get_registry

    if name is None:
        chosen = choose_kernel("benchmark", wanted, torch.device("cpu"))
    else:
        chosen = next(kernel for kernel in get_registry().kernels if kernel.name == name)
    return chosen.name, implementation(chosen, wanted)


def _cell(layers: Mapping[str, _Layer], dense: Copies, roof: Roof, m: int, seconds: float) -> list[dict[str, Any]]:
    import torch
    import torch.nn.functional as F

    (n, k) = dense.weights[0]["weight"].shape
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).bfloat16()
    candidates: dict[Any, Callable[[], object]] = {**roof.calls, "bf16": lambda: F.linear(x, dense()["weight"])}
    for name, layer in layers.items():
        candidates |= layer.candidates(name, x)
    times = interleaved(candidates, MOST_ROUNDS, seconds)
    middle = {name: statistics.median(values) for name, values in times.items()}
    in_order, streams = roof.gbps(middle)
    found: list[dict[str, Any]] = []
    for name, layer in layers.items():
        row = {
            "op": name,
            "m": m,
            "n": n,
            "k": k,
            "group_size": layer.op.group or k,
            "ms": middle[name] * 1e3,
            "bf16_ms": middle["bf16"] * 1e3,
            "ratio": ratio(times["bf16"], times[name]),
            "gbps": layer.weights.bytes / middle[name] / 1e9,
            "roof_gbps": in_order,
            "error": error(layer.op, layer.made, x, layer.impl.apply(x, layer.weights())),
            "roof_4_streams_gbps": streams,
            "kernel": layer.kernel,
        }
        found.append(row)
        for peer, (weights, _) in layer.peers.items():
            of_peer = times[name, peer]
            found.append(
                {
                    **{key: row[key] for key in ("op", "m", "n", "k", "group_size", "bf16_ms", "roof_gbps")},
                    "peer": peer,
                    "ms": middle[name, peer] * 1e3,
                    "ratio": ratio(times["bf16"], of_peer),
                    "gbps": weights.bytes / middle[name, peer] / 1e9,
                    "over_peer": ratio(of_peer, times[name]),
                }
            )
    return found


def _shape(text: str) -> tuple[int, int]:
    n, k = text.lower().split("x")
    return int(n), int(k)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_linear", description=__doc__.split("\n")[0])
    add_options(parser, tuple(OPS), ROWS, SECONDS)
    parser.add_argument("--shapes", nargs="+", type=_shape, default=SHAPES, metavar="NxK", help="outputs x inputs")
    parser.add_argument("--peers", action="store_true", help="beside torch's int4 op, and vLLM's kernel if installed")
    parser.add_argument("--kernel", metavar="NAME", help="run this kernel for every op: cpu/int4_torch, ...")
    options = parser.parse_args()
    with capped(options.isa):
        found = measure(
            options.ops, options.m, options.shapes, peers=options.peers, kernel=options.kernel,
            seconds=options.seconds, note=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
        finish(options, "bf16 time over ours (median of the shapes, least in brackets)", found, FLOORS)


if __name__ == "__main__":
    main()
