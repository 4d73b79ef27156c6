"""The pages made of code are what the code gives, and everything public has words of its own."""

from __future__ import annotations

import pytest

import quantdispatch
from docs.generate import api, command_line, hooks
from docs.generate.pages import DOCS, MAKERS, pages


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run: python -m docs.generate"


def test_everything_public_is_documented() -> None:
    assert api.undocumented() == []


def test_every_command_and_option_is_documented() -> None:
    assert command_line.undocumented() == []


def test_every_public_name_has_an_entry() -> None:
    text = pages()["api.md"]
    assert [name for name in quantdispatch.__all__ if name != "__version__" and f"\n### {name}\n" not in text] == []


def test_every_hook_has_a_section_and_words() -> None:
    text = pages()["hooks.md"]
    assert len(hooks.specs()) >= 4
    for name, spec in hooks.specs().items():
        assert f"\n## {name}\n" in text and (spec.__doc__ or "").strip()


class _Plain:
    """Words."""

    def said(self) -> None:
        """Words."""

    def silent(self) -> None:
        return None

    @property
    def hidden(self) -> int:
        return 1


def test_what_has_no_docstring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _Plain.__module__ = "quantdispatch.sample"
    monkeypatch.setattr(api, "public", lambda: iter([("quantdispatch", "Plain", _Plain)]))
    assert api.undocumented() == ["quantdispatch.Plain.silent", "quantdispatch.Plain.hidden"]
