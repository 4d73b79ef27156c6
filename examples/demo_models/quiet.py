"""Silence for the libraries that draw a progress bar for every step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod


@contextmanager
def quiet() -> Iterator[None]:
    """No bars of tqdm or transformers, and no warnings about odd shapes, which are made on purpose here."""
    import tqdm
    from transformers.utils import logging as transformers_logging

    plain = tqdm.tqdm.__init__
    level = logging.root.manager.disable
    bars = transformers_logging.is_progress_bar_enabled()
    tqdm.tqdm.__init__ = partialmethod(plain, disable=True)
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        if bars:
            transformers_logging.enable_progress_bar()
        tqdm.tqdm.__init__ = plain
