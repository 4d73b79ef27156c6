"""QuantLinear with a scheme and kernels of the test's own: what it promises whatever serves it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from quantdispatch.engines import packed
from quantdispatch.engines.modules import QuantLinear
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import CheckpointError, NoKernelFound
from quantdispatch.registry.facts import KernelSpec, LayerFacts
from quantdispatch.registry.kernels import Kernel, Needs
from quantdispatch.registry.operands import Operands
from quantdispatch.registry.scheme import LayerShape, Scheme

N, K = 6, 8
NAME = "model.layers.0.mlp.up_proj"


class Int8(Scheme):
    name = "int8_of_the_test"
    numerics = f"{__name__}:Int8Numerics"

    def stored(self, shape: LayerShape) -> tuple[()]:
        return ()

    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset({"weight", "weight_scale"}), frozenset()

    def shape(self, name: str, tensors: Mapping[str, Any]) -> LayerShape:
        return LayerShape(*tensors["weight"].shape)

    def check(self, name: str, tensors: Mapping[str, Any]) -> LayerShape:
        if tensors["weight"].dtype != "I8":
            raise CheckpointError("wrong dtype", layer=name, field="weight")
        return self.shape(name, tensors)

    def kernel_spec(self, shape: LayerShape | None, dtype: str, *, tensors: frozenset[str] = frozenset()) -> KernelSpec:
        n, k = (shape.n, shape.k) if shape else (None, None)
        return KernelSpec(
            "linear", "linear", self.name, self.layer.weights, None, None, n, k, dtype, k, bias="bias" in tensors
        )


class Int8Numerics:
    def __init__(self, layer: LayerFacts) -> None:
        self.layer = layer

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        return Operands(tensors["weight"], tensors["weight_scale"], bias=tensors.get("bias"))

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        return {"weight": operands.codes, "weight_scale": operands.scale}

    def dequantize(self, operands: Operands, dtype: Any = None) -> Any:
        weight = operands.codes.to(operands.scale.dtype) * operands.scale
        return weight if dtype is None else weight.to(dtype)


class Packed:
    """Keeps codes transposed: a layout that is not the stored one. The scale stays in the file's dtype."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec

    def pack(self, operands: Operands) -> dict[str, Any]:
        state = {"codes_t": operands.codes.T.contiguous(), "scale": operands.scale}
        return state if operands.bias is None else {**state, "bias": operands.bias}

    def unpack(self, state: Mapping[str, Any]) -> Operands:
        return Operands(state["codes_t"].T.contiguous(), state["scale"], bias=state.get("bias"))

    def apply(self, x: Any, state: Mapping[str, Any]) -> Any:
        weight = state["codes_t"].T.to(x.dtype) * state["scale"].to(x.dtype)
        bias = state.get("bias")
        return nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype))


KERNELS = {
    dtype: Kernel(f"test/{dtype}", "linear", Needs({}, dtype=dtype), f"{__name__}:Packed")
    for dtype in ("bfloat16", "float32", "float16")
}


@pytest.fixture(autouse=True)
def kernels_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(name: str, spec: KernelSpec, device: torch.device, backend: str | None = None) -> Kernel:
        if spec.dtype not in KERNELS:
            raise NoKernelFound("no kernel for this dtype", layer=name)
        return KERNELS[spec.dtype]

    monkeypatch.setattr(packed, "choose_kernel", choose)


def stored_tensors(bias: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "weight": torch.randint(-128, 128, (N, K), generator=generator).to(torch.int8),
        # an odd scale in fp32 that no narrower dtype holds: a cast anywhere shows
        "weight_scale": torch.rand(N, 1, generator=generator) + 0.1,
    }
    return {**tensors, "bias": torch.randn(N, generator=generator).bfloat16()} if bias else tensors


def layer(bias: bool = True, filled: bool = True, dtype: str = "bfloat16") -> QuantLinear:
    scheme = Int8(LayerFacts("linear", "int-quantized", QuantArgs(num_bits=8, strategy="channel")))
    shape = LayerShape(N, K)
    spec = scheme.kernel_spec(shape, dtype, tensors=frozenset({"bias"} if bias else ()))
    module = QuantLinear(NAME, scheme, shape, spec)
    if filled:
        module.load_stored(stored_tensors(bias))
    return module


def truth(x: torch.Tensor, bias: bool = True) -> torch.Tensor:
    tensors = stored_tensors(bias)
    y = x.double() @ (tensors["weight"].double() * tensors["weight_scale"].double()).T
    return y + tensors["bias"].double() if bias else y


def close(y: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((y.double() - expected).norm() < 2e-2 * expected.norm())


@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_kernels_and_has_no_parameters(bias: bool) -> None:
    module, x = layer(bias), torch.randn(2, 3, K).bfloat16()
    assert list(module.parameters()) == []
    assert close(module(x), truth(x, bias))


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (torch.zeros(1, K), TypeError, "input is float32, the layer is bound to bfloat16"),
        (torch.zeros(2, 2 * K).bfloat16(), ValueError, f"input has {2 * K} features, the layer has {K}"),
    ],
)
def test_input_that_a_kernel_could_misread_is_refused(x: torch.Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        layer()(x)
    assert NAME in str(caught.value)


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[k].dtype == right[k].dtype and torch.equal(left[k], right[k]) for k in left
    )


@pytest.mark.parametrize("bias", [True, False])
def test_state_dict_holds_the_stored_tensors_and_loads_back(bias: bool) -> None:
    state = layer(bias).state_dict(prefix="p.")
    assert same({k.removeprefix("p."): v for k, v in state.items()}, stored_tensors(bias))
    other = layer(bias, filled=False)
    result = other.load_state_dict(stored_tensors(bias))
    assert not result.missing_keys and not result.unexpected_keys
    x = torch.randn(4, K).bfloat16()
    assert torch.equal(other(x), layer(bias)(x))


def test_an_empty_module_adds_nothing_to_a_state_dict_and_has_no_weight() -> None:
    module = layer(filled=False)
    assert module.state_dict() == {} and not module.loaded
    assert not hasattr(module, "weight")
    with pytest.raises(RuntimeError, match="is empty"):
        module.operands()


def without(name: str) -> dict[str, torch.Tensor]:
    return {k: v for k, v in stored_tensors().items() if k != name}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (without("weight_scale"), "Missing key.*weight_scale"),
        ({**stored_tensors(), "stray": torch.zeros(1)}, "Unexpected key.*stray"),
        ({**stored_tensors(), "weight": torch.zeros(N, K)}, "wrong dtype"),
        ({**stored_tensors(), "weight": torch.zeros(N, K + 2, dtype=torch.int8)}, "another shape"),
        (without("bias"), "the layer has a bias and the stored tensors have none"),
    ],
)
def test_load_state_dict_reports_what_is_wrong(state: dict[str, torch.Tensor], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        layer().load_state_dict(state)


CASTS: dict[str, Any] = {
    "to": lambda m: m.to(torch.float32),
    "float": lambda m: m.float(),
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "cpu": lambda m: m.cpu(),
    "type": lambda m: m.type(torch.float16),
    "share_memory": lambda m: m.share_memory(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "inside_another": lambda m: nn.Sequential(m).to(torch.float32)[0],
}


@pytest.mark.parametrize("cast", CASTS)
def test_moves_and_copies_lose_no_bit_and_still_compute(cast: str) -> None:
    module = CASTS[cast](layer())
    assert same(module.state_dict(), stored_tensors())
    x = torch.randn(3, K).to(module.dtype)
    assert close(module(x), truth(x))
    assert module.kernel is not None and module.kernel.name == f"test/{module.spec.dtype}"


def test_there_and_back_again() -> None:
    module = layer().float().half().to(torch.bfloat16)
    x = torch.randn(3, K).bfloat16()
    assert torch.equal(module(x), layer()(x))


def test_torch_save_of_the_module() -> None:
    buffer = io.BytesIO()
    torch.save(layer(), buffer)
    buffer.seek(0)
    assert same(torch.load(buffer, weights_only=False).state_dict(), stored_tensors())


def test_a_cast_without_a_kernel_leaves_the_module_as_it_was() -> None:
    module = layer()
    with pytest.raises(NoKernelFound, match=NAME):
        module.double()
    assert module.dtype is torch.bfloat16 and same(module.state_dict(), stored_tensors())


def test_share_memory_shares_every_buffer() -> None:
    assert all(t.is_shared() for t in layer().share_memory().buffers())


def test_to_meta_and_to_empty() -> None:
    module = layer().to("meta")
    assert {t.device.type for t in module.buffers()} == {"meta"} and module.weight.device.type == "meta"
    module.to_empty(device="cpu")
    assert {t.device.type for t in module.buffers()} == {"cpu"}


def test_weight_answers_from_metadata_and_stands_for_the_dense_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    module = layer()
    dense = module.dense_weight(torch.bfloat16)
    unpacked = []
    monkeypatch.setattr(module, "operands", lambda: unpacked.append(1) or QuantLinear.operands(module))
    weight = module.weight
    assert (weight.dtype, weight.device.type) == (torch.bfloat16, "cpu")
    assert (tuple(weight.shape), weight.numel()) == ((N, K), N * K)
    assert "LazyWeight" in repr(weight) and not weight.requires_grad and unpacked == []
    assert torch.equal(weight + 0, dense) and torch.equal(weight[1:3], dense[1:3])
    x = torch.randn(2, K).bfloat16()
    assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, dense))
    for write in (
        lambda: weight.mul_(2),
        lambda: torch.mul(dense, 2, out=weight),
        lambda: torch._foreach_mul_([weight], 2.0),
    ):
        with pytest.raises(RuntimeError, match="read-only"):
            write()
    assert torch.equal(copy.deepcopy(weight).mul_(2), dense * 2)


def test_dequantize_gives_a_plain_linear() -> None:
    linear = layer().eval().dequantize()
    assert type(linear) is nn.Linear and not linear.training and linear.weight.dtype is torch.bfloat16
    assert torch.equal(linear.weight, layer().dense_weight().bfloat16())
    assert torch.equal(linear.bias, stored_tensors()["bias"])
    assert layer(bias=False).dequantize(torch.float32).bias is None


def test_repr_says_what_it_is() -> None:
    assert "int8_of_the_test int8, bfloat16, kernel=test/bfloat16" in repr(layer())
    assert "no kernel bound" in repr(layer(filled=False))


def test_compiles_without_a_graph_break() -> None:
    module = nn.Sequential(layer(), nn.ReLU())
    x = torch.randn(3, K).bfloat16()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), module(x))
