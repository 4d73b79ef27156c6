"""Config against stored tensors: where both speak, the tensors decide, and what they decide is said.

The tensors were written by what the writer meant; names in a config may have been meant for other software (a module
renamed at run time, a suffix, a parent). A contradiction that such a renaming explains is reported with the mapping;
any other is an error that names the tensors.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from .args import QuantArgs
from .config_models import ConfigGroup
from .errors import CheckpointError, ConfigError
from .modules import LINEAR, Module, in_tower, is_head, quantized_names
from .patterns import PatternBudget
from .stored_tensors import Described
from .targets import TargetIndex

#: what modules are wrapped in, or tensors are called, by software that names them differently
_TAILS = (".weight", ".linear", ".base_layer", ".inner")
#: what stands before a language model's own names in one software and not in another
_HEADS = (
    "model.",
    "language_model.",
    "model.language_model.",
    "language_model.model.",
    "model.visual.",
    "transformer.",
)
_SUFFIXES_TRIED = 6


def check_left_dense(module: Module, ignored_by: str | None, more: Container[str] = ()) -> None:
    """A layer that the config leaves alone must be stored dense. Raises ``CheckpointError`` naming what is not.

    ``more``: see :func:`.modules.quantized_names`.
    """
    names = quantized_names(module.tensors, more)
    if names:
        by = (
            f"the config ignores it by {ignored_by!r}"
            if ignored_by is not None
            else "no target of the config matches it"
        )
        raise CheckpointError(
            f"{by}, but its stored tensors are quantized: {_with_dtypes(names, module.tensors)}", layer=module.name,
            field=names[0], observed=_with_dtypes(names, module.tensors), required="an unquantized weight",
            remedy="remove the ignore entry" if ignored_by is not None else "add its name to the targets of its group",
            code="QD651",
        )  # fmt: skip


def is_stored_dense(tensors: Mapping[str, Described]) -> bool:
    """Are the tensors at hand those of an unquantized layer?"""
    return "weight" in tensors and not quantized_names(tensors)


def check_stored_quantized(module: Module, group: ConfigGroup, target: str | None) -> None:
    """Raises ``CheckpointError`` for a layer that the config quantizes and the file stores dense."""
    if group.weights is not None and module.tensors and is_stored_dense(module.tensors):
        raise CheckpointError(
            f"group {group.name} quantizes it to {group.weights.describe()} (target {target!r}), but it is stored "
            f"dense: {_with_dtypes(['weight'], module.tensors)}",
            layer=module.name, field="weight", observed=_with_dtypes(["weight"], module.tensors),
            required=group.weights.describe(),
            remedy="add its name to the config's ignore list if it is meant to stay dense", code="QD652",
        )  # fmt: skip


def check_owned(module: Module, known: Iterable[str], scheme: str) -> None:
    """Raises ``CheckpointError`` for tensors of a quantized layer that its scheme does not use."""
    left = sorted(set(module.tensors).difference(known, ("bias",)))
    if left:
        raise CheckpointError(
            f"{scheme} has no use for stored {_with_dtypes(left, module.tensors)}", layer=module.name, field=left[0],
            observed=_with_dtypes(left, module.tensors), required=f"only {', '.join(sorted(known))}",
            remedy="the config does not describe these tensors: compare its args with how the layer was quantized",
            code="QD653",
        )  # fmt: skip


def check_never_quantized(module: Module, more: Container[str] = ()) -> None:
    """Raises ``CheckpointError`` for quantized tensors of a module that is no Linear, Embedding or attention."""
    names = quantized_names(module.tensors, more)
    if names:
        raise CheckpointError(
            f"no layer consumes {_with_dtypes(names, module.tensors)}: the module has no weight matrix of its own",
            layer=module.name, field=names[0], observed=_with_dtypes(names, module.tensors),
            required="a weight matrix beside it",
            remedy="if it is a Linear, its weight or weight_packed is missing: look for a missing shard"
            if "weight" not in module.tensors else "if it is a Linear under another name, say so with modules=",
            code="QD653",
        )  # fmt: skip


def infer_format(module: Module, group: ConfigGroup, path: str) -> str:
    """The format of a group that names none, from how its layer is stored.

    Raises ``ConfigError`` when there are no tensors or they fit no format.
    """
    weights, tensors = group.weights, module.tensors
    found = None if weights is None else _stored_format(weights, tensors)
    if found is None:
        where = f"{path + '.' if path else ''}config_groups.{group.name}.format"
        told = (
            f"{_with_dtypes(sorted(tensors), tensors)} do not tell it" if tensors else "there are no tensors to tell it"
        )
        raise ConfigError(
            f"the config names no format for group {group.name}, and {told}", layer=module.name,
            field=where, observed="none", required="a format, e.g. 'pack-quantized'",
            remedy="add the format to the group, or give the folder with the weights", code="QD507",
        )  # fmt: skip
    return found


def _stored_format(weights: QuantArgs, tensors: Mapping[str, Described]) -> str | None:
    def dtype(name: str) -> str | None:
        return tensors[name].dtype if name in tensors else None

    if dtype("weight_packed") == "I32" and weights.type == "int":
        return "pack-quantized"
    if dtype("weight_packed") == "U8" and weights.type == "float":
        mx = weights.group_size == 32
        return f"mxfp{weights.num_bits}-pack-quantized" if mx else "nvfp4-pack-quantized"
    if dtype("weight") == "F8_E4M3":
        return "mxfp8-quantized" if dtype("weight_scale") in ("U8", "F8_E8M0") else "float-quantized"
    if dtype("weight") == "I8":
        return "int-quantized"
    return "dense" if dtype("weight") in ("BF16", "F16", "F32") and "weight_scale" in tensors else None


class Namespaces:
    """Explains layers that are stored dense by ignore entries that were meant for them under other names.

    ``budget``: of the plan's regular expressions.
    """

    def __init__(self, unmatched: Sequence[str], budget: PatternBudget | None = None) -> None:
        self._exact: dict[str, str] = {}
        for entry in unmatched:
            if not entry.startswith("re:"):
                for form in _without_tail(entry):
                    self._exact.setdefault(form, entry)
        regexes = [entry for entry in unmatched if entry.startswith("re:")]
        self._regexes = TargetIndex([], regexes, budget=budget) if regexes else None
        # words of an entry, from its end: "model.visual.blocks.0.attn" is also known by "blocks.0.attn"
        self._by_end = {end: entry for entry in self._exact.values() for end in _ends(entry)}

    def explain(self, names: Iterable[str]) -> dict[str, str]:
        """The unmatched entries that account for modules, by the modules' names; those that none accounts for are not
        among them. Raises ``ConfigError`` when a regular expression runs out of time."""
        found: dict[str, str] = {}
        signs: dict[str | bytes, list[str]] = {}  # names that differ in numbers are mostly one to regular expressions
        for name in names:
            entry = self._by_exact_names(name) if self._exact else None
            if entry is not None:
                found[name] = entry
            elif self._regexes is not None:
                signs.setdefault(self._regexes.sign(name), []).append(name)
        rest = {alike[0]: _aliases(alike[0]) for alike in signs.values()}
        by_regex: dict[str, str] = {}
        while rest and self._regexes is not None:
            aliases = {name: alias for name, left in rest.items() if (alias := next(left, None)) is not None}
            answers = self._regexes.match_many(list(aliases.values()), repeat(LINEAR, len(aliases)))
            for name, answer in zip(aliases, answers, strict=True):
                if answer.ignored_by is not None:
                    by_regex[name] = answer.ignored_by
            rest = {name: rest[name] for name in aliases if name not in by_regex}
        for first, *others in signs.values():
            if first in by_regex:
                found.update(dict.fromkeys((first, *others), by_regex[first]))
        return found

    def _by_exact_names(self, name: str) -> str | None:
        for form in _without_tail(name):
            for end in (form, *_suffixes(form)):  # the entry is the name without what stands before it
                if end in self._exact:
                    return self._exact[end]
            for head in _HEADS:  # the entry has more before it
                if head + form in self._exact:
                    return self._exact[head + form]
            for end in _ends(form):  # both have something before it
                entry = self._by_end.get(end)
                # layer 3 of a vision tower is not layer 3 of the language model
                if entry is not None and in_tower(entry) == in_tower(name):
                    return entry
        parent = name.rpartition(".")[0]
        while parent:  # the entry names a parent, which ignores nothing by itself
            if parent in self._exact:
                return self._exact[parent]
            parent = parent.rpartition(".")[0]
        if is_head(name):  # the head goes by several names, and there is one head
            for form, entry in self._exact.items():
                if is_head(form):
                    return entry
        return None


def mapping(entry: str, name: str) -> str:
    """In words, how ``entry`` has to be read to mean ``name``: ``"model.visual.* -> visual.*"``."""
    if entry.startswith("re:"):
        return f"{entry} with another prefix -> {name}"
    if name.startswith(entry + "."):
        return f"{entry} -> {entry}.*"
    ours, theirs = name.split("."), entry.split(".")
    for tail in _TAILS:
        if tail[1:] in (ours[-1], theirs[-1]) and ours[-1] != theirs[-1]:
            return f"{entry} -> {name}"
    common = len(os.path.commonprefix(["\0".join(p) + "\0" for p in (ours[::-1], theirs[::-1])]).split("\0")) - 1
    before, after = ".".join(theirs[: len(theirs) - common]), ".".join(ours[: len(ours) - common])
    return f"{before + '.' if before else ''}* -> {after + '.' if after else ''}*"


def _aliases(name: str) -> Iterator[str]:
    """Other names that a module may have had when the config was written."""
    yield from _suffixes(name)
    for end in (name, *_suffixes(name)):
        yield from (head + end for head in _HEADS)


def _without_tail(name: str) -> Iterator[str]:
    yield name
    for tail in _TAILS:
        if name.endswith(tail):
            yield name.removesuffix(tail)


def _suffixes(name: str) -> Iterator[str]:
    """The name without its first part, without its first two, ..."""
    for _ in range(_SUFFIXES_TRIED):
        _, dot, name = name.partition(".")
        if not dot:
            return
        yield name


def _ends(name: str) -> Iterator[str]:
    """Suffixes that identify a layer: they keep a layer number, so ``blocks.0.attn`` and never ``attn`` alone."""
    for end in _suffixes(name):
        parts = end.split(".")
        if len(parts) >= 3 and any(part.isdigit() for part in parts):
            # up to the first number nothing else can be cut off
            yield end
            if parts[1].isdigit():
                return


def _with_dtypes(names: Sequence[str], tensors: Mapping[str, Described]) -> str:
    return ", ".join(f"{name} ({tensors[name].dtype} {list(tensors[name].shape)})" for name in names)
