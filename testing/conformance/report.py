"""The results of a run, for people and as JSON."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ... import __version__
from .checks import GOOD, KIT, TIERS, Result
from .subject import Conformance

#: of the JSON document; a key that is taken away or changes its meaning makes a new one
VERSION = 1


@dataclass(frozen=True)
class Report:
    """Every result of one subject."""

    subject: Mapping[str, Any]
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Is something passed, and nothing failed?"""
        return all(result.good for result in self.results) and any(r.outcome == "passed" for r in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if not result.good)

    def __str__(self) -> str:
        counts = Counter(result.outcome for result in self.results)
        lines = [f"{self.subject['name']}: {', '.join(f'{n} {outcome}' for outcome, n in sorted(counts.items()))}"]
        lines += [f"  {result.item.id}\n    {result.message}" for result in self.failures]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The document of :func:`document`, of this subject alone."""
        return document({**self.subject, "result": result.to_json()} for result in self.results)


def run_conformance(subject: type[Conformance]) -> Report:
    """Every check of ``subject``, without pytest."""
    tried = subject()
    return Report(tried.to_json(), tuple(tried.perform(item) for item in tried.items()))


def document(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON report. ``records``: a subject's keys and one of its results each.

    ``{"version", "kit", "quantdispatch", "python", "torch", "passed", "subjects": [{"name", "kind", "kit",
    "capabilities", "passed", "tiers": {tier: {outcome: count}}, "checks": [...]}]}``. ``passed`` is false where nothing
    was checked.
    """
    subjects: dict[str, dict[str, Any]] = {}
    for record in records:
        about = {key: value for key, value in record.items() if key != "result"}
        entry = subjects.setdefault(about["name"], {**about, "passed": False, "tiers": {}, "checks": []})
        entry["checks"].append(record["result"])
    for entry in subjects.values():
        outcomes = [check["outcome"] for check in entry["checks"]]
        entry["passed"] = "passed" in outcomes and all(outcome in GOOD for outcome in outcomes)
        for tier in TIERS:
            entry["tiers"][tier] = dict(Counter(c["outcome"] for c in entry["checks"] if c["tier"] == tier))
    return {
        "version": VERSION,
        "kit": KIT,
        "quantdispatch": __version__,
        "python": platform.python_version(),
        "torch": _torch(),
        "passed": bool(subjects) and all(entry["passed"] for entry in subjects.values()),
        "subjects": list(subjects.values()),
    }


def _torch() -> str:
    from importlib.metadata import version

    return version("torch")
