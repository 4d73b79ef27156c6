"""Import every module of the installed quantdispatch. `.ci/run` does it from the wheel, far from the source tree."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import quantdispatch

if sys.prefix == sys.base_prefix or not str(quantdispatch.__file__).startswith(sys.prefix):
    sys.exit(f"this is not an installed package: {quantdispatch.__file__}")
#: what an extra brings, and which modules may want it
EXTRAS = {"triton": "quantdispatch.backends.triton.", "pytest": "quantdispatch.testing."}
left = []
names = [found.name for found in pkgutil.walk_packages(quantdispatch.__path__, "quantdispatch.")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if not name.startswith(EXTRAS.get(str(missing.name), "?")):
            raise
        left.append(name)
    except SystemExit as leaving:
        sys.exit(f"importing {name} ends the process (status {leaving.code}): guard what it runs by __name__")
print(f"imported {len(names) - len(left)} modules of {quantdispatch.__file__}; {len(left)} wait for an extra")
