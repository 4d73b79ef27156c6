"""Tools of the extras that have no package for every platform: absent there a step says so, elsewhere it fails.

``python tests/support/optional_tools.py jscpd`` ends with status 0 where the tool is installed, 1 where it is missing
and 3 where there is none for this platform; the last two with a line that says so.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED, MISSING, NONE_HERE = 0, 1, 3


def asked_for(name: str, environment: dict[str, str] | None = None) -> tuple[str, bool]:
    """The extra that asks for the distribution, and whether it does so on this platform, or in ``environment``."""
    for extra, lines in PROJECT["optional-dependencies"].items():
        for requirement in map(Requirement, lines):
            if requirement.name == name:
                return extra, requirement.marker is None or requirement.marker.evaluate(environment)
    raise LookupError(f"no extra of pyproject.toml asks for {name}")


def state(name: str) -> tuple[int, str]:
    """One of the three states, and a line about it."""
    extra, wanted = asked_for(name)
    try:
        return INSTALLED, f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        if wanted:
            return MISSING, f"{name} is missing: pip install 'quantdispatch[{extra}]'"
    return NONE_HERE, f"NOT RUN: {name} has no package for this platform or this Python"


if __name__ == "__main__":
    status, line = state(sys.argv[1])
    if status != INSTALLED:
        print(line)
    sys.exit(status)
