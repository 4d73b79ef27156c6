"""The rule and its scheme, held against the conformance kit of ``quantdispatch.testing``."""

from __future__ import annotations

from quantdispatch.testing import SchemeConformance


class TestScheme(SchemeConformance):
    plugins = ("quantdispatch_asym_moe",)
    rules = ("wNa16_int-asymmetric-moe",)
    capabilities = {"zero-points", "experts"}
