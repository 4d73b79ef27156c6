"""Sphinx's configuration: the pages are Markdown, read as the code host reads them, and nothing is imported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
project_copyright = "the quantdispatch authors, Apache-2.0"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["generate", "changes"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False

# `page.md#a-heading` works as it does on the code host, down to the headings that are linked to. A link that leads
# nowhere is a warning, and `make docs` makes every warning an error.
myst_heading_anchors = 4
# ```console and the like are coloured; a block whose text is no program of its language is no fault of the page.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

_LINK = re.compile(r"\[([^\]\n]+)\]\(([\w./-]+)(?:#[\w-]*)?\)")


def _inside(app: Any, name: str, content: list[str]) -> None:
    """Files outside of docs/ are copied into the site and linked to, but folders and pages there have no place in it:
    of a link to one the words are left. On the code host it leads there, as tests/docs/test_links.py checks."""
    docs = Path(app.srcdir)
    folder = (docs / name).parent

    def words(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        outside = not target.is_relative_to(docs)
        return found[1] if outside and (target.is_dir() or target.suffix == ".md" and target.exists()) else found[0]

    content[0] = _LINK.sub(words, content[0])


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _inside)
