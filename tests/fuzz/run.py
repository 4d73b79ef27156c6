"""Coverage-guided fuzzing of all targets: ``python tests/fuzz/run.py --seconds 10``. ``make fuzz`` takes longer.

What is found stands in ``.cache/fuzz/<target>/`` as ``crash-...``: a file for ``tests/data/fuzz/<target>``, once it is
understood, which every run of the tests reads from then on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))


def command(name: str, *arguments: str, before: str = "") -> list[str]:
    """What fuzzes one target, with libFuzzer's options; ``before`` is code to run when the target is imported."""
    paths = [str(HERE), str(HERE.parent / "support"), str(ROOT)]
    call = f"fuzzing.fuzz({name!r}, sys.argv[1:], lambda: exec({before!r}, {{}}))"
    return [sys.executable, "-c", f"import sys; sys.path[:0] = {paths}; import fuzzing; {call}", *arguments]


def options(name: str, folder: Path, seconds: int, seed: int) -> list[str]:
    """Bounds for one input and for all, where to keep what is found, and the corpus: ``folder`` takes what is new."""
    return [
        *(f"-max_total_time={seconds}", f"-seed={seed}", "-timeout=20", "-rss_limit_mb=2000", "-max_len=8192"),
        *("-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={folder}{os.sep}"),
        *(str(folder), str(HERE.parent / "data" / "fuzz" / name)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=ROOT / ".cache" / "fuzz", help="where inputs are kept")
    wanted = parser.parse_args()
    failed = []
    for name in wanted.targets:
        folder = (wanted.corpus / name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        arguments = options(name, folder, wanted.seconds, wanted.seed)
        done = subprocess.run(command(name, *arguments), cwd=ROOT, capture_output=True, text=True, errors="replace")
        output = done.stdout + done.stderr
        tried = re.search(r"number_of_executed_units: *(\d+)", output)
        if done.returncode or not tried:
            failed.append(name)
            print(output)
        else:
            print(f"fuzzing {name}: {tried[1]} inputs in {wanted.seconds} s", flush=True)
    print("fuzzing: nothing found" if not failed else f"fuzzing: something found in {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
