"""Every config that tuning may measure is right, in the interpreter: tuning itself refuses one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quantdispatch.backends.triton import autotune, tuning
from quantdispatch.backends.triton.activations_layer import QuantizedLinear
from quantdispatch.backends.triton.experts import ExpertLinear
from quantdispatch.backends.triton.scaled import BlockScaledLinear
from quantdispatch.backends.triton.wna16 import WNA16Linear
from quantdispatch.registry.args import QuantArgs

INT4 = QuantArgs(num_bits=4, strategy="group", group_size=32, symmetric=False)
INT8 = QuantArgs(num_bits=8, strategy="channel")
FP8 = QuantArgs(type="float", num_bits=8, strategy="channel")
TOKENS = QuantArgs(num_bits=8, strategy="token", dynamic=True)
MX = QuantArgs(type="float", num_bits=8, strategy="group", group_size=32, scale_dtype="uint8")
MX_INPUTS = QuantArgs(type="float", num_bits=8, strategy="group", group_size=32, scale_dtype="uint8", dynamic=True)
FP8_TOKENS = QuantArgs(type="float", num_bits=8, strategy="token", dynamic=True)


@pytest.fixture(autouse=True)
def nothing_measured_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(autotune.FOLDER, str(tmp_path))
    autotune.choices.cache_clear()
    tuning.forget()


@pytest.mark.parametrize("m", [1, 20])
@pytest.mark.parametrize(
    ("kernel", "weights", "inputs"),
    [
        (WNA16Linear, INT4, None),
        (WNA16Linear, FP8, None),
        (QuantizedLinear, INT8, TOKENS),
        (QuantizedLinear, INT4, TOKENS),
        (QuantizedLinear, FP8, FP8_TOKENS),
        (BlockScaledLinear, MX, MX_INPUTS),
    ],
    ids=["int4", "fp8", "int8 inputs", "int4, int8 inputs", "fp8 inputs", "mxfp8"],
)
def test_every_candidate_gives_the_default_result(kernel: Any, weights: Any, inputs: Any, m: int, layers: Any) -> None:
    layer = layers.make(weights, inputs=inputs, n=48, k=128, dtype="float16", seed=m)
    impl = kernel(layer.spec)
    state = impl.pack(layer.operands)
    x = torch.randn(m, 128, generator=torch.Generator().manual_seed(m)).half()
    found = tuning.tune(lambda: impl.apply(x, state), lambda call: 1.0)
    assert found and all(len(one.times) > 1 and not one.refused for one in found), found


@pytest.mark.parametrize(("weights", "inputs"), [(INT4, None), (INT8, TOKENS)], ids=["int4", "int8 inputs"])
def test_every_candidate_of_experts_gives_the_default_result(weights: Any, inputs: Any, layers: Any) -> None:
    experts = []
    for expert in range(3):
        own = [
            layers.make(weights, inputs, n=32, k=32, dtype="float16", kind="moe", seed=3 * expert + i) for i in range(3)
        ]
        impls = [ExpertLinear(layer.spec) for layer in own]
        experts.append([(impl, impl.pack(layer.operands)) for impl, layer in zip(impls, own, strict=True)])
    run = ExpertLinear.fuse([own[:-1] for own in experts], [own[-1] for own in experts], "silu")
    random = torch.Generator().manual_seed(1)
    x = torch.randn(5, 32, generator=random).half() / 8
    index, share = torch.randint(0, 3, (5, 2), generator=random), torch.rand(5, 2, generator=random)
    found = tuning.tune(lambda: run(x, index, share), lambda call: 1.0)
    assert found and all(len(one.times) > 1 and not one.refused for one in found), found
