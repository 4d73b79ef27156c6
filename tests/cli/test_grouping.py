"""Layers are gathered by what was decided for many of them at once, and it comes to the same as one by one."""

from __future__ import annotations

from pathlib import Path

import tiny_plans as tiny
from planning import soft, tiny_registry  # noqa: F401

from quantdispatch.cli.grouping import Group, groups


def told(group: Group) -> object:
    kernels = [(answer.kernel.name, answer.chosen, answer.counts) for answer in group.kernels()]
    counts = group.stored(), group.ignored(), group.targets(), group.failures(), group.remedies()
    return group.names, group.first, len(group), counts, kernels


def test_as_one_by_one(tmp_path: Path) -> None:
    """Layers with targets and ignore entries of their own names, with one kernel for several shapes, and that fail."""
    names = [f"m.{i}.{part}" for i in range(4) for part in ("up", "down")]
    group = tiny.config()["quantization_config"]["config_groups"]["group_0"]
    weights = {**group["weights"], "symmetric": False}  # of which there are no zero points
    config = tiny.config(
        config_groups={
            "group_0": {**group, "targets": ["Linear", "m.1.up", "m.2.up"]},
            "bad": {**group, "targets": ["re:.*bad"], "weights": weights},
        },
        ignore=["n.0", "n.1", "re:o.*"],
    )
    tensors = tiny.layers(*names, "m.0.bad", "m.1.bad")
    for name in ("n.0", "n.1", "o.0", "o.1"):
        tensors.update(tiny.dense(name))
    layers = soft(tmp_path, config, tensors).layers
    found, expected = groups(layers), groups(dict(layers))
    assert [told(group) for group in found] == [told(group) for group in expected]
    assert sum(map(len, found)) == len(layers)
    named = {tuple(group.names) for group in found}
    assert {("m.0.bad", "m.1.bad"), ("n.0", "n.1", "o.0", "o.1")} <= named
    (usual,) = (group for group in found if "m.1.up" in group.names)
    assert usual.targets() == {("Linear", "group_0"): 6, ("m.1.up", "group_0"): 1, ("m.2.up", "group_0"): 1}
    assert found[-1].ignored() == {"n.0": 1, "n.1": 1, "re:o.*": 2} and found[0].first.error is not None
