"""The native kernels' threads: torch's number of them, its pool, a forked child, several callers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from quantdispatch.registry.environment import native_library

if native_library() is None:
    pytest.skip("the native kernels were not built", allow_module_level=True)

from quantdispatch.backends.cpu.native import library
from quantdispatch.backends.cpu.native.linear import NativeLinear
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.operands import Operands

N, K = 1024, 512


@pytest.fixture(scope="module")
def layer() -> tuple[NativeLinear, dict[str, torch.Tensor]]:
    return make()


def make() -> tuple[NativeLinear, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    args = QuantArgs(num_bits=4, group_size=128)
    impl = NativeLinear(KernelSpec("linear", "linear", "wNa16_int", args, None, None, N, K, "bfloat16", 128))
    codes = torch.randint(-8, 8, (N, K), generator=generator, dtype=torch.int8)
    return impl, impl.pack(Operands(codes, torch.rand(N, K // 128, generator=generator).bfloat16()))


def rows(m: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, K, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("m", [1, 7, 64])
def test_results_do_not_depend_on_the_number_of_threads(layer: tuple, threads: Callable[[int], None], m: int) -> None:
    impl, state = layer
    x, found = rows(m), []
    for count in (1, 2, 5):
        threads(count)
        found += [impl.apply(x, state) for _ in range(3)]
    assert all(torch.equal(y, found[0]) for y in found)


def test_several_callers_at_once_get_their_own_results(layer: tuple, threads: Callable[[int], None]) -> None:
    impl, state = layer
    threads(2)
    inputs = [rows(m, seed=m) for m in (1, 2, 9, 33)]
    alone = [impl.apply(x, state) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(map(torch.equal, pool.map(lambda x: impl.apply(x, state), inputs), alone))


#: run in a process of its own: threads that a test run already has would hide what a call starts
COUNT = """
import json, os, sys, torch
sys.path.insert(0, {folder!r})
from test_native_threads import library, make, rows
number = lambda: len(os.listdir("/proc/self/task"))
impl, state = make()
x = rows(64)
torch.set_num_threads(int(sys.argv[1]))
if sys.argv[2] == "torch first":
    torch.randn(512, 512) @ torch.randn(512, 512)
before = number()
impl.apply(x, state)
print(json.dumps([library.shares_pool(), number() - before]))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.parametrize(("count", "order"), [(1, "native first"), (3, "native first"), (3, "torch first")])
def test_the_pool_is_torchs_and_of_its_size(count: int, order: str) -> None:
    code = COUNT.format(folder=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", code, str(count), order], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shared, started = json.loads(done.stdout)
    if not shared:
        assert started == 0  # threads of its own end with the call
    else:
        assert started == (count - 1 if order == "native first" else 0)


FORK = """
import os, sys, torch
sys.path.insert(0, {folder!r})
from test_native_threads import make, rows
impl, state = make()
x = rows(64)
torch.set_num_threads(2)
bits = lambda y: y.view(torch.uint8).numpy().tobytes()
expected = impl.apply(x, state)  # the pool has threads now, which a child does not get
for count in (1, 2):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(count)
        # compared without torch, whose own products wait for the parent's threads here
        os._exit(0 if bits(impl.apply(x, state)) == bits(expected) else 3)
    assert os.waitpid(child, 0)[1] == 0, count
assert torch.equal(impl.apply(x, state), expected)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_computes() -> None:
    code = FORK.format(folder=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done", done.stderr


def test_threads_of_its_own_where_torchs_pool_cannot_be_shared(layer: tuple, threads: Callable[[int], None]) -> None:
    impl, state = layer
    x = rows(64)
    threads(3)
    expected = impl.apply(x, state)
    loaded = library.load()
    loaded.qd_set_pool(None, None)
    try:
        assert torch.equal(impl.apply(x, state), expected)
    finally:
        loaded.qd_set_pool(*library._torch_pool())
