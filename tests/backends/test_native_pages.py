"""Memory for packed weights: tensors like any others, side by side in mappings that go with the last of them."""

from __future__ import annotations

import copy
import io
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from quantdispatch.backends.cpu.native import pages

SIZES = (pages._LEAST, 3 * pages._LEAST + 4, pages._MAPPING // 3, pages._MAPPING + 4)


@pytest.fixture(params=[True, False], ids=["large pages", "none"], autouse=True)
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Where the system has none, mappings are tried all the same: a page size is only advice."""
    if request.param and not hasattr(pages.mmap, "MADV_HUGEPAGE"):
        pytest.skip("this system has no such advice")
    monkeypatch.setattr(pages, "_large_pages", lambda: request.param)
    pages._open.clear()
    yield request.param
    pages._open.clear()


def test_tensors_do_not_overlap_and_own_their_storage() -> None:
    made = [pages.empty(size // 4, dtype=torch.int32) for size in SIZES for _ in range(3)]
    for number, tensor in enumerate(made):
        tensor.fill_(number)
    for number, tensor in enumerate(made):
        assert bool((tensor == number).all()) and tensor.data_ptr() % 64 == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.storage_offset() == 0


def test_moved_is_an_equal_copy() -> None:
    for size in (8, *SIZES[:2]):
        tensor = torch.arange(size // 4 * 2, dtype=torch.bfloat16).reshape(2, -1)
        moved = pages.moved(tensor)
        assert torch.equal(moved, tensor) and moved.is_contiguous() and moved.dtype == tensor.dtype


def test_a_mapping_goes_with_its_last_tensor(large: bool) -> None:
    if not large:
        assert not pages._open
        return
    first, second = (pages.empty(SIZES[0], dtype=torch.uint8) for _ in range(2))
    mapping = weakref.ref(pages._open[0][0])
    pages._open.clear()
    first.fill_(3)
    del second
    assert mapping() is not None and int(first.sum()) == 3 * SIZES[0]
    del first
    assert mapping() is None


def test_made_in_inference_mode_and_used_outside() -> None:
    with torch.inference_mode():
        tensor = pages.empty(SIZES[0], dtype=torch.uint8)
    assert not tensor.is_inference()
    tensor.fill_(1)


def test_copies_and_files_hold_the_tensor_alone() -> None:
    tensor = pages.empty(SIZES[0], dtype=torch.uint8).fill_(7)
    pages.empty(SIZES[1], dtype=torch.uint8)
    file = io.BytesIO()
    torch.save(tensor, file)
    assert file.tell() < 2 * SIZES[0]
    file.seek(0)
    for other in (torch.load(file), copy.deepcopy(tensor)):
        assert torch.equal(other, tensor) and other.data_ptr() != tensor.data_ptr()


def test_threads_get_memory_of_their_own() -> None:
    found: list[torch.Tensor] = []

    def make(number: int) -> None:
        for _ in range(20):
            found.append(pages.empty(SIZES[0], dtype=torch.uint8).fill_(number))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tensor.data_ptr() for tensor in found}) == len(found) == 160
    assert all(bool((tensor == tensor[0]).all()) for tensor in found)
