"""Products with scales on both sides, in the interpreter against float64, over random layers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from quantdispatch.backends.triton.compat import INTERPRETED
from quantdispatch.backends.triton.scaled import BlockScaledLinear
from quantdispatch.registry.args import QuantArgs

#: the layer's own inputs are rounded to 16 bits once more than the codes are
LIMITS = {"float16": 1e-3, "bfloat16": 6e-3}


def mx(bits: int, **more: Any) -> QuantArgs:
    return QuantArgs(type="float", num_bits=bits, strategy="group", group_size=32, scale_dtype="uint8", **more)


def nv(**more: Any) -> QuantArgs:
    return QuantArgs(type="float", num_bits=4, strategy="tensor_group", group_size=16, **more)


FORMS = [(nv(), nv(dynamic="local")), (mx(4), mx(4, dynamic=True)), (mx(8), mx(8, dynamic=True)),
         (mx(4), mx(8, dynamic=True))]  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_products_are_exact_but_for_rounding(seed: int, layers: Any) -> None:
    assert INTERPRETED
    random_ = random.Random(seed)
    weights, inputs = FORMS[seed % len(FORMS)]
    dtype = random_.choice(("float16", "bfloat16"))
    m, n, k = random_.choice((1, 1, 2, 3, 17)), random_.randint(1, 70), 32 * random_.randint(1, 5)
    layer = layers.make(weights, inputs, n=n, k=k, dtype=dtype, bias=random_.random() < 0.5, seed=seed)
    impl = BlockScaledLinear(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))
    y = impl.apply(x, state)
    exact = layer.output(x)
    assert y.dtype == x.dtype and y.shape == (m, n)
    scale = (layer.inputs(x).abs() @ layer.weight().abs().T).norm() / exact.norm().clamp(min=1e-30)
    assert layers.error(y, exact) < LIMITS[dtype] * max(1.0, scale.item() / 16)
