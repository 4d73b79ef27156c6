"""The plugin as if it were installed, for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quantdispatch.testing import registry_with, using_registry


@pytest.fixture(scope="session")
def registry():
    return registry_with("quantdispatch_awq")


@pytest.fixture(autouse=True)
def _installed(registry) -> Iterator[None]:
    with using_registry(registry):
        yield
