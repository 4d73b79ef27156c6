"""The rows of ``tests/data/errors/*.toml``: what lies in a folder, what is run, and what the error must name.

Each row provokes one code, through the command (``command``) or, where no command leads to it, by a function of
``error_calls`` (``python``, with the reason in ``because``). For each of the five parts it gives a text that the part
has to contain, or lists the part in ``absent``.

What the folder holds. ``block``: merged into quantization_config; ``config``: into config.json; ``text``: config.json
as it is; ``drop``: keys taken out of config.json, ``*`` for the file. ``layers``: name = kind, stored under that name;
``without``: tensors left out; ``tensors``: dtype and shape of more, zeros. ``weights``: none, pickled, twice or loop.
``cut``: bytes off the end of the file; ``raw``: the file as it is; ``weight_map``: an index. ``files``: further text
files. ``model``: a tiny model that transformers can build (a variant of the demo models, or ``experts``), with
``options``, to which all that is added; ``remove``: files of it; ``without`` then names beginnings.

What is run: ``command`` (explain unless given) with ``source`` (the folder unless given; ``{path}`` is the folder) and
``arguments``. ``environment``: variables; ``missing``: packages that are not installed; ``plugin``: the source of an
installed plugin's module.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny

import quantdispatch.backends.cpu.native.library as library
import quantdispatch.registry.kernels as kernels
import quantdispatch.registry.registry as registry
from quantdispatch.registry.error_parts import PARTS
from quantdispatch.registry.errors import QuantDispatchError

Case = dict[str, Any]
Make = Callable[..., Path]
FOLDER = Path(__file__).parents[1] / "data/errors"
CASES: list[Case] = [
    {**case, "at": f"{case['code']}-{path.stem}-{number}"}
    for path in sorted(FOLDER.glob("*.toml"))
    for number, case in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["case"])
]
PROMPT = ["--prompt", "x", "--max-new-tokens", "1"]


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


def written(case: Case, path: Path, make: Make | None = None) -> Path:
    """The checkpoint that a row describes."""
    if "model" in case:
        return _changed(case, path, make)
    path.mkdir()
    config = merged(tiny.config(), {**case.get("config", {}), "quantization_config": _block(case)})
    _write_config(case, path, config)
    if case.get("weights") == "none":
        return path
    tensors: dict[str, Any] = {}
    for name, kind in case.get("layers", {"m.q_proj": "int4"}).items():
        tensors |= getattr(tiny, kind)(name)
    tensors = {k: v for k, v in {**tensors, **case.get("tensors", {})}.items() if k not in case.get("without", [])}
    several = "weight_map" in case or case.get("weights") == "twice"
    file = path / ("b.safetensors" if several else "model.safetensors")
    if case.get("weights") == "pickled":
        (path / "pytorch_model.bin").write_bytes(b"PK")
        return path
    if case.get("weights") == "loop":
        file.symlink_to(file.name)
        return path
    if case.get("weights") == "twice":
        tiny.save(path / "a.safetensors", tensors, tiny.shapes(tensors))
    tiny.save(file, tensors, tiny.shapes(tensors))
    if "cut" in case:
        file.write_bytes(file.read_bytes()[: -case["cut"]])
    if "raw" in case:
        file.write_text(case["raw"])
    if "weight_map" in case:
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": case["weight_map"]}))
    return path


def _block(case: Case) -> Any:
    """``many_ignored``: so many regular expressions are ignored as well."""
    block: dict[str, Any] = case.get("block", {})
    many = [f"re:layer{number}$" for number in range(case.get("many_ignored", 0))]
    return {**block, "ignore": many} if many else block


def _write_config(case: Case, path: Path, config: Any) -> None:
    dropped = case.get("drop", [])
    text = case.get("text", json.dumps({k: v for k, v in config.items() if k not in dropped}))
    if "*" not in dropped:
        (path / "config.json").write_text(text, encoding="utf-8")
    for name, content in case.get("files", {}).items():
        (path / name).write_text(content, encoding="utf-8")


def _changed(case: Case, path: Path, make: Make | None) -> Path:
    """A copy of a tiny model, with changes."""
    import torch
    from safetensors.torch import load_file, save_file

    from quantdispatch.engines.tensors import DTYPES

    if case["model"] == "experts":
        _experts(path)
    else:
        assert make is not None
        shutil.copytree(make(case["model"], **case.get("options", {})), path)
    raw = json.loads((path / "config.json").read_text(encoding="utf-8"))
    change = {**case.get("config", {}), **({"quantization_config": case["block"]} if "block" in case else {})}
    _write_config(case, path, merged(raw, change))
    for name in case.get("remove", []):
        for file in path.glob(name):
            file.unlink()
    without = tuple(case.get("without", []))
    if without or "tensors" in case:
        file = path / "model.safetensors"
        tensors = {name: value for name, value in load_file(file).items() if not name.startswith(without or ("*",))}
        for name, (dtype, shape) in case.get("tensors", {}).items():
            tensors[name] = torch.zeros(shape, dtype=DTYPES[dtype])
        save_file(tensors, file, metadata={"format": "pt"})
    return path


def _experts(path: Path) -> None:
    from demo_models.moe import tiny_moe
    from demo_models.variants import Group

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
    tiny_moe(path, {"group_0": Group(targets=("Linear",), weights=weights, format="pack-quantized")})


def command_of(case: Case, path: Path) -> list[str]:
    """The arguments of ``quantdispatch``."""
    command = case.get("command", "explain")
    given = [case.get("source", "{path}"), *case.get("arguments", [])]
    if command == "run":
        given += PROMPT
    return [command, *(argument.replace("{path}", str(path)) for argument in given if argument)]


def _forget_library() -> None:
    """It looks at its variable when it is opened, and many modules have its functions by name."""
    library.load.cache_clear()
    library._open.cache_clear()


@contextmanager
def surroundings(case: Case, path: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Variables, packages that are missing and plugins that are installed, as a row says."""
    for name, value in case.get("environment", {}).items():
        patch.setenv(name, value.replace("{path}", str(path)))
    for package in case.get("missing", []):
        patch.setitem(__import__("sys").modules, package, None)
    if "QUANTDISPATCH_ISA" in case.get("environment", {}):
        patch.setattr(kernels, "_probed", {})
        _forget_library()
        try:
            yield
        finally:
            _forget_library()
        return
    if "plugin" not in case:
        yield
        return
    site = path.parent / "site"
    info = site / "row_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "row_plugin.py").write_text(case["plugin"], encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: row-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[quantdispatch]\nrow = row_plugin\n")
    patch.syspath_prepend(str(site))
    patch.delitem(__import__("sys").modules, "row_plugin", raising=False)
    registry._installed.cache_clear()
    try:
        yield
    finally:
        registry._installed.cache_clear()


def check_parts(case: Case, error: QuantDispatchError, shown: str) -> None:
    """Each part is what the row says, as an attribute and in the text ``shown``."""
    for part in PARTS:
        value = getattr(error, part)
        if part in case.get("absent", []):
            assert value is None, f"{part} is {value!r}: the row need not leave it out"
            continue
        assert value is not None, f"no {part}: {shown}"
        assert str(case[part]) in str(value), f"{part} is {value!r}"
        text = " ".join((value if isinstance(value, str) else repr(value)).split())
        assert text[:190] in shown, f"{part} {text!r} is not in {shown!r}"


@contextmanager
def noted(patch: pytest.MonkeyPatch) -> Iterator[list[QuantDispatchError]]:
    """Every error that is made inside, in order."""
    made: list[QuantDispatchError] = []
    original = QuantDispatchError.__init__

    def record(self: QuantDispatchError, *args: Any, **facts: Any) -> None:
        original(self, *args, **facts)
        made.append(self)

    patch.setattr(QuantDispatchError, "__init__", record)
    yield made
