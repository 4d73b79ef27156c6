"""What docs/testing.md shows is so."""

import re
from pathlib import Path

import sample_experts

from quantdispatch import testing
from quantdispatch.testing import check_mutations, load_table
from quantdispatch.testing.conformance import CAPABILITIES, KIT, TIERS, BackendConformance, SchemeConformance
from quantdispatch.testing.conformance.subject import Conformance
from quantdispatch.testing.rows import (
    CHECKPOINT_KEYS,
    CLAIMS,
    CONFIG_KEYS,
    EITHER,
    IN_PLAN_KEYS,
    LAYER_KEYS,
    OUTCOMES,
    PLACE_KEYS,
    PLAN_OUTCOMES,
    READERS,
)

TEXT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_example_holds_and_can_fail(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "example.toml"
    path.write_text(block)
    table = load_table(path)
    assert table.origin.plugins == (sample_experts.__name__,)
    check_mutations(table)


def test_every_key_is_described() -> None:
    groups = (LAYER_KEYS, CONFIG_KEYS, CHECKPOINT_KEYS, IN_PLAN_KEYS, PLACE_KEYS, OUTCOMES, PLAN_OUTCOMES, EITHER)
    keys = {"plugins", "defaults", "row", *READERS, *CLAIMS, *(key for group in groups for key in group)}
    assert not {key for key in keys if f"`{key}`" not in TEXT and f"`{key} " not in TEXT}


def test_every_capability_and_attribute_is_described() -> None:
    for name, words in CAPABILITIES.items():
        assert f"| `{name}` | {words} |" in TEXT
    described = set(re.findall(r"`(\w+)[`(]", TEXT))
    for kind in (BackendConformance, SchemeConformance):
        attributes = {name for name in kind.__annotations__ | Conformance.__annotations__ if not name.startswith("_")}
        assert attributes - {"checks", "kind"} <= described | {"kit"}
    assert {f"| `{tier}` |" for tier in TIERS} <= set(re.findall(r"\| `\w+` \|", TEXT)) and f'"{KIT}"' in TEXT


def test_every_name_that_is_exported_is_described() -> None:
    described = set(re.findall(r"`(\w+)[`(.]", TEXT)) | {
        name for line in re.findall(r"^from .* import (.*)$", TEXT, re.MULTILINE) for name in line.split(", ")
    }
    assert set(testing.__all__) - {"Row", "Table", "TableError", "Mutation", "MutationSurvived"} <= described
