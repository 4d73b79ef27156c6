"""docs/hooks.md: what a plugin may implement, and what is promised about it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from quantdispatch.registry import hookspecs

from .api import markdown, signature

_POLICY = """\
## The version of this interface

It is {version}. A plugin says which one it was made for, by a line in the module that its entry point names:

```python
QUANTDISPATCH_API = {version}
```

Without that line, 1 is meant. A plugin for another version is refused as a whole, with a message that names both
numbers: `quantdispatch doctor` shows it, there is one warning, and `QUANTDISPATCH_STRICT=1` makes it an error. Half a
plugin is never loaded.

* The number stays when something is added: a hook, an optional argument, a field that predicates can test, an
  attribute with a default. A plugin that implements less goes on working.
* It goes up when a hook, an argument or an attribute is removed or renamed, or means something else. The release notes
  then say what to change.
* A hook that does not exist in the installed version is an error of the plugin, so a misspelled name is found at once.
"""


def specs() -> dict[str, object]:
    """Hook name to its specification, in the order of the file."""
    marked = f"{hookspecs.PROJECT}_spec"
    return {name: value for name, value in vars(hookspecs).items() if hasattr(value, marked)}


def page() -> Iterator[str]:
    yield from (
        "# Hooks",
        "",
        "What a plugin's module may implement, each with `@quantdispatch.hookimpl`.",
        "[Plugins](plugins.md) has examples.",
    )
    for name, spec in specs().items():
        yield from ("", f"## {name}", "", "```python", f"def {name}{signature(spec)}", "```", "")
        yield from markdown(inspect.getdoc(spec) or "")
    yield from ("", *_POLICY.format(version=hookspecs.API_VERSION).splitlines())
