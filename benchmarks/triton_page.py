"""The table of docs/triton.md, made anew by ``python -m benchmarks.triton_page``. Some minutes: all is compiled."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import triton

from quantdispatch.backends.triton import aot

PAGE = Path(__file__).parents[1] / "docs" / "triton.md"
BEGIN, END = "<!-- compiled: begin -->", "<!-- compiled: end -->"


def row(number: int) -> str:
    """The table's row of a case, by its place among all: cases hold kernels, which do not travel between processes."""
    return aot.row(aot.report(list(aot.cases())[number]))


def main() -> None:
    count = len(list(aot.cases()))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(row, range(count)))
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    table = "\n".join([*aot.HEAD, *rows])
    PAGE.write_text(
        f"{before}{BEGIN}\nCompiled with Triton {triton.__version__}.\n\n{table}\n{END}{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
