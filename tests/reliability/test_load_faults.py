"""What goes wrong while a model is loaded leaves nothing behind: no half model, no open file, no mapping, and the next
load is as if it had not been."""

from __future__ import annotations

import gc
import os
import shutil
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="loading a model needs the package transformers")

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines import tensors  # noqa: E402
from quantdispatch.engines.packed import PackedLayer  # noqa: E402
from quantdispatch.engines.transformers import quantizer  # noqa: E402

IDS = torch.arange(1, 9).view(1, -1)
#: the call that fails; the tiny model has 14 quantized layers
STEPS = (0, 1, 7, 13)


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("w4a16-asym", max_shard_size="60KB"), tmp_path / "model"))


@pytest.fixture
def nothing_left(folder: Path) -> Iterator[None]:
    """Runs the test, then looks for what it left: files of the folder that are open or mapped, and modules."""
    made: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    create = PackedLayer.__init__

    def noted(self: PackedLayer, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        made.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedLayer, "__init__", noted)
        yield
    gc.collect()
    assert not list(made), "modules of the model that failed are still there"
    assert not [name for name in _open_files() if name.startswith(str(folder))]


def _open_files() -> list[str]:
    """Of this process, with what it has mapped; nothing where the system does not tell."""
    found = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the listing's own
            continue
    maps = Path("/proc/self/maps")
    if maps.exists():
        found += [line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if len(line.split()) > 5]
    return found


def _failing(function: Callable[..., Any], at: int, error: BaseException) -> Callable[..., Any]:
    """``function``, whose call number ``at`` fails."""
    calls = iter(range(1 << 30))

    def called(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error
        return function(*args, **kwargs)

    return called


def _fails(folder: Path, kind: type[BaseException], message: str) -> None:
    """Loading fails with an error that says so."""
    try:
        qd.load(folder)
    except BaseException as error:
        assert isinstance(error, kind) and message in str(error), repr(error)
        # the frames hold what the failed call had made
        error.__traceback__ = None
        context = error.__context__
        while context is not None:
            context.__traceback__, context = None, context.__context__
    else:
        pytest.fail("it loaded")


def _logits(folder: Path) -> torch.Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        logits: torch.Tensor = qd.load(folder)(IDS).logits
    return logits


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize(
    "error", [MemoryError("no memory"), RuntimeError("can't allocate memory")], ids=["python", "torch"]
)
@pytest.mark.parametrize("step", ["read", "pack"])
def test_a_step_that_fails(
    step: str, error: BaseException, at: int, folder: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if step == "read":
            patch.setattr(quantizer, "read_tensor", _failing(tensors.read_tensor, at, error))
        else:
            patch.setattr(PackedLayer, "load_stored", _failing(PackedLayer.load_stored, at, error))
        _fails(folder, type(error), str(error))
    assert _logits(folder).isfinite().all()


@pytest.mark.parametrize("at", STEPS)
def test_a_file_that_cannot_be_read_any_more(
    at: int, folder: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards vanish, or are cut, between planning and the reading of a layer."""
    before = _logits(folder)
    kept = {file: file.read_bytes() for file in folder.glob("*.safetensors")}
    for harm in (Path.unlink, _cut):
        read = _harming(tensors.read_tensor, at, harm, list(kept))
        with monkeypatch.context() as patch:
            patch.setattr(quantizer, "read_tensor", read)
            _fails(folder, qd.QuantDispatchError, ".safetensors")
        for file, content in kept.items():
            file.write_bytes(content)
        assert torch.equal(_logits(folder), before)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:9])


def _harming(
    function: Callable[..., Any], at: int, harm: Callable[[Path], None], files: list[Path]
) -> Callable[..., Any]:
    """``function``, before whose call number ``at`` something happens to files."""
    calls = iter(range(1 << 30))

    def called(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            for file in files:
                harm(file)
        return function(*args, **kwargs)

    return called


@pytest.mark.parametrize("kept", [0, 7, 8, 100, -1])
def test_a_cut_shard(kept: int, folder: Path, nothing_left: None) -> None:
    shard = min(folder.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:kept])
    _fails(folder, qd.QuantDispatchError, shard.name)
    shard.write_bytes(whole)
    assert _logits(folder).isfinite().all()


def test_models_loaded_from_several_threads_are_the_same(folder: Path) -> None:
    alone = _logits(folder)
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: _logits(folder), range(8)):
            assert torch.equal(logits, alone)


def test_a_load_that_fails_does_not_disturb_others(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    min(broken.glob("*.safetensors")).write_bytes(b"")
    alone = _logits(folder)

    def one(number: int) -> bool:
        if number % 2:
            with pytest.raises(qd.QuantDispatchError):
                qd.load(broken)
            return True
        return torch.equal(_logits(folder), alone)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(8)))
