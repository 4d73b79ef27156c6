"""What tests of dispatch are written with: tables of decisions, their mutation check, static checks of rules, and the
conformance kit for schemes and backends.

``docs/testing.md`` describes the tables. Importing this package imports neither torch nor pytest nor the registry:
every name below is looked up when it is first used, because pytest loads the plugin in every project beside it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checking import RowMismatch as RowMismatch
    from .checking import check_row as check_row
    from .conformance import BackendConformance as BackendConformance
    from .conformance import Layer as Layer
    from .conformance import SchemeConformance as SchemeConformance
    from .conformance import layer as layer
    from .conformance import run_conformance as run_conformance
    from .explained import rows_from_explain as rows_from_explain
    from .mutating import Mutation as Mutation
    from .mutating import MutationSurvived as MutationSurvived
    from .mutating import check_mutations as check_mutations
    from .mutating import mutations as mutations
    from .parametrize import dispatch_table as dispatch_table
    from .registries import registry_with as registry_with
    from .registries import using_registry as using_registry
    from .rows import Row as Row
    from .rows import TableError as TableError
    from .static import assert_rules_clean as assert_rules_clean
    from .static import check_rules as check_rules
    from .tables import Table as Table
    from .tables import load_table as load_table
    from .toml_text import to_toml as to_toml

_HOME = {
    **dict.fromkeys(("Row", "TableError"), "rows"),
    **dict.fromkeys(("Table", "load_table"), "tables"),
    **dict.fromkeys(("RowMismatch", "check_row"), "checking"),
    **dict.fromkeys(("Mutation", "MutationSurvived", "check_mutations", "mutations"), "mutating"),
    **dict.fromkeys(("registry_with", "using_registry"), "registries"),
    **dict.fromkeys(("assert_rules_clean", "check_rules"), "static"),
    **dict.fromkeys(("BackendConformance", "Layer", "SchemeConformance", "layer", "run_conformance"), "conformance"),
    "dispatch_table": "parametrize",
    "rows_from_explain": "explained",
    "to_toml": "toml_text",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # or a checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
