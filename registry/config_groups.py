"""Reading one entry of ``config_groups``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .args import QuantArgs
from .config_models import MIXED_PRECISION, NAIVE, ConfigGroup
from .config_reading import Notes, check_no_cache, join, read_args, read_optional_string, read_strings, show, wrong
from .errors import ConfigError
from .presets import PRESETS, preset

KNOWN_FORMATS = frozenset(
    {
        "dense",
        "int-quantized",
        "float-quantized",
        NAIVE,
        "pack-quantized",
        MIXED_PRECISION,
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp6-pack-quantized",
        "mxfp8-quantized",
    }
)
SPARSE_FORMATS = frozenset({"sparse-24-bitmask", "sparse-bitmask", "marlin-24"})

_GROUP_KEYS = frozenset({"targets", "weights", "input_activations", "output_activations", "format"})
_INPUT_STRATEGIES = ("token", "tensor", "group", "tensor_group", "attn_head")


def read_groups(raw: Any, path: str, notes: Notes) -> tuple[ConfigGroup, ...]:
    """All groups, in the order of the file. Raises ``ConfigError`` with the key path of what cannot be read."""
    if raw is None:
        return ()
    if not isinstance(raw, Mapping):
        raise wrong(path, raw, "an object of groups")
    groups = []
    for name, value in raw.items():
        if not isinstance(name, str):
            raise wrong(path, name, "group names that are strings")
        groups.append(_read_group(name, value, join(path, name), notes))
    _report_shared_targets(groups, path, notes)
    return tuple(groups)


def _read_group(name: str, raw: Any, path: str, notes: Notes) -> ConfigGroup:
    if isinstance(raw, (list, tuple)):
        return _read_preset(name, raw, path, notes)
    if not isinstance(raw, Mapping):
        raise wrong(path, raw, "an object, or a list of targets when the group's name is a preset")
    check_no_cache(raw, path, "a group")
    notes.unknown_keys(raw, _GROUP_KEYS, path)
    if "targets" not in raw:
        raise wrong(join(path, "targets"), None, "a list of strings", message="missing", remedy='e.g. ["Linear"]')
    group = ConfigGroup(
        name=show_name(name),
        targets=read_strings(raw["targets"], join(path, "targets")),
        weights=read_args(raw.get("weights"), join(path, "weights"), notes),
        inputs=read_args(raw.get("input_activations"), join(path, "input_activations"), notes),
        outputs=read_args(raw.get("output_activations"), join(path, "output_activations"), notes),
        format=read_format(raw.get("format"), join(path, "format"), notes),
    )
    _check_group(group, path, notes)
    return group


def show_name(name: str) -> str:
    """The group's name, printable."""
    return join("", name)


def _read_preset(name: str, raw: Any, path: str, notes: Notes) -> ConfigGroup:
    scheme = preset(name)
    targets = read_strings(raw, path)
    if scheme is None:
        import difflib  # only misspelt names need it

        near = difflib.get_close_matches(name.upper(), PRESETS, n=3)
        raise ConfigError(
            f"{path}: a list of targets needs a preset as the group's name",
            field=path,
            observed=show(name),
            required=f"one of {', '.join(near)}" if near else f"a preset, e.g. {', '.join(list(PRESETS)[1:6])}",
            code="QD506",
        )
    if not targets:
        notes.problem("no-targets", path, "a preset without targets quantizes nothing")
    return ConfigGroup(
        name=show_name(name),
        targets=targets,
        weights=read_args(scheme.get("weights"), path, notes),
        inputs=read_args(scheme.get("input_activations"), path, notes),
        preset=name.upper(),
    )


def read_format(raw: Any, path: str, notes: Notes) -> str | None:
    """A format's name as compressed-tensors spells it. Raises ``ConfigError`` for one that stores sparse weights."""
    name = read_optional_string(raw, path)
    if name is None:
        return None
    name = name.strip().lower().replace("_", "-")
    if name in SPARSE_FORMATS:
        raise sparse_error(path, name)
    if name not in KNOWN_FORMATS and name not in notes.formats and name != "fakequant":
        notes.problem("unknown-format", path, f"unknown format {show(name)}; only a plugin can give it a meaning")
    return name


def sparse_error(path: str, name: str) -> ConfigError:
    return wrong(
        path,
        name,
        "a dense or quantized format",
        message=f"weights stored as {name} are sparse, which is not supported",
        remedy="decompress the checkpoint with the compressed-tensors release that wrote it and save it again",
    )


def _check_group(group: ConfigGroup, path: str, notes: Notes) -> None:
    """compressed-tensors' rules on which parts of a group go together."""
    if not group.targets:
        notes.problem("no-targets", join(path, "targets"), "a group without targets quantizes nothing")
    if group.format == MIXED_PRECISION:
        raise wrong(
            join(path, "format"), group.format, "the format of this group's tensors", message="not a group's format"
        )
    inputs, weights = group.inputs, group.weights
    if inputs is not None and inputs.strategy not in _INPUT_STRATEGIES:
        raise wrong(
            join(path, "input_activations.strategy"),
            inputs.strategy,
            f"one of {', '.join(_INPUT_STRATEGIES)}",
            message="not a strategy for activations",
        )
    for key, args in (("input_activations", inputs), ("output_activations", group.outputs)):
        if args is not None and args.actorder is not None:
            raise wrong(
                join(path, f"{key}.actorder"), args.actorder, "null", message="activations have no activation ordering"
            )
    if inputs is not None and weights is not None and _sizes_differ(weights, inputs):
        notes.problem(
            "group-sizes-differ",
            path,
            f"weights are grouped by {weights.group_size} and inputs of the same type by {inputs.group_size}",
        )


def _sizes_differ(weights: QuantArgs, inputs: QuantArgs) -> bool:
    return (
        weights.strategy == inputs.strategy == "group"
        and weights.group_size != inputs.group_size
        and (weights.num_bits, weights.type) == (inputs.num_bits, inputs.type)
    )


def _report_shared_targets(groups: list[ConfigGroup], path: str, notes: Notes) -> None:
    owner: dict[str, str] = {}
    for group in groups:
        for target in dict.fromkeys(group.targets):
            if target in owner:
                notes.problem(
                    "duplicate-target",
                    join(path, group.name),
                    f"target {show(target)} stands in {owner[target]} too; {group.name} counts, being the last",
                )
            owner[target] = group.name
