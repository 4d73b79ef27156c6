"""The conformance kit: what a backend or a scheme has to do, as a class to subclass. See ``docs/testing.md``."""

from __future__ import annotations

from .backend import BackendConformance
from .checks import KIT, TIERS, Check, Item, Nonconformance, NotApplicable, Result
from .layers import CAPABILITIES, Layer, layer
from .report import Report, run_conformance
from .scheme import SchemeConformance

__all__ = [
    "CAPABILITIES",
    "KIT",
    "TIERS",
    "BackendConformance",
    "Check",
    "Item",
    "Layer",
    "Nonconformance",
    "NotApplicable",
    "Report",
    "Result",
    "SchemeConformance",
    "layer",
    "run_conformance",
]
