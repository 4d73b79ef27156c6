"""The reader of pages: what it takes for a step, and that a wrong output is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import Step, matches, steps

PAGE = """\
# A page

<!-- file: a/config.json -->
```json
{}
```

* in a list

    <!-- exits with 1 -->
    ```console
    $ one --option
    error: ...
    $ two
    ```

```python
x = 1
```

<!-- continues -->
```python
print(x)
```

<!-- prints -->
```text
1
```

```
only to be read
```
"""


def test_steps_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert [(s.kind, s.text, s.path, s.prints, s.code) for s in steps(tmp_path / "page.md")] == [
        ("file", "{}\n", "a/config.json", None, 0),
        ("command", "one --option", "", "error: ...", 1),
        ("command", "two", "", None, 1),
        ("python", "x = 1\n", "", None, 0),
        ("python", "x = 1\n\nprint(x)\n", "", "1\n", 0),
    ]


def test_a_directive_counts_for_the_next_block_only(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- exits with 1 -->\n\nwords\n\n```console\n$ one\n```\n")
    (step,) = steps(tmp_path / "page.md")
    assert step == Step("command", "one", step.line)


@pytest.mark.parametrize("page", ["<!-- prints -->\n```text\n1\n```\n", "<!-- exits with 1 -->\n```text\n1\n```\n"])
def test_a_directive_that_belongs_to_nothing_is_an_error(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(ValueError, match=r"page\.md:\d"):
        steps(tmp_path / "page.md")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a", "a\nb\n", False),
        ("a\n...", "a\nb\nc\n", True),
        ("a\n...", "a\n", True),
        ("...\nc", "a\nb\nc\n", True),
        ("...\nd", "a\nb\nc\n", False),
        ("a ... c", "a b c\n", True),
        ("a ... c", "a b\nc\n", False),
        ("a.c", "abc\n", False),
        ("cpu (avx2, 2 threads)", "cpu (avx512, 64 threads)\n", True),
        ("rules/x.py:16", "rules/x.py:20\n", True),
        ("rules/x.py:16", "rules/y.py:16\n", False),
        ("10.0 tokens/s", "7 tokens/s\n", True),
        ("a    b", "a b", True),
    ],
)
def test_what_is_printed_is_compared(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
