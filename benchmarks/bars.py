"""Bars as an SVG file, of text alone: the same bytes on every machine, readable on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

ROW, LABEL, WIDTH, GAP = 22, 240, 250, 90
OURS, OTHERS, TEXT = "#2a7de1", "#9aa4b1", "#7d8590"


def bars(labels: Sequence[str], panels: Mapping[str, Sequence[float | None]], marked: Sequence[bool]) -> str:
    """A panel for each entry of ``panels`` (title to one value a label), side by side; ``None`` is no bar,
    ``marked`` ones stand out."""
    width = LABEL + len(panels) * (WIDTH + GAP)
    height = (len(labels) + 2) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="12" fill="{TEXT}" role="img">',
        f"<title>{escape(', '.join(panels))}</title>",
    ]
    for number, label in enumerate(labels):
        parts.append(f'<text x="{LABEL - 8}" y="{_middle(number)}" text-anchor="end">{escape(label)}</text>')
    for panel, (title, values) in enumerate(panels.items()):
        left = LABEL + panel * (WIDTH + GAP)
        parts.append(f'<text x="{left}" y="{ROW - 6}" font-weight="bold">{escape(title)}</text>')
        longest = max(value for value in values if value is not None)
        for number, (value, ours) in enumerate(zip(values, marked, strict=True)):
            if value is None:
                continue
            length = round(WIDTH * value / longest, 1)
            colour = OURS if ours else OTHERS
            top = (number + 1) * ROW + 3
            parts.append(f'<rect x="{left}" y="{top}" width="{length}" height="{ROW - 6}" fill="{colour}"/>')
            parts.append(f'<text x="{left + length + 5}" y="{_middle(number)}">{value:.3g}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _middle(number: int) -> float:
    return (number + 1) * ROW + 15
