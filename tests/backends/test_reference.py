"""The reference backend runs a scheme's numerics by name."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch

from quantdispatch.backends.reference import kernels
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import PluginError, QuantDispatchError
from quantdispatch.registry.lazy import load_target

(KERNEL,) = (kernel for kernel in kernels() if kernel.op == "linear")
IMPL = load_target(KERNEL.target)
INTEGER, FLOAT8 = (
    "quantdispatch.schemes.reference.integer:IntegerNumerics",
    "quantdispatch.schemes.reference.fp8:Fp8Numerics",
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("w", "i"),
    [
        (QuantArgs(num_bits=4, group_size=16, symmetric=False), None),
        (QuantArgs(num_bits=5, group_size=32, actorder="group"), None),
        (QuantArgs(group_size=-1), QuantArgs(strategy="token", dynamic=True, symmetric=False)),
        (QuantArgs(type="float", strategy="channel"), QuantArgs(type="float", strategy="token", dynamic=True)),
    ],
)
def test_it_computes_keeps_and_copies(w, i, dtype, layers):
    layer = layers.make(w, i, n=24, k=64, dtype=dtype, bias=True, reference=FLOAT8 if w.type == "float" else INTEGER)
    layer.operands.extra["weight_shape"] = torch.tensor([24, 64])
    impl = IMPL(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    x = torch.randn(2, 3, 64).to(getattr(torch, dtype))
    y = impl.apply(x, state)
    assert y.shape == (2, 3, 24) and y.dtype == x.dtype
    # weights are those of compressed-tensors: rounded to the scale's dtype, here bf16
    assert layers.error(y, layer.output(x)) < 5e-3
    for twin in (copy.deepcopy(impl), pickle.loads(pickle.dumps(impl))):
        assert torch.equal(twin.apply(x, state), y)
    with pytest.raises(QuantDispatchError, match="no gradient"):
        impl.apply(x.requires_grad_(), state)


def test_the_state_holds_every_part_of_a_layer(layers):
    """Whatever a scheme puts into its operands comes back, parts that other schemes use included."""
    layer = layers.make(QuantArgs(num_bits=4, group_size=16, symmetric=False), n=24, k=64, reference=INTEGER)
    parts = [field.name for field in dataclasses.fields(layer.operands) if field.name != "extra"]
    for number, name in enumerate(parts):
        setattr(layer.operands, name, torch.full((3,), number, dtype=torch.int8))
    layer.operands.extra = {"stranger": torch.ones(2)}
    impl = IMPL(layer.spec)
    state = impl.pack(layer.operands)
    assert len(state) == len(parts) + 1
    restored = impl.unpack(state)
    assert all(torch.equal(getattr(restored, name), getattr(layer.operands, name)) for name in parts)
    assert torch.equal(restored.extra["stranger"], torch.ones(2))


@pytest.mark.parametrize("kernel", list(kernels()), ids=lambda kernel: kernel.name)
def test_every_op_has_a_last_resort(kernel, layers):
    assert kernel.backend == "reference" and kernel.slow and not kernel.deviations
    assert {k.op for k in kernels()} == {"linear", "embedding", "kv_cache"}
    assert kernel.predicate.test({"op": kernel.op, "device": "rocm"}).status == "yes"
    assert hasattr(load_target(kernel.target), "pack")


def test_it_admits_everything_last_and_slow(layers):
    assert KERNEL.slow and KERNEL.backend == "reference"
    assert KERNEL.predicate.test(layers.spec(QuantArgs(num_bits=3), n=1, k=1).flat).status == "yes"


def test_numerics_that_cannot_be_had(layers):
    with pytest.raises(QuantDispatchError, match="names no reference"):
        IMPL(layers.spec(QuantArgs()))
    with pytest.raises(PluginError, match="nowhere"):
        IMPL(layers.spec(QuantArgs(), reference="nowhere:Class"))


def test_records_import_nothing_heavy():
    code = (
        "import sys\nfrom quantdispatch.backends import cpu, reference\n"
        "print(len(list(cpu.kernels())), len(list(reference.kernels())))\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["11", "3"]
