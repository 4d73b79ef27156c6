"""A folder that is either whole or absent, however many processes make it at once and whenever one is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_KEPT = Path(__file__).resolve().parents[2] / ".cache" / "models"
#: models are written by the compressed-tensors that is installed: whoever tries several keeps them apart
DEFAULT_CACHE = Path(os.environ.get("QUANTDISPATCH_DEMO_MODELS") or _KEPT)


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, calling `make` with an empty folder beside it first if it is not there yet."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(partial)
        partial.chmod(0o755)  # mkdtemp makes it private
        os.rename(partial, folder)
    except OSError:
        if not folder.is_dir():
            raise
        # Another process was first; what it made is as good.
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
