"""The page ``gpu-kernels.md``: of each scheme the kernel on each GPU, in environments that are assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..registry.args import QuantArgs
from ..registry.environment import Environment
from ..registry.facts import LayerFacts
from ..registry.gpus import SHOWN
from ..registry.kernel_ranks import STANDINGS, sources
from ..registry.registry import Registry
from ..registry.scheme import LayerShape

N, K = 4096, 4096
_NONE: Mapping[str, Any] = {"triton": None, "vllm": None, "sglang": None, "humming-kernels": None, "torch": "2.11.0"}
#: what is installed beside torch 2.11, as a heading says it
ENVIRONMENTS: Mapping[str, Mapping[str, Any]] = {
    "Triton 3.9 alone": {**_NONE, "triton": "3.9.0"},
    "Triton 3.9 and vLLM 0.32": {**_NONE, "triton": "3.9.0", "vllm": "0.32.0"},
    "Triton 3.9 and SGLang 0.5.23": {**_NONE, "triton": "3.9.0", "sglang": "0.5.23"},
}


def _args(bits: int, kind: Any = "int", strategy: Any = "group", **fields: Any) -> QuantArgs:
    return QuantArgs(num_bits=bits, type=kind, strategy=strategy, **fields)


_TOKEN8, _STATIC8 = _args(8, "int", "token", dynamic=True), _args(8, "int", "tensor")
_TOKEN_FP8, _TENSOR_FP8 = _args(8, "float", "token", dynamic=True), _args(8, "float", "tensor")
_GROUP_FP8 = _args(8, "float", "group", group_size=128, dynamic=True)
_NV = _args(4, "float", "tensor_group", group_size=16)
_NV_SEEN = _args(4, "float", "tensor_group", group_size=16, dynamic="local")
_MX4 = _args(4, "float", group_size=32, scale_dtype="uint8")
_MX8 = _args(8, "float", group_size=32, scale_dtype="uint8")
_PACK, _FLOAT, _INT = "pack-quantized", "float-quantized", "int-quantized"
#: (words, format, weights, inputs): each scheme, and within wNa16 what kernels tell apart
TASKS: tuple[tuple[str, str, QuantArgs, QuantArgs | None], ...] = (
    ("int4, groups of 128", _PACK, _args(4, group_size=128), None),
    ("int4, groups of 32, asymmetric", _PACK, _args(4, group_size=32, symmetric=False), None),
    ("int4, a scale a channel", _PACK, _args(4, strategy="channel"), None),
    ("int4, groups of 128, activation order", _PACK, _args(4, group_size=128, actorder="group"), None),
    ("int4, the same, asymmetric", _PACK, _args(4, group_size=128, actorder="group", symmetric=False), None),
    ("int4, groups of 256", _PACK, _args(4, group_size=256), None),
    ("int8, groups of 128", _PACK, _args(8, group_size=128), None),
    ("int8, groups of 128, asymmetric", _PACK, _args(8, group_size=128, symmetric=False), None),
    ("int3, groups of 128", _PACK, _args(3, group_size=128), None),
    ("int2, groups of 64", _PACK, _args(2, group_size=64), None),
    ("int8 x int8, a scale a token", _INT, _args(8, strategy="channel"), _TOKEN8),
    ("int8 x int8, static", _INT, _args(8, strategy="channel"), _STATIC8),
    ("int4 x int8, a scale a token", _PACK, _args(4, group_size=128), _TOKEN8),
    ("fp8 x fp8, a scale a token", _FLOAT, _args(8, "float", "channel"), _TOKEN_FP8),
    ("fp8 x fp8, static, one scale", _FLOAT, _args(8, "float", "tensor"), _TENSOR_FP8),
    ("fp8 x fp8, blocks of 128", _FLOAT, _args(8, "float", "block", block_structure=[128, 128]), _GROUP_FP8),
    ("fp8 alone, a scale a channel", _FLOAT, _args(8, "float", "channel"), None),
    ("int4 x fp8", _PACK, _args(4, group_size=128), _TOKEN_FP8),
    ("nvfp4 x nvfp4", "nvfp4-pack-quantized", _NV, _NV_SEEN),
    ("nvfp4 alone", "nvfp4-pack-quantized", _NV, None),
    ("mxfp4 x mxfp4", "mxfp4-pack-quantized", _MX4, _MX4.model_copy(update={"dynamic": True})),
    ("mxfp4 alone", "mxfp4-pack-quantized", _MX4, None),
    ("mxfp8 x mxfp8", "mxfp8-quantized", _MX8, _MX8.model_copy(update={"dynamic": True})),
    ("mxfp8 alone", "mxfp8-quantized", _MX8, None),
)


def answers(
    registry: Registry, environment: Mapping[str, Any], kind: str = "linear"
) -> Iterator[tuple[str, str, list[str]]]:
    """(words, scheme, of each device of :data:`.gpus.SHOWN` the kernel's name, with a star where it deviates)."""
    for words, form, weights, inputs in TASKS:
        facts = LayerFacts(kind, form, weights, inputs)
        rule = registry.resolve(facts).rule
        if rule is None:
            continue
        scheme = registry.scheme_class(rule)(facts)
        names = []
        for device in SHOWN:
            dtype = "float16" if device.endswith("sm75") else "bfloat16"
            spec = scheme.kernel_spec(LayerShape(N, K, "dense"), dtype)
            kernel = registry.select(spec, Environment.detect(device, environment)).kernel
            names.append("none" if kernel is None else kernel.name + ("*" if kernel.deviations else ""))
        yield words, scheme.name, names


def gpu_page(registry: Registry) -> Iterator[str]:
    yield from (
        "# Kernels on GPUs",
        "",
        f"The kernel of each scheme on each GPU, for a linear layer of {N} x {K} that decodes (one row a call), in",
        "bfloat16, on sm75 in float16. **Not yet run on a GPU**: the choice is made from requirements, which say what",
        "the kernels are compiled for; that they compute rightly is tested in Triton's interpreter and on stand-ins",
        "for Marlin's ops. `quantdispatch explain SOURCE --device cuda:sm90 --assume triton=3.9.0` gives the same for",
        "a checkpoint, with the reasons for every other kernel.",
        "",
        "A star: the kernel deviates, and leaves inputs unquantized. `reference` works everywhere, slowly.",
    )
    devices = [device.partition(":")[2] for device in SHOWN]
    for title, environment in ENVIRONMENTS.items():
        yield from ("", f"## With {title}", "", f"| weights x inputs | scheme | {' | '.join(devices)} |")
        yield "|---|---|" + "---|" * len(devices)
        for words, scheme, names in answers(registry, environment):
            yield f"| {words} | `{scheme}` | {' | '.join(names)} |"
    yield from _orders(registry)


def _orders(registry: Registry) -> Iterator[str]:
    yield from (
        "", "## The order between backends", "",
        "Where several kernels take a layer, the backend of the higher rank comes first. `quantdispatch bench PATH`",
        "measures them on a machine and writes a file that stands above these.", "",
        "| backend | rank | where that comes from |", "|---|---|---|",
    )  # fmt: skip
    kernels = registry.kernels
    for name, source in sorted(sources(kernels).items(), key=lambda item: -registry.ranks.get(item[0], 0)):
        yield f"| `{name}` | {registry.ranks.get(name, 0)} | {source} |"
    yield from ("", "Other orders:", "", "| what | rank | schemes | devices | rows a call | where that comes from |")
    yield "|---|---|---|---|---|---|"
    for entry in STANDINGS:
        schemes = ", ".join(sorted(entry.schemes)) if entry.schemes is not None else "all"
        families = ", ".join(sorted(entry.families)) if entry.families is not None else "all"
        yield f"| `{entry.who}` | {entry.rank} | {schemes} | {families} | {entry.rows} | {entry.source} |"
