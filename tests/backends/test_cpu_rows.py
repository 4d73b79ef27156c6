"""Kernels that an embedding shares with a head give single rows: those of the whole weight, whatever the layout."""

from __future__ import annotations

import pytest
import torch

from quantdispatch.backends.cpu import kernels
from quantdispatch.numerics.rows import select_rows
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.kernels import run_probe
from quantdispatch.registry.lazy import load_target

KERNELS = {kernel.name: kernel for kernel in kernels() if hasattr(load_target(kernel.target), "rows")}
FACTS = Environment.detect("cpu", {"quantdispatch-native": "1"}).facts
WEIGHTS = [
    *(QuantArgs(num_bits=b, strategy=s, symmetric=y) for b in (2, 4, 5, 8) for s in ("tensor", "channel")
      for y in (True, False)),
    *(QuantArgs(num_bits=4, group_size=32, symmetric=y, actorder=a) for y in (True, False) for a in (None, "group")),
    *(QuantArgs(type="float", strategy=s) for s in ("tensor", "channel")),
    QuantArgs(type="float", strategy="block", block_structure=[16, 24]),
]  # fmt: skip
#: one whole block of the int4 op, several with a short one behind, and rows of no round number
SIZES = ((64, 64), (176, 96), (33, 64))


def test_the_kernels_that_share() -> None:
    assert {"cpu/native", "cpu/int4_torch", "cpu/int8_torch", "cpu/dequant"} <= KERNELS.keys()


@pytest.mark.parametrize("scales", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["cpu/native", "cpu/int4_torch", "cpu/int8_torch", "cpu/dequant"])
def test_rows_are_those_of_the_whole(name: str, scales: torch.dtype, layers) -> None:
    kernel = KERNELS[name]
    if kernel.probe is not None and (reason := run_probe(kernel.probe)):
        pytest.skip(f"{name} does not run here: {reason}")
    tried = 0
    for args in WEIGHTS:
        for n, k in SIZES:
            layer = layers.make(args, n=n, k=k, scale_dtype=scales)
            if kernel.predicate.test({**layer.spec.flat, **FACTS}).status != "yes":
                continue
            tried += 1
            impl = load_target(kernel.target)(layer.spec)
            state = impl.pack(layer.operands)
            for index in (torch.tensor([0]), torch.tensor([n - 1, 0, n - 1, n // 2]), torch.randperm(n)):
                chosen = impl.rows(index, state)
                assert layers.same(chosen, select_rows(impl.unpack(state), args, index)), (args.describe(), n, k)
                assert torch.equal(chosen.codes.float(), layer.operands.codes.float()[index])
            for outside in (-1, n):
                with pytest.raises((IndexError, RuntimeError)):
                    impl.rows(torch.tensor([0, outside]), state)
    assert tried > 5


def test_rows_of_an_unknown_layout(layers, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantdispatch.backends.cpu import int4_layout

    values = torch.randint(0, 16, (48, 64), dtype=torch.uint8)
    packed, index = int4_layout.pack(values), torch.tensor([47, 3, 3])
    monkeypatch.setattr(int4_layout, "block_size", lambda: None)
    assert torch.equal(int4_layout.rows(index, packed), values[index])
