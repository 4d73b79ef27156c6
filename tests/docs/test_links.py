"""Links in Markdown lead to files and headings that are there, on the code host as on the site.

``make docs`` checks those within docs/ again, as the site has them; addresses of other sites are not asked.
"""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from doc_pages import ROOT
from markdown_it import MarkdownIt

DOCS = ROOT / "docs"


def sources() -> list[Path]:
    """Every page of the repository that is read as it stands: templates are not."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=False)
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name and "template" not in name]
    return [page for page in found or [ROOT / "README.md", *DOCS.rglob("*.md")] if page.is_file()]


def links(text: str) -> list[str]:
    """Of links and pictures."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                found.append(str(target))
    return found


def anchors(text: str) -> set[str]:
    """As the code host makes them of headings: lower case, dashes for spaces, no other punctuation."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    headings = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "heading_open"]
    found: set[str] = set()
    for heading in headings:
        words = "".join(child.content for child in heading.children or () if child.type in ("text", "code_inline"))
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        number, taken = 0, slug
        while taken in found:
            number += 1
            taken = f"{slug}-{number}"
        found.add(taken)
    return found


def broken(page: Path) -> list[str]:
    """Links of the page that lead nowhere."""
    text = page.read_text(encoding="utf-8")
    found = []
    for link in links(text):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.exists():
            found.append(link)
        elif parts.fragment and target.suffix == ".md" and parts.fragment not in anchors(target.read_text()):
            found.append(link)
    return found


@pytest.mark.parametrize("page", sources(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


@pytest.mark.parametrize("link", ["none.md", "#nowhere", "other.md#nowhere", "folder/none.md"])
def test_a_broken_link_is_found(link: str, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Here\n\n## Two words, and `code`\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n[good](other.md#two-words-and-code) [bad]({link}) <https://example.org>\n")
    assert broken(page) == [link]


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^([\w/-]+\*?)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = [
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md") if path.name != "index.md"
    ]
    fragments = {page for page in pages if page.startswith("changes/")}
    assert [page for page in pages if page not in fragments and not any(fnmatch(page, name) for name in listed)] == []
