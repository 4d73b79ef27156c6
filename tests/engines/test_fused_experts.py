"""Experts whose kernel computes all of them in one call: when that is done, when not, and that nobody can tell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="models are transformers models")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from demo_models.moe import FAMILIES, tiny_moe  # noqa: E402
from demo_models.variants import Group  # noqa: E402
from torch import nn  # noqa: E402
from transformers.activations import ACT2FN  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines.experts import QuantExperts  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.transformers.gates import known_activation  # noqa: E402

INT4 = Group(
    {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}, format="pack-quantized"
)
INT8_INPUTS = Group(
    {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
    {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
    format="int-quantized",
)
TOKENS = torch.arange(7, 39).reshape(2, 16)
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Fuse:
    """A kernel's ``fuse`` that computes with the single kernels, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.calls: list[set[int]] = []

    def __call__(self, first: Any, last: Any, activation: str) -> Any:
        if any(impl.inputs is not None for own in first for impl, _ in own):
            return None
        self.made.append(activation)

        def run(x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(x.shape, dtype=torch.float32)
            chosen = {int(e) for e in index.flatten() if 0 <= int(e) < len(first)}
            self.calls.append(chosen)
            for expert in sorted(chosen):
                rows, places = torch.where(index == expert)
                gate, *up = (impl.apply(x[rows], state) for impl, state in first[expert])
                hidden = FUNCTIONS[activation](gate)
                impl, state = last[expert]
                part = impl.apply(hidden * up[0] if up else hidden, state)
                total.index_add_(0, rows, part.float() * weights[rows, places, None].float())
            return total.to(x.dtype)

        return run


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fuse]:
    """Every kernel of linear layers can fuse."""
    fuse = Fuse()
    bind = QuantLinear._bind
    pack = QuantLinear._pack

    def patched(self: Any) -> None:
        if self._impl is not None:
            monkeypatch.setattr(type(self._impl), "fuse", staticmethod(fuse), raising=False)

    def patched_bind(self: Any, *args: Any, **kwargs: Any) -> None:
        bind(self, *args, **kwargs)
        patched(self)

    def patched_pack(self: Any, *args: Any, **kwargs: Any) -> None:
        pack(self, *args, **kwargs)
        patched(self)

    monkeypatch.setattr(QuantLinear, "_bind", patched_bind)
    monkeypatch.setattr(QuantLinear, "_pack", patched_pack)
    yield fuse


def layer_of(model: Any) -> QuantExperts:
    return next(module for module in model.modules() if isinstance(module, QuantExperts))


def one_by_one(experts: QuantExperts, *inputs: torch.Tensor) -> torch.Tensor:
    known = experts._known
    object.__setattr__(experts, "_known", None)
    try:
        result: torch.Tensor = experts(*inputs)
    finally:
        object.__setattr__(experts, "_known", known)
    return result


def inputs(tokens: int = 5, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 128, generator=generator).to(dtype)
    index = torch.rand(tokens, 5, generator=generator).argsort(1)[:, :2].contiguous()  # 4: lives elsewhere
    return x, index, torch.rand(tokens, 2, generator=generator)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 6e-3) -> bool:
    return bool((a - b).float().norm() <= tolerance * b.float().norm())


@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_a_layer_and_the_same_result(family: str, fuse: Fuse, tmp_path: Path) -> None:
    model = qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4}, family=family))
    layers = [module for module in model.modules() if isinstance(module, QuantExperts)]
    expected = {tokens: [one_by_one(experts, *inputs(tokens)) for experts in layers] for tokens in (1, 9)}
    assert not fuse.made
    model(TOKENS)
    assert fuse.made == ["silu"] * len(layers) and len(fuse.calls) == len(layers)
    for tokens, results in expected.items():
        for experts, result in zip(layers, results, strict=True):
            assert close(experts(*inputs(tokens)), result)
    assert len(fuse.made) == len(layers) and len(fuse.calls) == 3 * len(layers), "made once"


def test_the_native_kernel_is_what_the_model_says_it_is(tmp_path: Path) -> None:
    """With whatever kernel this machine has, and its own ``fuse`` where it has one."""
    model = qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4}))
    experts = layer_of(model)
    for tokens in (1, 9):
        assert close(experts(*inputs(tokens)), one_by_one(experts, *inputs(tokens)))
    native = any(module.kernel.name == "cpu/native" for module in experts.modules() if isinstance(module, QuantLinear))
    assert (experts._fused is not None) == native


def test_quantized_inputs_are_left_to_the_layers(fuse: Fuse, tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT8_INPUTS})))
    experts(*inputs())
    assert not fuse.made and experts._fused is None


def test_an_expert_that_is_not_packed_is_left_to_the_layers(fuse: Fuse, tmp_path: Path) -> None:
    ignore = ("lm_head", r"re:.*\.gate$", r"re:.*experts\.2\.up_proj")
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4}, ignore=ignore)))
    experts(*inputs())
    assert not fuse.made


def test_listeners_hear_and_changes_are_seen(fuse: Fuse, tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    given = inputs(9)
    first = experts(*given)
    assert len(fuse.calls) == 1
    gate = experts.expert(1).projections()[0][0]
    heard: list[Any] = []
    handle = gate.register_forward_hook(lambda *_: heard.append(1))
    assert close(experts(*given), first) and heard and len(fuse.calls) == 1
    handle.remove()
    assert torch.equal(experts(*given), first) and len(fuse.calls) == 2
    # one token: only experts that are chosen are asked
    x, _, weights = inputs(1)
    handle = gate.register_forward_pre_hook(lambda *_: heard.clear())
    experts(x, torch.tensor([[0, 3]]), weights)
    before = len(fuse.calls)
    experts(x, torch.tensor([[0, 1]]), weights)
    assert not heard and len(fuse.calls) == before
    handle.remove()
    # other tensors
    tensors = gate.stored_tensors()
    gate.load_stored({**tensors, "weight_scale": tensors["weight_scale"] * 8})
    assert not torch.equal(experts(*given), first)
    gate.load_stored(tensors)
    assert torch.equal(experts(*given), first)
    # another module
    experts.expert(1).up_proj = nn.Linear(128, 64, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    before = len(fuse.calls)
    assert not torch.equal(experts(*given), first) and len(fuse.calls) == before


def test_other_memory_and_another_forward_are_seen(tmp_path: Path, fuse: Fuse) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    given = inputs(9)
    first = experts(*given)
    for buffer in experts.buffers():  # as a queue between processes does: the old memory is freed
        buffer.share_memory_()
    assert torch.equal(experts(*given), first)
    gate = experts.expert(1).projections()[0][0]
    moved = gate._buffers["scale"].clone() * 8
    gate._buffers["scale"].data = moved
    assert not torch.equal(experts(*given), first)
    gate._buffers["scale"].data = moved / 8
    assert torch.equal(experts(*given), first)
    heard: list[int] = []
    plain = gate.forward
    gate.forward = lambda x: (heard.append(1), plain(x))[1]
    assert close(experts(*given), first) and heard


def test_copies_make_their_own(fuse: Fuse, tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    given = inputs(9)
    first = experts(*given)
    for other in (copy.deepcopy(experts), copy.deepcopy(copy.deepcopy(experts))):
        assert other._fused is None
        gate = other.expert(0).projections()[0][0]
        tensors = gate.stored_tensors()
        assert torch.equal(other(*given), first)
        gate.load_stored({**tensors, "weight_scale": tensors["weight_scale"] * 8})
        assert not torch.equal(other(*given), first) and torch.equal(experts(*given), first)
    wide = copy.deepcopy(experts).float()
    before = len(fuse.made)
    assert close(wide(given[0].float(), *given[1:]), first, 2e-2) and len(fuse.made) == before + 1


def test_what_does_not_fit_is_said_by_the_layer(fuse: Fuse, tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    x, index, weights = inputs()
    experts(x, index, weights)
    calls = len(fuse.calls)
    with pytest.raises(qd.QuantDispatchError, match="input"):
        experts(x.float(), index, weights)
    with pytest.raises(qd.QuantDispatchError, match="input"):
        experts(x[:, :64], index, weights)
    with pytest.raises(qd.QuantDispatchError, match="gradient"):
        experts(x.clone().requires_grad_(), index, weights)
    # a router may be trained
    weights.requires_grad_()
    experts(x, index, weights).float().sum().backward()
    assert weights.grad is not None and weights.grad.any() and len(fuse.calls) == calls


ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": None,
    "gelu_new": None,
    "quick_gelu": None,
    "relu": None,
    "relu2": None,
    "mish": None,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_known_by_what_they_are(name: str, fuse: Fuse, tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    experts.original.act_fn = ACT2FN[name]
    assert known_activation(experts.original) == ACTIVATIONS[name]
    assert close(experts(*inputs()), one_by_one(experts, *inputs()))
    assert fuse.made == ([ACTIVATIONS[name]] if ACTIVATIONS[name] else [])


def test_an_activation_that_is_another_than_it_looks(fuse: Fuse, tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    original = experts.original

    class SiLUActivation(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(max=1)

    hooked, replaced = nn.SiLU(), nn.SiLU()
    hooked.register_forward_hook(lambda *_: None)
    replaced.forward = lambda x: x.relu()  # type: ignore[method-assign]
    for act in (SiLUActivation(), hooked, replaced):
        original.act_fn = act
        assert known_activation(original) is None
    for act, name in (
        (nn.SiLU(), "silu"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
    ):
        original.act_fn = act
        assert known_activation(original) == name

    class Clamped(type(original)):  # type: ignore[misc]
        def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
            return gate_up.chunk(2, dim=-1)[0]

    original.__class__ = Clamped
    assert known_activation(original) is None
    experts(*inputs())
    assert not fuse.made


@pytest.mark.parametrize("native", [True, False], ids=["fused", "one by one"])
def test_a_compiled_layer_is_one_operator(native: bool, tmp_path: Path) -> None:
    """One graph for every choice of experts, and what happens to the experts later is seen."""
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    if not native:
        object.__setattr__(experts, "_known", None)
    torch._dynamo.reset()
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (9, 3, 5):
        assert torch.equal(compiled(*inputs(tokens)), experts(*inputs(tokens)))
    gate = experts.expert(1).projections()[0][0]
    heard: list[Any] = []
    handle = gate.register_forward_hook(lambda *_: heard.append(1))
    compiled(*inputs(9))
    assert heard
    handle.remove()
    before = experts(*inputs(9))
    tensors = gate.stored_tensors()
    gate.load_stored({**tensors, "weight_scale": tensors["weight_scale"] * 8})
    assert not torch.equal(compiled(*inputs(9)), before)
    other = torch.compile(copy.deepcopy(experts), fullgraph=True, backend="aot_eager")
    gate.load_stored(tensors)
    assert not torch.equal(other(*inputs(9)), before) and torch.equal(compiled(*inputs(9)), before)


def test_a_compiled_layer_gives_no_gradient_silently(tmp_path: Path) -> None:
    experts = layer_of(qd.load(tiny_moe(tmp_path / "packed", {"group_0": INT4})))
    torch._dynamo.reset()
    compiled = torch.compile(experts, backend="eager")
    x, index, weights = inputs()
    with pytest.raises(Exception, match="gradient"):
        compiled(x.clone().requires_grad_(), index, weights)
