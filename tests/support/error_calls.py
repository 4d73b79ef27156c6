"""Calls that raise what no command leads to; rows of ``tests/data/errors/*.toml`` name them as ``python``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import error_cases
import pytest
import tiny_plans as tiny
import torch

import quantdispatch as qd
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import KernelSpec

INT4 = QuantArgs(num_bits=4, group_size=32)
PLUGIN = """
from quantdispatch import Absent, Args, Rule, When, hookimpl
from quantdispatch.registry import errors
from quantdispatch.schemes.wna16_int import WNA16Int

class Broken(WNA16Int):
    def check(self, *given):
        raise errors.{error}("the plugin's own sentence")

@hookimpl
def quantdispatch_rules():
    yield Rule(name="broken", when=When(kind="linear", format="pack-quantized", inputs=Absent, outputs=Absent,
               weights=Args(type="int", num_bits=4, strategy="group", symmetric=True, dynamic=False)),
               scheme="row_plugin:Broken", overrides=("wNa16_int",))
"""


@dataclass
class Room:
    """What a call may use: a folder, tiny models by the name of their variant, and patches that are taken back."""

    path: Path
    model: Callable[..., Path]
    patch: pytest.MonkeyPatch

    def stored(self, **case: Any) -> Path:
        return error_cases.written({"code": "", **case}, self.path / "c", self.model)


# -- planning


def no_source(room: Room) -> None:
    qd.plan(3)  # type: ignore[arg-type]


def modules_without_classes(room: Room) -> None:
    qd.plan(tiny.config(), modules={"m.q_proj": 3})  # type: ignore[dict-item]


def dtype_of_integers(room: Room) -> None:
    qd.plan(tiny.config(), dtype="int8")


def no_ranks(room: Room) -> None:
    qd.plan(tiny.config(), tensor_parallel=0)


def too_many_ranks(room: Room) -> None:
    error = qd.plan(room.stored(), tensor_parallel=48, strict=False).layers["m.q_proj"].error
    assert error is not None
    raise error


def unknown_backend(room: Room) -> None:
    qd.plan(tiny.config(), backend="abacus")


def layers_that_fail(room: Room) -> None:
    qd.plan(room.stored(layers={"m.q_proj": "int4", "m.k_proj": "int4"}, without=["m.q_proj.weight_scale",
            "m.k_proj.weight_scale"]))  # fmt: skip


def names_in_no_list(room: Room) -> None:
    from quantdispatch.registry.targets import TargetIndex

    TargetIndex([("group_0", ["Linear"])], "lm_head")


def rules_that_overlap(room: Room) -> None:
    from quantdispatch.registry.table import RuleTable

    RuleTable.build(
        [qd.Rule(name=name, when=qd.When(kind="linear"), scheme=f"{name}:Scheme") for name in ("one", "two")]
    )


def table_of_nothing(room: Room) -> None:
    from quantdispatch.testing import load_table

    load_table([{"id": "a", "abacus": 3}])


# -- what a plugin raises without a code


def _by_a_plugin(room: Room, error: str) -> None:
    case = {"code": "", "plugin": PLUGIN.format(error=error)}
    path = room.stored()
    with error_cases.surroundings(case, path, room.patch):
        found = qd.plan(path, strict=False).layers["m.q_proj"].error
    assert found is not None
    raise found


def plugins_config_error(room: Room) -> None:
    _by_a_plugin(room, "ConfigError")


def plugins_unreadable_file(room: Room) -> None:
    _by_a_plugin(room, "UnreadableCheckpointError")


def plugins_checkpoint_error(room: Room) -> None:
    _by_a_plugin(room, "CheckpointError")


def plugins_missing_rule(room: Room) -> None:
    _by_a_plugin(room, "NoSchemeFound")


def plugins_missing_kernel(room: Room) -> None:
    _by_a_plugin(room, "NoKernelFound")


def plugins_own_error(room: Room) -> None:
    _by_a_plugin(room, "QuantDispatchError")


def plugins_plugin_error(room: Room) -> None:
    from quantdispatch.testing.registries import rules_of

    rules_of(SimpleNamespace(__name__="row_plugin", QUANTDISPATCH_API=99))


# -- tensors


def header_alone(room: Room) -> None:
    from quantdispatch.engines.tensors import read_tensor
    from quantdispatch.registry.stored_tensors import TensorEntry

    read_tensor(TensorEntry("m.weight", "F32", (2,), "https://nowhere.invalid/model.safetensors", 0, 8, local=False))


def dtype_of_tomorrow(room: Room) -> None:
    from quantdispatch.engines.tensors import read_tensor
    from quantdispatch.registry.stored_tensors import TensorEntry

    read_tensor(TensorEntry("m.weight", "F3", (2,), "model.safetensors", 0, 8, local=True))


def no_such_matrix(room: Room) -> None:
    from quantdispatch.numerics.hadamard import sylvester

    sylvester(12)


# -- loading with transformers


def _from_pretrained(folder: Path, **options: Any) -> None:
    from transformers import AutoModelForCausalLM

    from quantdispatch.engines import transformers as adapter

    with adapter.enable():
        AutoModelForCausalLM.from_pretrained(folder, **options)


def offloaded(room: Room) -> None:
    _from_pretrained(room.model("w4a16-sym"), device_map={"model": "cpu", "lm_head": "disk"})


def double_cache(room: Room) -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    from quantdispatch.engines.transformers.cache import Float8View

    Float8View(EncoderDecoderCache(DynamicCache(), DynamicCache()), None)  # type: ignore[arg-type]


def cache_of_an_encoder_decoder(room: Room) -> None:
    from quantdispatch.engines.transformers.placing import place_cache

    block = tiny.config(kv_cache_scheme=tiny.FP8 | {"strategy": "tensor", "dynamic": False})
    names = {f"model.layers.0.self_attn.{part}_proj": "Linear" for part in "qkv"}
    layer = qd.plan(block, modules=names | {"model.layers.0.self_attn": "LlamaAttention"}, strict=False)
    model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True))
    place_cache(model, "model.layers.0.self_attn", layer.layers["model.layers.0.self_attn"], torch.bfloat16, None)


def merged_module(room: Room) -> None:
    from quantdispatch.engines.transformers.routed import find_place

    class Transpose:
        pass

    converter = SimpleNamespace(source_patterns=["q_proj"], operations=[Transpose()])
    find_place("m.q_proj", "m.qkv_proj", "q_proj", [converter])


def tensor_that_does_not_load(room: Room) -> None:
    from quantdispatch.engines.loading import _check_report

    report: Any = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [], "error_msgs": ["size of head"]}
    _check_report(report, "LlamaForCausalLM")


# -- engines that have an adapter


def fused_and_unlike(room: Room) -> None:
    from quantdispatch.engines.adapters.layers import LayerTable, Members

    groups = tiny.group(targets=["m.q_proj"]), tiny.group({**tiny.INT4, "num_bits": 8}, targets=["m.k_proj"])
    table = LayerTable(tiny.config(*groups))
    Members("m.qk_proj", (table.layer("m.q_proj"), table.layer("m.k_proj"))).one()


def unknown_shard(room: Room) -> None:
    from quantdispatch.engines.adapters.sharding import Partition, Shards

    class OfAnEngine(Shards):
        engine, switch = "SGLang", "QUANTDISPATCH_SGLANG"

    OfAnEngine((Partition(64, 0, 64),), None, 64).of_shard("abacus", "m.qkv_proj")


def activation_of_an_engine(room: Room) -> None:
    room.patch.syspath_prepend(str(Path(qd.__file__).parent / "plugins/quantdispatch-sglang/src"))
    from quantdispatch_sglang.activation import gated

    gated(SimpleNamespace(activation="abacus", gemm1_alpha=None, gemm1_beta=None, no_combine=False))


# -- calling a layer


def _kernel() -> tuple[Any, dict[str, torch.Tensor]]:
    from quantdispatch.backends.cpu.dequant import DequantLinear
    from quantdispatch.registry.operands import Operands

    kernel = DequantLinear(KernelSpec("linear", "linear", "wNa16_int", INT4, None, None, 32, 64, "float32", 32))
    codes = torch.ones(32, 64, dtype=torch.int8)
    return kernel, kernel.pack(Operands(codes=codes, scale=torch.ones(32, 2)))


def input_of_another_width(room: Room) -> None:
    kernel, state = _kernel()
    kernel.apply(torch.ones(3, 65), state)


def input_with_a_gradient(room: Room) -> None:
    kernel, state = _kernel()
    kernel.apply(torch.ones(3, 64, requires_grad=True), state)


def weights_of_three_bits_for_marlin(room: Room) -> None:
    from quantdispatch.backends.marlin.forms import form_of

    form_of(QuantArgs(num_bits=3, group_size=32), "wNa16_int")


def scheme_without_numerics(room: Room) -> None:
    from quantdispatch.backends.reference.linear import ReferenceLinear

    ReferenceLinear(KernelSpec("linear", "linear", "abacus", INT4, None, None, 32, 64, "float32", 32))


def library_that_does_not_load(room: Room) -> None:
    from quantdispatch.backends.cpu.native import library

    file = room.path / "kernels.so"
    file.write_text("no library")
    room.patch.setattr(library, "native_library", lambda: file)
    library._open.__wrapped__()
