"""``python -m docs.generate``: write the pages. A test says when they are stale."""

from __future__ import annotations

from .pages import DOCS, pages

for name, text in pages().items():
    path = DOCS / name
    changed = not path.exists() or path.read_text(encoding="utf-8") != text
    if changed:
        path.write_text(text, encoding="utf-8")
    print(f"{path}: {'written' if changed else 'as it was'}")
