"""For which layers and devices there is a Triton kernel, said without Triton; and configs, measured and not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quantdispatch.backends.triton import kernels
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.kernels import select

SM90 = {"device": "cuda", "family": "sm90", "version.triton": 309}
INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}
FP8 = {"type": "float", "num_bits": 8, "strategy": "channel"}
NV = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
#: weights, what else differs from an int4 layer on sm90, is triton/wna16 chosen?
CASES: list[tuple[Mapping[str, Any], Mapping[str, Any], bool]] = [
    (INT4, {}, True),
    (INT4 | {"symmetric": False}, {}, True),
    (INT4 | {"actorder": "group"}, {}, True),
    *[(INT4 | {"num_bits": bits}, {}, True) for bits in range(1, 9)],
    ({"type": "int", "num_bits": 8, "strategy": "channel"}, {"k": 77, "n": 5}, True),
    (FP8, {}, True),
    (NV, {}, True),
    ({"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}, {}, True),
    (INT4, {"dtype": "float16"}, True),
    (INT4, {"dtype": "float32"}, False),
    (INT4, {"kind": "moe"}, True),
    (INT4, {"kind": "embedding", "op": "embedding"}, False),
    (INT4, {"inputs": QuantArgs(num_bits=8, strategy="token", dynamic=True)}, False),
    (INT4, {"outputs": QuantArgs(num_bits=8, strategy="tensor")}, False),
    *[(INT4, {"family": family}, True) for family in ("sm80", "sm89", "sm90", "sm100", "sm120")],
    (INT4, {"family": "sm75"}, False),
    (INT4, {"family": "gfx942", "device": "rocm"}, True),
    (FP8, {"family": "gfx942", "device": "rocm"}, True),
    (INT4, {"family": "gfx90a", "device": "rocm"}, False),
    (INT4, {"device": "cpu"}, False),
    (INT4, {"version.triton": 306}, True),
    (INT4, {"version.triton": 305}, False),
]


@pytest.mark.parametrize(("weights", "more", "admitted"), CASES)
def test_the_record_admits_what_the_kernel_computes(
    weights: Mapping[str, Any], more: Mapping[str, Any], admitted: bool
) -> None:
    args = QuantArgs(**weights)
    fields = {name: more.get(name) for name in ("inputs", "outputs")}
    k = more.get("k", 256)
    spec = KernelSpec(
        more.get("op", "linear"), more.get("kind", "linear"), "test", args, fields["inputs"], fields["outputs"],
        more.get("n", 64), k, more.get("dtype", "bfloat16"), args.group_size or k, args.actorder == "group",
    )  # fmt: skip
    environment = {name: more.get(name, value) for name, value in SM90.items()}
    chosen = {c.kernel.name for c in select(spec, environment, kernels()).trace if c.status == "yes"}
    assert ("triton/wna16" in chosen) is admitted


MX8 = {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": "uint8"}
MX4 = MX8 | {"num_bits": 4}


@pytest.mark.parametrize(
    ("weights", "inputs", "families"),
    [
        (NV, NV | {"dynamic": "local"}, {"sm100", "sm120"}),
        (MX4, MX4 | {"dynamic": True}, {"sm100", "sm120"}),
        (MX8, MX8 | {"dynamic": True}, {"sm100", "sm120"}),
        (MX4, MX8 | {"dynamic": True}, {"sm100"}),
        (MX8, MX4 | {"dynamic": True}, set()),
        (FP8, FP8 | {"strategy": "token", "dynamic": True}, set()),
    ],
)
def test_scales_on_both_sides_need_instructions_that_take_them(
    weights: Mapping[str, Any], inputs: Mapping[str, Any], families: set[str]
) -> None:
    args = QuantArgs(**weights)
    spec = KernelSpec("linear", "linear", "t", args, QuantArgs(**inputs), None, 64, 256, "bfloat16", args.group_size)
    found = {
        family
        for family in ("sm80", "sm89", "sm90", "sm100", "sm120", "gfx942")
        for candidate in select(spec, SM90 | {"family": family}, kernels()).trace
        if candidate.kernel.name == "triton/block_scaled" and candidate.status == "yes"
    }
    assert found == families


def test_records_import_neither_torch_nor_triton() -> None:
    code = "import sys; import quantdispatch.backends.triton as t; n = len(list(t.kernels())); " \
           "print(n > 0 and not {'torch', 'triton'} & set(sys.modules))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


# -- configs

FAMILIES = ("sm80", "sm89", "sm90", "sm100", "sm120", "gfx942", "interpreter")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_has_a_config_that_covers_it(family: str) -> None:
    from quantdispatch.backends.triton import config

    for m in (1, 2, 8, 9, 16, 17, 33, 64, 100, 512, 1023, 1024, 5000):
        for n, tiles in ((16, 1), (1024, 8), (8192, 56), (28672, 16)):
            found = config.default(m, n, tiles, family, 132)
            assert found.dense or (found.block_m >= min(m, 8) or m > 8)
            assert 1 <= found.splits <= max(1, tiles // 4)
            # powers of two, as Triton's blocks are
            assert all(size & (size - 1) == 0 for size in (found.block_m, found.block_n, found.warps))
            several = config.candidates(m, n, tiles, family, 132)
            assert several[0] == found and len(set(several)) == len(several)


def test_few_outputs_are_split_along_k_and_many_are_not() -> None:
    from quantdispatch.backends.triton import config

    assert config.default(1, 1024, 56, "sm90", 132).splits > 4
    assert config.default(1, 128256, 16, "sm90", 132).splits == 1


@pytest.mark.parametrize(("m", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (16, 16), (17, 32), (4096, 4096)])
def test_numbers_of_tokens_share_configs_up_to_powers_of_two(m: int, expected: int) -> None:
    from quantdispatch.backends.triton import config

    assert config.bucket(m) == expected


# -- measured configs


@pytest.fixture
def autotune() -> Any:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from quantdispatch.backends.triton import autotune

    return autotune


def test_the_best_config_is_kept_for_other_processes(tmp_path: Path, autotune: Any) -> None:
    from quantdispatch.backends.triton.config import Config

    path = tmp_path / "deep" / "file.json"
    fast, slow, broken = Config(16, 32), Config(16, 64), Config(64, 64)
    times = {fast: 1.0, slow: 2.0, broken: float("inf")}
    best, all_times = autotune.tune(autotune.Choices("A", path), "task", [slow, fast, broken], times.__getitem__)
    assert (best, all_times) == (fast, times)
    assert autotune.Choices("A", path).get("task") == fast
    assert autotune.Choices("A", path).get("other") is None
    assert autotune.Choices("B", path).get("task") is None
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_two_writers_keep_each_others_entries(tmp_path: Path, autotune: Any) -> None:
    from quantdispatch.backends.triton.config import Config

    path = tmp_path / "file.json"
    first, second = autotune.Choices("A", path), autotune.Choices("B", path)
    assert first.get("x") is None and second.get("x") is None
    first.put("x", Config(8, 32))
    second.put("x", Config(16, 32))
    assert autotune.Choices("A", path).get("x") == Config(8, 32)
    assert autotune.Choices("B", path).get("x") == Config(16, 32)


def test_other_versions_are_not_read(tmp_path: Path, autotune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantdispatch.backends.triton.config import Config

    path = tmp_path / "file.json"
    autotune.Choices("A", path).put("x", Config(8, 32))
    monkeypatch.setattr(autotune, "version", lambda: "0-other")
    assert autotune.Choices("A", path).get("x") is None


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"a": 3}', "\udcff"])
def test_a_file_that_is_no_such_file_counts_as_empty(tmp_path: Path, autotune: Any, content: str) -> None:
    from quantdispatch.backends.triton.config import Config

    path = tmp_path / "file.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    choices = autotune.Choices("A", path)
    assert choices.get("x") is None
    choices.put("x", Config(8, 32))
    assert json.loads(path.read_text())


def test_entries_of_another_form_are_passed_over(tmp_path: Path, autotune: Any) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({f"{autotune.version()} A": {"x": {"block_q": 1}, "y": 3}}))
    assert autotune.Choices("A", path).get("x") is None


def test_when_no_config_runs_that_is_an_error_and_nothing_is_kept(tmp_path: Path, autotune: Any) -> None:
    from quantdispatch.backends.triton.config import Config

    path = tmp_path / "file.json"
    with pytest.raises(RuntimeError, match="no config of task"):
        autotune.tune(autotune.Choices("A", path), "task", [Config(8, 32)], lambda config: float("inf"))
    assert not path.exists()


def test_the_folder_follows_the_environment(autotune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDISPATCH_CACHE", "/x")
    assert autotune.folder() == Path("/x")
    monkeypatch.delenv("QUANTDISPATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/y")
    assert autotune.folder() == Path("/y/quantdispatch")


# -- the layout


@pytest.mark.parametrize("bits", range(1, 9))
def test_runs_are_as_long_as_groups_and_padding_allow(bits: int) -> None:
    pytest.importorskip("torch")
    from quantdispatch.backends.triton.wna16_layout import layout_of

    for k, group in ((28672, 128), (4096, 128), (4096, 32), (4096, 16), (576, 64), (4096, None)):
        args = QuantArgs(num_bits=bits, strategy="group" if group else "channel", group_size=group)
        spec = KernelSpec("linear", "linear", "t", args, None, None, 64, k, "bfloat16", group or k)
        layout = layout_of(spec)
        assert layout.run * layout.slots <= 512 or layout.run == 16
        assert layout.group % layout.run == 0
        assert layout.words * layout.slots >= k
        if k >= 4096:
            assert layout.words * layout.slots <= k * 17 / 16


def test_values_that_no_four_bit_float_has_are_refused(layers: Any) -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from quantdispatch.backends.triton.wna16 import WNA16Linear

    layer = layers.make(QuantArgs(type="float", num_bits=4, strategy="group", group_size=32), n=16, k=64)
    layer.operands.codes = (layer.operands.codes.float() * 0 + 5).to(layer.operands.codes.dtype)
    with pytest.raises(ValueError, match="no 4-bit float"):
        WNA16Linear(layer.spec).pack(layer.operands)


def test_an_input_on_the_cpu_is_refused(layers: Any) -> None:
    import torch

    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from quantdispatch.backends.triton.wna16 import WNA16Linear
    from quantdispatch.registry.errors import QuantDispatchError

    layer = layers.make(QuantArgs(**INT4), n=16, k=128)
    impl = WNA16Linear(layer.spec)
    state = impl.pack(layer.operands)
    with pytest.raises(QuantDispatchError, match="does not fit"):
        impl.apply(torch.zeros(1, 128, dtype=torch.bfloat16), state)
