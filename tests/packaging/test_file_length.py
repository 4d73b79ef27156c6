"""No file is over 400 lines without a reason."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 400
#: files that are longer all the same, and why
LONGER: dict[str, str] = {}
FOLDERS = ("registry numerics schemes backends engines cli testing tests examples benchmarks plugins").split()
#: .json, .toml and the like are data, docs/*.md are generated
SUFFIXES = {".py", ".cpp", ".h", ".inl"}


def test_files_are_short() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
    assert len(files) > 300
    hidden = ("build", ".venv", "data", "node_modules")
    lengths = {
        file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in files
        if not set(hidden) & set(file.relative_to(ROOT).parts)
    }
    assert {name for name, lines in lengths.items() if lines > LIMIT} == set(LONGER)
