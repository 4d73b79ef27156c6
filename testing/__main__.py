"""``python -m quantdispatch.testing``: rows from what ``explain --json`` says."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ..registry.errors import QuantDispatchError


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 when the input is not what it should be, with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m quantdispatch.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    rows = commands.add_parser(
        "rows", help="a dispatch table, on standard output, that expects what `quantdispatch explain --json` says"
    )
    rows.add_argument("document", nargs="?", default="-", help="its output, as a file; standard input when left out")
    rows.add_argument("--json", action="store_true", dest="as_json", help="the table as JSON")
    given = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if given.document == "-" else _read(given.document)
        sys.stdout.write(_table(text, given.as_json))
    except (ValueError, OSError, QuantDispatchError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _table(text: str, as_json: bool) -> str:
    from .explained import rows_from_explain
    from .toml_text import to_toml

    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    found = rows_from_explain(document)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    if not found.rows:
        raise ValueError("no layer whose outcome follows from its facts: there is nothing to write")
    if as_json:
        return json.dumps({"defaults": dict(found.defaults), "row": list(found.rows)}, indent=1) + "\n"
    return to_toml(found.rows, defaults=found.defaults)


if __name__ == "__main__":
    sys.exit(main())
