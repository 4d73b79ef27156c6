"""What is asked of a kernel beside its results: packing without loss, no shared state, copies, calls from threads."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...registry.errors import QuantDispatchError
from . import diagnosis
from .checks import Checks, Nonconformance, NotApplicable
from .layers import Layer
from .modules import module_of
from .trial import difference, moved, same_bits, tensors_difference

if TYPE_CHECKING:
    from .backend import BackendConformance

CHECKS = Checks()


@CHECKS("lifecycle/unpack", "layer")
def unpack(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Unpacking gives back every tensor that was packed, bit for bit, those that the kernel does not know included."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    # of a dense layer the state is what the module has as parameters, and there is nothing else
    extra = {} if trial.spec_op == "dense" else {"stranger": torch.arange(3).to(trial.device)}
    given = replace(trial.operands, extra=extra)
    found = difference(trial.unpack(impl, trial.pack(impl, given)), given)
    if found:
        raise Nonconformance(f"unpack(pack(operands)) is not what was packed: {found}")


@CHECKS("lifecycle/unchanged", "sample")
def unchanged(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Packing, computing and unpacking change neither the operands nor the input nor the state."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    given, x = copy.deepcopy(trial.operands), trial.inputs()
    state = trial.pack(impl)
    packed, asked = {name: value.clone() for name, value in state.items()}, x.clone()
    trial.apply(impl, x, state)
    trial.unpack(impl, state)
    found = difference(trial.operands, given) or tensors_difference(state, packed)
    if found or not same_bits(x, asked):
        raise Nonconformance(f"what it is given is changed: {found or 'the input x'}")


@CHECKS("lifecycle/independent", "sample")
def independent(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Two layers of one kind do not know of each other: packing and running one leaves the other's results."""
    first, second = (subject.trial(layer.with_(seed=layer.seed + more), part) for more in (0, 1))
    kernel, x = subject.records[part], first.inputs()
    mine = first.impl(kernel)
    my_state = first.pack(mine)
    before = first.apply(mine, x, my_state).clone()
    other = second.impl(kernel)
    other_state = second.pack(other)
    second.compare(x, second.apply(other, x, other_state), "the second of two layers: is state shared between them?")
    after = first.apply(mine, x, my_state)
    if not same_bits(before.cpu(), after.cpu()):
        raise Nonconformance("a layer's result changes when another layer is packed: state is shared between layers")
    if difference(second.unpack(other, other_state), second.operands):
        raise Nonconformance("a layer unpacks to another layer's tensors: state is shared between layers")


@CHECKS("lifecycle/copies", "sample")
def copies(subject: BackendConformance, part: str, layer: Layer) -> None:
    """The bound kernel is pickled and copied, its state is saved and copied, and both compute the same."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs()
    y = trial.apply(impl, x, state).cpu()
    makers: dict[str, Callable[[], tuple[Any, Any]]] = {
        "a deep copy": lambda: copy.deepcopy((impl, state)),
        "what is unpickled, with a saved state": lambda: (pickle.loads(pickle.dumps(impl)), _saved(state)),
    }
    for how, make in makers.items():
        try:
            twin, theirs = make()
        except Exception as error:  # a kernel may hold anything, and each has an error of its own
            raise Nonconformance(f"{how} cannot be made: {type(error).__name__}: {error}") from error
        trial.compare(x, trial.apply(twin, x, theirs), how)
        if "repeatable" in subject.capabilities and not same_bits(trial.apply(twin, x, theirs).cpu(), y):
            raise Nonconformance(f"{how} computes something else")
    if len(pickle.dumps(impl)) > 1 << 16:
        raise Nonconformance("the bound kernel takes more than 64 KiB when pickled: does it hold tensors?")


def _saved(state: dict[str, Any]) -> dict[str, Any]:
    """Through torch's own file format: pickle has no float8."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@CHECKS("lifecycle/no-gradient", "sample")
def no_gradient(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Where a gradient would have to flow through it, it refuses with a ``QuantDispatchError``."""
    trial = subject.trial(layer, part)
    if trial.spec_op != "linear":
        raise NotApplicable("of products of quantized weights only")
    impl = trial.impl(subject.records[part])
    try:
        with torch.enable_grad():
            impl.apply(trial.inputs().requires_grad_(), trial.pack(impl))
    except QuantDispatchError:
        return
    raise Nonconformance("an input that requires a gradient is taken: training would go wrong in silence")


@CHECKS("lifecycle/gradient", "sample", since="1.1")
def gradient(subject: BackendConformance, part: str, layer: Layer) -> None:
    """A layer that stays dense is trained as torch's own: gradients of its input, its weight and its bias are there."""
    trial = subject.trial(layer, part)
    if trial.spec_op != "dense":
        raise NotApplicable("of dense layers only")
    impl, x = trial.impl(subject.records[part]), trial.inputs().requires_grad_()
    state = {name: tensor.requires_grad_() for name, tensor in trial.pack(impl).items()}
    with torch.enable_grad():
        torch.autograd.backward(impl.apply(x, state).float().square().sum())
    twins = [tensor.detach().clone().requires_grad_() for tensor in (x, *state.values())]
    with torch.enable_grad():
        torch.autograd.backward(torch.nn.functional.linear(*twins).float().square().sum())
    for name, tensor, twin in zip(("x", *state), (x, *state.values()), twins, strict=True):
        if tensor.grad is None or twin.grad is None or not diagnosis.close(tensor.grad, twin.grad, 4 * trial.tolerance):
            raise Nonconformance(f"the gradient of {name} is {'missing' if tensor.grad is None else 'another'}")


@CHECKS("lifecycle/module", "sample")
def module(subject: BackendConformance, part: str, layer: Layer) -> None:
    """In a module it loads stored tensors, gives them back as its ``state_dict``, and another module loads those."""
    trial = subject.trial(layer, part)
    if trial.spec_op in ("kv_cache", "dense"):
        raise NotApplicable("of quantized weights only")
    kernel, x = subject.records[part], trial.inputs()
    stored: dict[str, Any] = trial.numerics.stored(moved(trial.operands, "cpu"), trial.shape)
    first = module_of(trial, kernel)
    first.load_stored(stored, trial.device)
    trial.compare(x, first(x), "in a module")
    saved = {name: value.cpu() for name, value in first.state_dict().items()}
    found = tensors_difference(saved, {name: value.cpu() for name, value in stored.items()})
    if found:
        raise Nonconformance(f"the state_dict is not what was loaded: {found}")
    second = module_of(trial, kernel).to(trial.device)
    second.load_state_dict(saved)
    trial.compare(x, second(x), "loaded from a state_dict")


@CHECKS("lifecycle/packed", "sample", needs="packed")
def packed(subject: BackendConformance, part: str, layer: Layer) -> None:
    """The state takes no more memory than the stored tensors, but for a tenth and what small layers round up."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    stored = trial.numerics.stored(moved(trial.operands, "cpu"), trial.shape)
    ours, theirs = _bytes(trial.pack(impl)), _bytes(stored)
    if ours > 1.1 * theirs + 16 * (layer.n + layer.k):
        raise Nonconformance(f"the state takes {ours} bytes, the stored tensors {theirs}")


def _bytes(tensors: dict[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@CHECKS("lifecycle/repeatable", "sample", needs="repeatable")
def repeatable(subject: BackendConformance, part: str, layer: Layer) -> None:
    """The same input gives the same bits."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs()
    results = [trial.apply(impl, x, state).cpu() for _ in range(3)]
    if not all(same_bits(result, results[0]) for result in results):
        raise Nonconformance("the same input gives different bits")


@CHECKS("lifecycle/threads", "sample", needs="threads")
def threads(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Several threads that call one bound kernel at once get what one gets."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    state = trial.pack(impl)
    asked = [trial.inputs(5, seed) for seed in range(4)] * 4
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: trial.apply(impl, x, state), asked))
    for x, y in zip(asked, results, strict=True):
        trial.compare(x, y, "called from several threads at once")


@CHECKS("lifecycle/compile", "sample", needs="compile")
def compiles(subject: BackendConformance, part: str, layer: Layer) -> None:
    """torch.compile traces it whole."""
    trial = subject.trial(layer, part)
    if trial.spec_op == "kv_cache":
        raise NotApplicable("of weights only")
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs()
    torch._dynamo.reset()
    traced = torch.compile(lambda x, state: impl.apply(x, state), backend="eager", fullgraph=True)
    with torch.no_grad():
        trial.compare(x, traced(x, state), "compiled")
