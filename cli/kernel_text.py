"""The ``kernels`` section: every kernel's answer for a group of layers, with its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import SimpleNamespace

from .folding import cells
from .grouping import KernelAnswer
from .page import Row, Section, more

STATUS_STYLES = {"yes": "green", "no": "red", "if": "yellow"}
Answer = tuple[str, tuple[str, ...]]


def kernel_section(
    answers: Sequence[KernelAnswer], layers: int, instead: str | None = None, *, brief: bool = False
) -> list[Section]:
    """Name, yes/no/if, why. ``layers``: of the group. ``instead``: the chosen kernel, where ``answers`` leaves it out.
    ``brief``: of kernels for another device, that alone. No section without answers."""
    if brief:
        answers = _elsewhere_as_one(answers)
    rows = _rows(answers, layers, instead, brief, None)
    if not rows:
        return []
    return [Section("kernels", rows, more("answer"), lambda columns: _rows(answers, layers, instead, brief, columns))]


def _rows(
    answers: Sequence[KernelAnswer], layers: int, instead: str | None, brief: bool, columns: int | None
) -> list[Row]:
    """``columns``: reasons that do not fit there are only counted."""
    size = max([18, *(cells(answer.kernel.name) for answer in answers)])
    rows: list[Row] = []
    passed = False
    for answer in answers:
        counts = _brief(answer.counts) if brief else answer.counts
        for i, ((status, reasons), count) in enumerate(counts.items()):
            share = f" ({count} of {layers} layers)" if count != layers else ""
            name = answer.kernel.name if i == 0 else ""
            lead = f"{name}{' ' * (size - cells(name))} {status:<3}  "
            for shown in range(len(reasons), -1, -1):
                said = reasons[:shown] if shown == len(reasons) else (*reasons[:shown], f"{len(reasons) - shown} more")
                text = lead + _verdict(answer, status, said, passed, instead) + share
                if columns is None or shown <= 1 or cells(text) <= columns:
                    break
            rows.append(Row(text, STATUS_STYLES.get(status, ""), hang=len(lead), rank=_rank(answer, status, i)))
        passed = passed or answer.chosen == layers
    return rows


def _rank(answer: KernelAnswer, status: str, i: int) -> int | None:
    """What is chosen always stays, and the row that has its name; a kernel's further reasons go first."""
    if answer.chosen and (status != "no" or i == 0):
        return None
    return 3 if i else 2 if status == "no" else 1


def _elsewhere_as_one(answers: Sequence[KernelAnswer]) -> list[KernelAnswer]:
    """The kernels of a backend that follow each other and are all for another device as one, ``triton/*``."""
    shown: list[KernelAnswer] = []
    for (elsewhere, backend), run in groupby(answers, lambda answer: (_elsewhere(answer), answer.kernel.backend)):
        own = list(run)
        if elsewhere and len(own) > 1:
            one = KernelAnswer(SimpleNamespace(name=f"{backend}/*", backend=backend, slow=False))
            one.counts[("no", elsewhere)] = max(answer.counts.total() for answer in own)
            own = [one]
        shown += own
    return shown


def _elsewhere(answer: KernelAnswer) -> tuple[str, ...]:
    """The reasons, if all of them are the device."""
    counts = _brief(answer.counts)
    ((status, reasons),) = counts if len(counts) == 1 else ((None, ()),)
    return reasons if status == "no" and all(reason.startswith("device is ") for reason in reasons) else ()


def _brief(counts: Mapping[Answer, int]) -> Counter[Answer]:
    short: Counter[Answer] = Counter()
    for (status, reasons), count in counts.items():
        device = tuple(reason for reason in reasons if reason.startswith("device is "))
        short[status, device if status == "no" and device else reasons] += count
    return short


def _verdict(answer: KernelAnswer, status: str, reasons: tuple[str, ...], passed: bool, instead: str | None) -> str:
    words = ["; ".join(reasons)] if reasons else []
    if status != "no" and answer.chosen:
        words.insert(0, "chosen, if" if status == "if" and reasons else "chosen")
    elif status != "no" and instead is not None:
        words.insert(0, f"would do, but {instead} ranks higher")
    elif status != "no" and passed and not answer.kernel.slow:
        words.insert(0, "ranks lower")
    if answer.kernel.slow and status != "no":
        words.append("slow, last")
    return ", ".join(words).replace("chosen, if, ", "chosen if ")
