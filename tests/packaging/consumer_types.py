"""The public interface as a type checker sees it in the installed package.

``python tests/packaging/consumer_types.py PYTHON [OPTION OF MYPY]...`` checks, strictly, the code in ``consumer`` by
what ``PYTHON`` has installed: ``right.py`` has no error, and ``wrong.py`` has the errors that its comments say.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "consumer"
FILES = (FOLDER / "right.py", FOLDER / "wrong.py")
Place = tuple[str, int, str]
EXPECTED = re.compile(r"  # error: ([\w-]+)$")
REPORTED = re.compile(r"(.*?):(\d+): error: .*\[([\w-]+)\]$")


def expected(files: Iterable[Path]) -> set[Place]:
    """File, line and kind of every error that a comment says."""
    return {
        (file.name, number, found[1])
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if (found := EXPECTED.search(line))
    }


def reported(output: str) -> set[Place]:
    """The same of every error in mypy's output."""
    matches = (REPORTED.match(line) for line in output.splitlines())
    return {(Path(found[1]).name, int(found[2]), found[3]) for found in matches if found}


def main(python: str, *options: str) -> int:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, *options, *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True)
    wanted, found = expected(FILES), reported(done.stdout)
    if found != wanted or not wanted or done.returncode != 1:
        print(done.stdout + done.stderr)
        print(f"not reported: {sorted(wanted - found)}; reported, and not expected: {sorted(found - wanted)}")
        return 1
    print(f"types of the public interface: right.py has no error, and wrong.py the {len(wanted)} that it should")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
