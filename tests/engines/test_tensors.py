"""Reading tensors from files without mapping them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

safetensors_torch = pytest.importorskip("safetensors.torch", reason="it writes the files that are read here")

from quantdispatch.engines.tensors import CODES, DTYPES, InMemory, read_tensor  # noqa: E402
from quantdispatch.registry.errors import UnreadableCheckpointError  # noqa: E402
from quantdispatch.registry.headers import TensorEntry, read_header  # noqa: E402


def example(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    size = torch.empty(shape, dtype=dtype).untyped_storage().nbytes()
    bits = torch.arange(size, dtype=torch.int64).remainder_(2 if dtype is torch.bool else 120).to(torch.uint8)
    return bits.view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(3, 8), (1,), (), (0, 4)], ids=str)
@pytest.mark.parametrize("code", sorted(DTYPES))
def test_what_is_written_is_read(code: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = example(DTYPES[code], shape)
    file = tmp_path / "x.safetensors"
    safetensors_torch.save_file({"before": torch.zeros(3), "it": tensor}, file)
    entry = next(e for e in read_header(str(file)) if e.name == "it")
    read = read_tensor(entry)
    assert (read.dtype, tuple(read.shape)) == (tensor.dtype, shape)
    assert InMemory("it", read).read() == entry.read() == InMemory("it", tensor).read()
    assert InMemory("it", read).dtype == code == CODES[tensor.dtype]
    in_memory = read_tensor(InMemory("it", tensor))
    assert InMemory("", in_memory).read() == entry.read()


def test_the_tensor_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    safetensors_torch.save_file({"it": torch.ones(4)}, file)
    (entry,) = read_header(str(file))
    tensor = read_tensor(entry)
    tensor += 1
    assert torch.equal(read_tensor(entry), torch.ones(4))


def test_a_file_cut_short_since_its_header_was_read(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    safetensors_torch.save_file({"it": torch.ones(4)}, file)
    (entry,) = read_header(str(file))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UnreadableCheckpointError, match="ends inside tensor it"):
        read_tensor(entry)
    file.unlink()
    with pytest.raises(UnreadableCheckpointError):
        read_tensor(entry)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (TensorEntry("far", "F32", (1,), "https://example.org/x", 0, 4, False), "header only"),
        (TensorEntry("odd", "F4", (2,), "x", 0, 1, True), "dtype"),
    ],
    ids=["remote", "dtype"],
)
def test_what_cannot_be_read_is_named(entry: TensorEntry, text: str) -> None:
    with pytest.raises(UnreadableCheckpointError, match=text) as caught:
        read_tensor(entry)
    assert entry.name in str(caught.value)
