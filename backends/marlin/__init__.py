"""Marlin: 16-bit activations times packed weights on NVIDIA GPUs, by the ops of vLLM or SGLang.

Requirements are what the providers' kernels are instantiated for: vLLM's ``csrc/quantization/marlin/
generate_kernels.py``, SGLang's ``kernels/jit/csrc/gemm/marlin/gptq_marlin.cuh`` and ``gemm/marlin_moe``. Shapes need no
requirement, since weights are padded to the kernels' tiles. Importing this is cheap: records only. No GPU has run these
kernels from here yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...registry.domains import at_least, not_in
from ...registry.gpus import AMPERE_ON
from ...registry.kernels import Absent, Args, Kernel, Needs

_HERE = "quantdispatch.backends.marlin"
DENSE = {"linear", "lm_head"}
_FLOATS = {None, "bfloat16", "float16", "float32"}
_GROUPS = {32, 64, 128}
#: of the devices that each activation type has kernels for: sm75 has no bf16, and Marlin none for it there
TURING_ON = frozenset(AMPERE_ON | {"sm75"})
#: where no matrix instruction reads fp8, and none reads block scales
_WITHOUT_FP8 = frozenset({"sm75", "sm80"})
_WITHOUT_BLOCK_SCALES = frozenset(TURING_ON - {"sm100", "sm120"})


def _int(bits: Any, symmetric: bool, strategy: Any, **fields: Any) -> Args:
    return Args(
        type="int", num_bits=bits, symmetric=symmetric, strategy=strategy, dynamic=False, scale_dtype=_FLOATS, **fields
    )


def integers() -> Iterator[tuple[Args, dict[str, Any]]]:
    """Weights, and what else of the task goes with them. With activation ordering columns are sorted beforehand; the
    kernels with zero points are for layers that have none of it."""
    yield _int({4, 8}, True, {"tensor", "channel"}), {"g_idx": False}
    yield _int({4, 8}, True, "group", group_size=_GROUPS), {"g_idx": {True, False}, "k%group": 0}
    yield _int(4, False, {"tensor", "channel"}), {"g_idx": False}
    yield _int(4, False, "group", group_size=_GROUPS), {"g_idx": False, "k%group": 0}


def float8() -> Iterator[tuple[Args, dict[str, Any]]]:
    """fp8 has kernels for whole columns and groups of 128 only."""
    fields: dict[str, Any] = {"type": "float", "num_bits": 8, "symmetric": True, "dynamic": False}
    fields["scale_dtype"] = _FLOATS
    yield Args(**fields, strategy={"tensor", "channel"}), {"g_idx": False}
    yield Args(**fields, strategy="group", group_size=128), {"g_idx": False, "k%group": 0}
    # a block may be of any height: its scale is repeated for each row
    yield Args(**fields, strategy="block"), {"g_idx": False, "group_size": 128}


def nvfp4() -> Iterator[tuple[Args, dict[str, Any]]]:
    yield (
        Args(
            type="float", num_bits=4, symmetric=True, dynamic=False, strategy="tensor_group", group_size=16,
            scale_dtype={None, "float8_e4m3fn"},
        ),
        {"g_idx": False, "k%16": 0},
    )  # fmt: skip


def mx(bits: int) -> Iterator[tuple[Args, dict[str, Any]]]:
    fields: dict[str, Any] = {"type": "float", "num_bits": bits, "symmetric": True, "dynamic": False}
    fields |= {"strategy": "group", "group_size": 32}
    more: dict[str, Any] = {"g_idx": False, "k%32": 0, "dtype": {"bfloat16"}}
    yield Args(**fields, scale_dtype="uint8"), more
    if bits == 4:
        yield Args(**fields, scale_dtype=None), more
    else:  # the scheme says that the scales are exponents
        yield Args(**fields, scale_dtype=None), {**more, "scheme": {"w8a8_mxfp8", "w8a16_mxfp8"}}


def _needs(
    weights: Args, task: dict[str, Any], kinds: set[str], provider: dict[str, Any], turing: bool, inputs: Any = Absent
) -> Iterator[Needs]:
    """One box for each activation type, as their kernels are there for other devices."""
    wanted: set[str] = task.get("dtype", {"float16", "bfloat16"})
    for dtype, families in (("bfloat16", AMPERE_ON), ("float16", TURING_ON if turing else AMPERE_ON)):
        if dtype in wanted:
            fields = {**task, **provider, "dtype": dtype, "family": families}
            yield Needs(fields, device="cuda", kind=kinds, weights=weights, inputs=inputs, outputs=Absent)


def _vllm(kinds: set[str], weights: Iterator[tuple[Args, dict[str, Any]]], least: int = 10) -> Iterator[Needs]:
    provider = {"package.vllm": not_in({Absent}), "version.vllm": at_least(least)}
    for args, task in weights:
        yield from _needs(args, task, kinds, provider, turing=True)


def _sglang(kinds: set[str], weights: Iterator[tuple[Args, dict[str, Any]]]) -> Iterator[Needs]:
    # its kernels have no body below sm80
    provider = {"package.sglang": not_in({Absent})}
    for args, task in weights:
        yield from _needs(args, task, kinds, provider, turing=False)


def _of_vllm(kinds: set[str]) -> Iterator[Needs]:
    yield from _vllm(kinds, integers())
    yield from _vllm(kinds, float8())
    yield from _vllm(kinds, nvfp4())
    # releases before this one have mxfp4 without tests for it here, and no mxfp8
    yield from _vllm(kinds, mx(4), least=32)
    yield from _vllm(kinds, mx(8), least=32)


def _of_sglang(kinds: set[str]) -> Iterator[Needs]:
    yield from _sglang(kinds, integers())
    yield from _sglang(kinds, float8())
    yield from _sglang(kinds, nvfp4())
    if "moe" in kinds:  # the dense product has fp4 in groups of 16 only
        yield from _sglang(kinds, mx(4))


def _unquantized_inputs() -> Iterator[Needs]:
    """Layers whose inputs the device cannot multiply quantized: their weights alone."""
    seen = Args(type="float")
    provider = {"package.vllm": not_in({Absent}), "version.vllm": at_least(10)}
    newer = {"package.vllm": not_in({Absent}), "version.vllm": at_least(32)}
    groups = (
        (float8(), provider, _WITHOUT_FP8),
        (nvfp4(), provider, _WITHOUT_BLOCK_SCALES),
        (mx(4), newer, _WITHOUT_BLOCK_SCALES),
        (mx(8), newer, _WITHOUT_BLOCK_SCALES),
    )
    for weights, given, families in groups:
        for args, task in weights:
            for needs in _needs(args, task, DENSE | {"moe"}, given, turing=True, inputs=seen):
                more = Needs({"family": families})
                more.boxes = tuple(box & more.boxes[0] for box in needs.boxes)
                if not any(box.empty for box in more.boxes):
                    yield more


def kernels() -> Iterator[Kernel]:
    """The records. Experts have their own, whose probe looks at the MoE op as well."""
    for provider, rank, needs in (("vllm", 20, _of_vllm), ("sglang", 10, _of_sglang)):
        target = f"{_HERE}.linear:{provider.capitalize()}MarlinLinear"
        for name, kinds in ((provider, DENSE), (f"{provider}_moe", {"moe"})):
            yield Kernel(
                name=f"marlin/{name}",
                op="linear",
                rank=rank,
                requires=tuple(needs(kinds)),
                target=target,
                probe=f"{_HERE}.probes:{name}",
            )
    yield Kernel(
        name="marlin/vllm_weights",
        op="linear",
        rank=0,
        requires=tuple(_unquantized_inputs()),
        target=f"{_HERE}.linear:VllmMarlinLinear",
        probe=f"{_HERE}.probes:vllm_moe",
        deviations=("inputs stay unquantized",),
    )
