"""``python -m benchmarks [NAME ...] [--json FILE]``: run some or all measurements and print them as tables.

``python -m benchmarks presets|minilm|front_page|vllm_decode|cpu_page [OPTIONS]`` writes a page of docs/ each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: these write a page of docs/ each and have options of their own
PAGES = ("presets", "minilm", "front_page", "vllm_decode", "cpu_page")
NAMES = (
    "startup",
    "plugin_collection",
    "resolve",
    "plan_scale",
    "rule_checks",
    "memory",
    "agreement",
    "decode",
    "end_to_end",
    "moe",
    "cpu_linear",
    "cpu_moe",
)


def show(console: Console, name: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=name)
    for row in rows:
        table.add_row(*(_text(key, row.get(key)) for key in columns))
    console.print(table)


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key.endswith("_bytes"):
        return f"{value / 1e6:.1f} MB"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    if sys.argv[1:] and sys.argv[1] in PAGES:
        importlib.import_module(f".{sys.argv[1]}", __package__).main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (all), or {' or '.join(PAGES)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    console, results = Console(width=140), {}
    for name in options.names or NAMES:
        results[name] = importlib.import_module(f".{name}", __package__).measure()
        show(console, name, results[name])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
