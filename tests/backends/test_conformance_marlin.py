"""Marlin's kernels, held against the conformance kit: planned for a GPU, on stand-ins that compute from the layout.
What the real ops make of it only a GPU can say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import marlin_providers

from quantdispatch.backends.marlin import linear, providers
from quantdispatch.testing import BackendConformance


class Marlin(BackendConformance):
    backend = "marlin"
    device = "cuda:sm90"
    environment = {"vllm": "0.32.0", "sglang": "0.5.23"}
    probed = False
    provider = ""
    most_layers = 16
    most_samples = 2
    capabilities = {"bfloat16", "float16", "bias", "blocks", "float-weights", "g-idx", "odd-shapes", "zero-points"}

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        adapter = marlin_providers.made(self.provider)
        with (
            patch.object(linear, "adapter", lambda name: adapter),
            patch.object(providers, "adapter", lambda n: adapter),
        ):
            yield


class TestVllm(Marlin):
    kernels = ("marlin/vllm",)
    provider = marlin_providers.RELEASES[-1]


class TestSglang(Marlin):
    kernels = ("marlin/sglang",)
    provider = "sglang"
