"""Routed experts of SGLang: zero points, ranks, mixtures; by our kernels, and up to the call of SGLang's Marlin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from layers import Stored, close, config, finish, inputs, sglang_config, stored, weights
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.moe.token_dispatcher import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput

from quantdispatch import ConfigError, NoSchemeFound

E, H, INNER, TOP = 4, 256, 128, 2
PACKED, INTS = "pack-quantized", "int-quantized"
NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
MIXTRAL = {"w1": "w1", "w3": "w3", "w2": "w2"}
PREFIX = "model.layers.0.mlp.experts"
ASYMMETRIC: dict[str, Any] = {
    "int4 g32": weights(4, 32, symmetric=False),
    "int4 g64": weights(4, 64, symmetric=False),
    "int4 channel": weights(4, "channel", symmetric=False),
    "int8 g64": weights(8, 64, symmetric=False),
    "int8 channel": weights(8, "channel", symmetric=False),
}
Experts = list[dict[str, Stored]]


def experts(block: Mapping[str, Any], names: Mapping[str, str] = NAMES, prefix: str = PREFIX) -> Experts:
    return [
        {
            shard: stored(block, f"{prefix}.{e}.{name}", *((H, INNER) if shard == "w2" else (INNER, H)), "moe")
            for shard, name in names.items()
        }
        for e in range(E)
    ]


def module(block: Mapping[str, Any], prefix: str = PREFIX, **more: Any) -> Any:
    return FusedMoE(E, H, INNER, 0, top_k=TOP, quant_config=sglang_config(block), prefix=prefix, **more)


def load(made: Any, layers: Experts, names: Mapping[str, str] = NAMES, prefix: str = PREFIX) -> None:
    """As SGLang's models do, with its own table of names."""
    mapping = FusedMoE.make_expert_params_mapping(
        ckpt_gate_proj_name=names["w1"], ckpt_down_proj_name=names["w2"], ckpt_up_proj_name=names["w3"], num_experts=E
    )
    parent = prefix.rpartition(".")[0]
    parameters = {f"{prefix}.{name}": parameter for name, parameter in made.named_parameters()}
    for e, expert in enumerate(layers):
        for shard, layer in expert.items():
            for local, tensor in layer.tensors.items():
                name = f"{parent}.experts.{e}.{names[shard]}.{local}"
                param_name, weight_name, number, shard_id = next(row for row in mapping if row[1] in name)
                target = name.replace(weight_name, param_name)
                parameter = parameters[target]
                parameter.weight_loader(parameter, tensor, target, shard_id=shard_id, expert_id=number)


def tokens(count: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    index = torch.stack([torch.randperm(E)[:TOP] for _ in range(count)])
    return torch.randn(count, H), index, torch.rand(count, TOP)


def run(made: Any, x: torch.Tensor, index: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    topk = StandardTopKOutput(share, index.to(torch.int32), None)
    result: torch.Tensor = made.quant_method.apply(made, StandardDispatchOutput(x, None, topk)).hidden_states
    return result


def expected(layers: Experts, x: torch.Tensor, index: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for e, weight in zip(index[row].tolist(), share[row], strict=True):
            own, h = layers[e], x[row : row + 1]
            total[row] += weight * own["w2"](F.silu(own["w1"](h)) * own["w3"](h))[0]
    return total


@pytest.mark.parametrize("name", ASYMMETRIC)
def test_asymmetric_experts(name: str, ranks: Any) -> None:
    block = config((["Linear"], ASYMMETRIC[name], None, PACKED))
    layers, batch = experts(block), tokens()
    for size in (1, 2):
        total = torch.zeros(6, H)
        for rank in range(size):
            with ranks(size, rank):
                made = module(block)
                load(made, layers)
                total += run(finish(made), *batch)
        close(total, expected(layers, *batch), 1e-4)


def test_zero_points_are_those_that_compressed_tensors_packed(ranks: Any) -> None:
    """Packed by compressed-tensors itself, and read back from the kernels that the module is bound to."""
    block = config((["Linear"], ASYMMETRIC["int4 g64"], None, PACKED))
    layers = experts(block)
    for expert in layers:
        for layer in expert.values():
            zero = layer.operands.zero_point
            layer.tensors["weight_zero_point"] = pack_to_int32(zero, 4, packed_dim=0).contiguous()
            layer.tensors["weight_packed"] = pack_to_int32(layer.operands.codes, 4)
    with ranks():
        made = module(block)
        load(made, layers)
        finish(made)
    method, batch = made.quant_method, tokens()
    assert type(method).__name__ == "QuantDispatchExpertsMethod"
    close(run(made, *batch), expected(layers, *batch), 1e-4)


def test_experts_on_two_ranks(ranks: Any) -> None:
    """Expert parallelism: each rank has half of them, whole."""
    block = config((["Linear"], ASYMMETRIC["int4 g32"], None, PACKED))
    layers, (x, index, share) = experts(block), tokens()
    total = torch.zeros_like(x)
    for rank in range(2):
        with ranks(2, 0, experts=2, expert_rank=rank):
            made = module(block)
            load(made, layers)
            local = torch.where((index >= 2 * rank) & (index < 2 * rank + 2), index - 2 * rank, -1)
            total += run(finish(made), x, local, share)
    close(total, expected(layers, x, index, share), 1e-4)


def test_int8_experts_with_quantized_inputs(ranks: Any) -> None:
    """SGLang has these for NPUs only."""
    block = config((["Linear"], weights(8, "channel"), inputs(), INTS))
    layers, batch = experts(block), tokens()
    with ranks():
        made = module(block)
        load(made, layers)
    close(run(finish(made), *batch), expected(layers, *batch), 1e-2)


def test_experts_and_projections_that_differ(ranks: Any) -> None:
    """int8 in the first expert's gate, int4 elsewhere: SGLang asks three names of the first expert for all."""
    block = config(
        ([f"{PREFIX}.0.gate_proj"], weights(8, "channel"), None, PACKED), (["Linear"], weights(), None, PACKED)
    )
    layers, batch = experts(block), tokens()
    with ranks():
        made = module(block)
        load(made, layers)
    close(run(finish(made), *batch), expected(layers, *batch), 1e-4)


def test_experts_that_differ_stand_where_sglang_puts_them(ranks: Any) -> None:
    """Six places on two ranks for four experts, of which the first is of int8."""
    from sglang.srt.eplb import expert_location

    places = [[2, 0, 3], [1, 2, 0]]
    location = SimpleNamespace(
        num_logical_experts=E,
        physical_to_logical_map_cpu=torch.tensor([places[0] + places[1]]),
        logical_to_all_physical=lambda layer, expert, _: [p for p, e in enumerate(sum(places, [])) if e == expert],
    )
    first = ([f"re:{PREFIX}[.]0[.].*"], weights(8, "channel"), None, PACKED)
    block = config(first, (["Linear"], weights(), None, PACKED))
    layers, (x, _, share) = experts(block), tokens()
    expert_location.set_global_expert_location_metadata(location, allow_overwrite=True)
    try:
        for rank, here in enumerate(places):
            with ranks(2, 0, experts=2, expert_rank=rank):
                made = FusedMoE(6, H, INNER, 0, top_k=TOP, quant_config=sglang_config(block), prefix=PREFIX)
                load(made, layers)
                finish(made)
            for local, expert in enumerate(here):
                one, nothing = torch.full((6, 1), local), torch.full((6, 1), -1)
                found = run(made, x, torch.cat([one, nothing], dim=1), share)
                wanted = [layers[expert]]
                close(found, expected(wanted, x, torch.zeros(6, 1, dtype=torch.int64), share[:, :1]), 1e-4)
    finally:
        expert_location.set_global_expert_location_metadata(None, allow_overwrite=True)


@pytest.mark.parametrize("target", ["re:.*experts.*\\.w[123]$", "Linear"])
def test_other_names_of_projections(target: str, ranks: Any) -> None:
    prefix = "model.layers.0.block_sparse_moe.experts"
    block = config(([target], ASYMMETRIC["int4 g32"], None, PACKED))
    layers, batch = experts(block, MIXTRAL, prefix), tokens()
    with ranks():
        made = module(block, prefix)
        load(made, layers, MIXTRAL, prefix)
    close(run(finish(made), *batch), expected(layers, *batch), 1e-4)


def test_mxfp4_does_not_go_before_ignore(ranks: Any, gpu: Callable[[str], None]) -> None:
    mxfp4 = weights(4, 32, kind="float", scale_dtype="torch.uint8")
    block = config((["Linear"], mxfp4, None, "mxfp4-pack-quantized"), ignore=["re:.*experts.*"])
    with ranks():
        for arch in (None, "sm90"):
            if arch is not None:
                gpu(arch)
            made = module(block)
            assert type(made.quant_method).__name__ == "UnquantizedFusedMoEMethod"


def test_experts_that_move_while_they_serve_are_refused(ranks: Any) -> None:
    """SGLang moves a module's parameters, which ours has none of: its tables alone would change."""
    from sglang.srt.runtime_context import get_context

    block = config((["Linear"], ASYMMETRIC["int4 g32"], None, PACKED))
    override = get_context().override_server_args(enable_eplb=True)
    override.install()
    try:
        with ranks(), pytest.raises(ConfigError) as caught:
            module(block)
    finally:
        override.restore()
    assert caught.value.field == "enable_eplb" and caught.value.layer == PREFIX


def test_without_the_plugin_the_error_names_it(ranks: Any) -> None:
    from quantdispatch.testing import registry_with, using_registry

    block = config((["Linear"], ASYMMETRIC["int4 g32"], None, PACKED))
    with using_registry(registry_with()), ranks(), pytest.raises(NoSchemeFound) as caught:
        module(block)
    assert "quantdispatch-asym-moe" in str(caught.value.remedy)


# ------------------------------------------------------------------------------------------------------- Marlin


@pytest.fixture
def marlin(gpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's Marlin, but for what needs one: the repacking of weights, which leaves them as they are, and a
    workspace."""
    from sglang.srt.layers.quantization.compressed_tensors.schemes import compressed_tensors_wNa16_moe as theirs

    gpu("sm90")
    monkeypatch.setattr(theirs, "gptq_marlin_moe_repack", lambda packed, *_: packed)
    monkeypatch.setattr(theirs, "marlin_make_workspace", lambda *_: torch.zeros(4, dtype=torch.int32))
    monkeypatch.setattr(theirs, "MoeRunner", lambda *_: SimpleNamespace(runner_backend=None))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["int4 g32", "int4 g64", "int4 channel"])
def test_what_marlin_is_called_with(name: str, size: int, ranks: Any, marlin: None, monkeypatch: Any) -> None:
    from sglang.srt.layers.moe.fused_moe_triton import fused_marlin_moe

    block = config((["Linear"], ASYMMETRIC[name], None, PACKED))
    layers, batch = experts(block), tokens()
    monkeypatch.setattr(fused_marlin_moe, "fused_marlin_moe", marlin_by_the_book)
    total = torch.zeros(6, H)
    for rank in range(size):
        with ranks(size, rank):
            made = module(block)
            assert type(made.scheme).__name__ == "ZeroPointMarlinMoE"
            load(made, layers)
            total += run(finish(made), *batch)
    close(total, expected(layers, *batch), 1e-4)


def marlin_by_the_book(
    x: torch.Tensor, w1: Any, w2: Any, s1: Any, s2: Any, _: Any, share: Any, index: Any, *, w1_zeros: Any,
    w2_zeros: Any, num_bits: int, **more: Any,
) -> torch.Tensor:  # fmt: skip
    """The kernel's formula, with scales and zero points taken back from the order of its tiles."""
    gate_up = [dense(w1[e], s1[e], w1_zeros[e], num_bits) for e in range(E)]
    down = [dense(w2[e], s2[e], w2_zeros[e], num_bits) for e in range(E)]
    total = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for e, weight in zip(index[row].tolist(), share[row], strict=True):
            gate, up = (x[row] @ gate_up[e]).chunk(2)
            total[row] += weight * ((F.silu(gate) * up) @ down[e])
    return total


def dense(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> torch.Tensor:
    """[K, N]. ``packed``: int32 [K / 8, N]; ``scales`` [G, N] and ``zeros`` int32 [G, N / 8], in Marlin's order."""
    from sglang.srt.layers.quantization.marlin_utils import get_scale_perms
    from sglang.srt.layers.quantization.utils import unpack_cols

    rows, columns = packed.shape[0] * 32 // bits, packed.shape[1]
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)[:, None]
    codes, groups = ((packed[:, None] >> shifts) & (2**bits - 1)).reshape(rows, columns), scales.shape[0]
    grouped, single = get_scale_perms()
    order = torch.tensor(grouped if groups > 1 else single)
    natural = torch.empty_like(scales.reshape(-1, len(order)))
    natural[:, order] = scales.reshape(-1, len(order))
    interleave = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    mixed = unpack_cols(zeros, bits, groups, columns).reshape(-1, 8)
    plain = torch.empty_like(mixed)
    plain[:, interleave] = mixed
    zero = torch.empty_like(plain.reshape(-1, len(grouped)))
    zero[:, torch.tensor(grouped)] = plain.reshape(-1, len(grouped))
    scale, zero = (table.reshape(groups, columns).repeat_interleave(rows // groups, dim=0) for table in (natural, zero))
    return (codes - zero).to(scale.dtype) * scale
