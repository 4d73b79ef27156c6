"""SGLang as it is in a process that runs a model: loaded plugins, a published configuration, ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

STUBS = Path(__file__).parent / "stubs"
SUPPORT = Path(__file__).resolve().parents[3] / "tests" / "support"
# SGLang compiles the masking of token numbers, which takes longer than all of these tests
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
#: a pipeline of one stage
ONE_STAGE = SimpleNamespace(rank_in_group=0, world_size=1, is_first_rank=True, is_last_rank=True, first_rank=0)
sys.path[:0] = [str(STUBS), str(SUPPORT), str(Path(__file__).parent)]


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Through SGLang's own loader, from the entry point of the installed distribution."""
    from sglang.srt.plugins import load_plugins

    load_plugins()


@pytest.fixture(scope="session", autouse=True)
def published(loaded: None) -> Iterator[None]:
    from sglang.srt.runtime_context import get_context

    override = get_context().override_server_args()
    override.install()
    yield
    override.restore()


@pytest.fixture(autouse=True)
def activations() -> Iterator[None]:
    """The dtype that models are built in."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def ranks() -> Callable[..., AbstractContextManager[Any]]:
    """``with ranks(2, 1)``: what is built is the second rank's part of two."""
    from sglang.srt.runtime_context import get_parallel

    def of(size: int = 1, rank: int = 0, experts: int = 1, expert_rank: int = 0) -> AbstractContextManager[Any]:
        return get_parallel().override(
            tp_size=size, tp_rank=rank, attn_tp_size=size, attn_tp_rank=rank, moe_tp_size=size // experts,
            moe_tp_rank=rank % (size // experts), moe_ep_size=experts,
            moe_ep_rank=expert_rank, tp_group=None, attn_tp_group=None, pp_group=ONE_STAGE,
            pp_rank=0, pp_size=1, attn_dp_size=1, attn_dp_rank=0, attn_cp_size=1, attn_cp_rank=0,
        )  # fmt: skip

    return of


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``gpu("sm90")``: SGLang and quantdispatch take this machine for one with such a GPU, as far as they ask."""

    def pretend(arch: str) -> None:
        from quantdispatch_sglang import device

        number = int(arch.removeprefix("sm"))
        monkeypatch.setattr(device, "current_device", lambda: f"cuda:{arch}")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: divmod(number, 10))

    return pretend
