"""How fast one thread reads memory: the roof under which a product with few rows is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: read by one call, and in all: calls go round a buffer that caches do not hold
_PIECE, _ALL = 16 << 20, 256 << 20


class Roof:
    """Candidates for :func:`.timing.interleaved`, and what their times mean.

    In order, as torch's sum and a plain loop in C do it: the faster of the two is the roof. In four streams, where the
    native library is built: prefetchers stop at the end of a page, and several streams hide that, so a kernel that
    reads in this way may exceed the roof.
    """

    def __init__(self) -> None:
        import torch

        self.words = torch.zeros(_ALL // 8, dtype=torch.int64)
        self.turn = 0
        library = _library()
        self.calls: dict[str, Callable[[], object]] = {"roof sum": lambda: self._next().view(torch.float32).sum()}
        if library is not None:
            self.calls["roof C"] = lambda: self._read(library, 1)
            self.calls["roof C, 4 streams"] = lambda: self._read(library, 4)

    def _next(self) -> Any:
        size = _PIECE // 8
        self.turn = (self.turn + 1) % (_ALL // _PIECE)
        return self.words[self.turn * size : (self.turn + 1) * size]

    def _read(self, library: Any, streams: int) -> int:
        piece = self._next()
        return int(library.qd_read(piece.data_ptr(), piece.numel(), streams))

    def gbps(self, seconds: dict[str, float]) -> tuple[float, float | None]:
        """GB/s in order and in four streams, of the calls' medians."""
        in_order = max(_PIECE / seconds[name] for name in ("roof sum", "roof C") if name in seconds)
        streams = seconds.get("roof C, 4 streams")
        return in_order / 1e9, None if streams is None else _PIECE / streams / 1e9


def _library() -> Any:
    from quantdispatch.backends.cpu.native import library
    from quantdispatch.registry.errors import NoKernelFound

    try:
        return library.load()
    except NoKernelFound:
        return None
