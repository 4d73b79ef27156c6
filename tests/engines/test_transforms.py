"""Models with transforms at run time, against compressed-tensors' own hooks on the same weights decompressed."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="models are transformers models")
pytest.importorskip("compressed_tensors", reason="the checkpoints are written by it")

from compressed_tensors.compressors import ModelCompressor  # noqa: E402
from compressed_tensors.transform import TransformConfig, apply_transform_config  # noqa: E402
from demo_models.moe import tiny_moe  # noqa: E402
from demo_models.quiet import quiet  # noqa: E402
from demo_models.rtn import quantize_and_save  # noqa: E402
from demo_models.variants import VARIANTS, Group  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import quantdispatch as qd  # noqa: E402
import quantdispatch.engines.transformers as qdt  # noqa: E402
from quantdispatch.engines.transforms import OnlineTransform, Rotation  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402

IDS = torch.arange(40).reshape(2, 20)
#: how far a model with its transforms dropped has to be from the right one, for a test that could fail
FAR = 0.3


def apply(location: str, targets: Any = "Linear", inverse: bool = False, ignore: Any = "lm_head") -> dict[str, Any]:
    return {"targets": targets, "location": location, "inverse": inverse, "ignore": ignore}


def quip(kind: str, ignore: Any = "lm_head", **scheme: Any) -> dict[str, Any]:
    """What llm-compressor's QuIPModifier asks for."""
    inputs = [apply("input", ignore=ignore), apply("weight_input", inverse=True, ignore=ignore)]
    outputs = [apply("weight_output", ignore=ignore), apply("output", inverse=True, ignore=ignore)]
    return {"u": {"type": kind, "apply": outputs, **scheme}, "v": {"type": kind, "apply": inputs, **scheme}}


def spin(**scheme: Any) -> dict[str, Any]:
    """What its SpinQuantModifier asks for with R1, R2 and R4."""
    down = "re:.*down_proj$"
    first = ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$", "re:.*up_proj$", "re:.*gate_proj$", "lm_head"]
    return {
        "R1": {"type": "hadamard", "apply": [
            apply("weight_output", ["re:.*embed_tokens$", "re:.*o_proj$", down], ignore=[]),
            apply("weight_input", first, inverse=True, ignore=[]),
        ]},
        "R2": {"type": "hadamard", "head_dim": 32, "apply": [
            apply("weight_output", ["re:.*v_proj$"]), apply("weight_input", ["re:.*o_proj$"], inverse=True),
        ]},
        "R4": {"type": "hadamard", "apply": [apply("input", [down]), apply("weight_input", [down], True)], **scheme},
    }  # fmt: skip


def member(name: str) -> dict[str, Any]:
    """Inputs of one projection, whose neighbours take the same ones untransformed."""
    entries = [apply("input", [name]), apply("weight_input", [name], inverse=True)]
    return {"q": {"type": "random-hadamard", "head_dim": 32, "apply": entries}}


def several() -> dict[str, Any]:
    """Groups at one place that do not commute, and one that is applied twice there."""
    places = ("input", "output")
    return {
        "a": {"type": "random-hadamard", "head_dim": 32, "apply": [apply(place) for place in places]},
        "b": {"type": "random-hadamard", "head_dim": 64, "randomize": True,
              "apply": [apply(place, inverse=inverse) for place in places for inverse in (True, False, False)]},
        "c": {"type": "random-matrix", "head_dim": 16, "apply": [apply(place) for place in places]},
    }  # fmt: skip


F64, BF16 = "torch.float64", "torch.bfloat16"
#: name: (groups, variant, shape)
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "quip-hadamard": (quip("hadamard", head_dim=64), "w4a16-asym", {}),
    "quip-random": (quip("random-hadamard"), "w4a16-asym", {}),
    "quip-random-f64": (quip("random-hadamard", precision=F64), "w4a16-sym", {}),
    "quip-permuted": (quip("hadamard", randomize=True, head_dim=32), "w4a16-asym", {}),
    "quip-permuted-random": (quip("random-hadamard", randomize=True), "w4a16-asym", {}),
    "quip-matrix": (quip("random-matrix"), "w4a16-asym", {}),
    "quip-matrix-blocks": (quip("random-matrix", head_dim=32, randomize=True), "w4a16-asym", {}),
    "quip-biases": (quip("random-hadamard"), "w4a16-asym", {"family": "Qwen2"}),
    "quip-large": (quip("hadamard"), "w4a16-asym", {"intermediate_size": 512}),
    "quip-large-random": (quip("random-hadamard"), "w4a16-asym", {"intermediate_size": 1152}),
    "quip-large-permuted": (quip("hadamard", randomize=True), "w4a16-asym", {"intermediate_size": 512}),
    "quip-head-too": (quip("random-hadamard", ignore=[]), "w4a16-asym", {}),
    "quip-int8": (quip("random-hadamard"), "w8a8-int8", {}),
    "quip-fp8": (quip("hadamard", head_dim=32), "fp8-dynamic", {}),
    "spin-r4": (spin(), "w4a16-asym", {"intermediate_size": 256}),
    "spin-r4-f64": (spin(precision=F64), "w4a16-asym", {"intermediate_size": 512}),
    "spin-r4-blocks": (spin(head_dim=64, precision=BF16), "w4a16-asym", {}),
    "several": (several(), "w4a16-asym", {}),
    "one-member": (member("re:.*q_proj$"), "w4a16-asym", {}),
}  # fmt: skip
#: inputs are quantized: a last bit of difference before that is a step of the grid after it
LOOSE = {"quip-int8": 3e-2, "quip-fp8": 3e-2, "spin-r4-blocks": 1e-2,
         # a matrix of random numbers is far from orthogonal: it multiplies what a sum in fp32 is off by
         "quip-matrix": 1e-3, "quip-matrix-blocks": 1e-3}  # fmt: skip


def write(groups: dict[str, Any], variant: str, shape: dict[str, Any], folder: Path, **save: Any) -> nn.Module:
    """A tiny checkpoint, and compressed-tensors' own model with hooks, its weights decompressed."""
    sizes = {
        "vocab_size": 96, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, **shape,
    }  # fmt: skip
    family = sizes.pop("family", "Llama")
    config = getattr(transformers, f"{family}Config")(**sizes)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 or name.endswith("bias"):
                nn.init.normal_(parameter, std=0.08)
        apply_transform_config(model, TransformConfig(config_groups=groups))
        quantize_and_save(model, VARIANTS[variant], folder, **save)
        ModelCompressor.from_pretrained_model(model).decompress_model(model)
    return model  # type: ignore[no-any-return]


Made = tuple[Path, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """name of a case -> its folder, the right logits, and those without transforms."""
    known: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in known:
            folder = tmp_path_factory.mktemp(name) / "model"
            model = write(*CASES[name], folder)
            truth = logits(model)
            for module in model.modules():
                module._forward_pre_hooks.clear()
                module._forward_hooks.clear()
            known[name] = (folder, truth, logits(model))
        return known[name]

    return make


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(IDS).logits.double()
    return result


def load(folder: Path, **options: Any) -> Any:
    return qd.load(folder, **{"dtype": torch.float32, **options})


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


def transforms(model: nn.Module) -> dict[str, OnlineTransform]:
    return {name: module for name, module in model.named_modules() if isinstance(module, OnlineTransform)}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def changed(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> Path:
    """A copy whose tensors and quantization config ``change`` has edited."""
    shutil.copytree(folder, target)
    tensors, config = stored(target), json.loads((target / "config.json").read_text())
    change(tensors, config["quantization_config"])
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config))
    return target


# ---------------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_compressed_tensors(name: str, made: Callable[[str], Made]) -> None:
    folder, truth, dropped = made(name)
    model = load(folder)
    assert distance(dropped, truth) > FAR
    assert distance(logits(model), truth) < LOOSE.get(name, 1e-5)
    if name.startswith("quip-matrix"):  # what is loose there is the kernel's sum, not the transform
        assert distance(logits(load(folder, backend="reference")), truth) < 1e-5
    layers = model.quantdispatch_plan.layers.values()
    assert not any(layer.deviations for layer in layers)
    wanted = {f"{layer.name}.{label.split()[0]}_{label.split()[2]}" for layer in layers for label in layer.transforms}
    assert set(transforms(model)) == wanted and wanted


@pytest.mark.parametrize("name", ["quip-random", "quip-large-permuted", "spin-r4-blocks"])
def test_other_dtypes(name: str, made: Callable[[str], Made]) -> None:
    folder, truth, _ = made(name)
    model = load(folder, dtype=torch.bfloat16)
    assert distance(logits(model), truth) < 4e-2
    dtypes = {t.dtype for module in model.modules() if isinstance(module, Rotation) for t in module.buffers()}
    model.to(torch.float32)
    moved = {t.dtype for module in model.modules() if isinstance(module, Rotation) for t in module.buffers()}
    assert dtypes == moved and distance(logits(model), truth) < 2e-2


def test_layers_share_a_matrix_that_is_stored_once(made: Callable[[str], Made]) -> None:
    model = load(made("quip-random")[0])
    rotations = {id(module.rotation): module.rotation for module in transforms(model).values()}
    # of u and v: 128 and 192; k and v give 64 outputs
    assert sorted(r.size for r in rotations.values()) == [64, 128, 128, 192, 192] and len(transforms(model)) == 28
    model.to(torch.bfloat16).to(torch.float32)
    assert {id(module.rotation) for module in transforms(model).values()} == set(rotations)


def test_large_matrices_are_not_kept(made: Callable[[str], Made]) -> None:
    for name, size, most in (("quip-large", 512, 4 * 512), ("quip-large-random", 1152, 1152 * 1152 // 40)):
        found = [m.rotation for m in transforms(load(made(name)[0])).values() if m.rotation.size == size]
        assert found and all(sum(t.numel() for t in rotation.buffers()) <= most for rotation in found)


def test_nothing_breaks_the_graph(made: Callable[[str], Made]) -> None:
    folder, truth, _ = made("quip-large-permuted")
    compiled = torch.compile(load(folder), fullgraph=True, backend="eager")
    assert distance(logits(compiled), truth) < 1e-5


# ------------------------------------------------------------------------------------------------- saved, copied, dense


@pytest.mark.parametrize("name", ["quip-permuted", "quip-large-permuted", "quip-large-random", "quip-matrix", "several",
                                  "spin-r4-f64", "quip-head-too"])  # fmt: skip
def test_what_is_saved_is_what_was_read(name: str, made: Callable[[str], Made], tmp_path: Path) -> None:
    folder, truth, _ = made(name)
    load(folder).save_pretrained(tmp_path / "saved")
    before, after = stored(folder), stored(tmp_path / "saved")
    matrices = [key for key in before if key.rpartition(".")[0].endswith(("_input", "_output"))]
    assert before.keys() == after.keys() and matrices
    assert all(before[key].dtype == after[key].dtype and torch.equal(before[key], after[key]) for key in matrices)
    assert distance(logits(load(tmp_path / "saved")), truth) < LOOSE.get(name, 1e-5)


def test_matrices_may_be_in_another_shard(tmp_path: Path) -> None:
    model = write(*CASES["quip-random"], tmp_path / "model", max_shard_size="60KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 3
    assert distance(logits(load(tmp_path / "model")), logits(model)) < 1e-5


def test_copies(made: Callable[[str], Made]) -> None:
    folder, truth, _ = made("quip-large-permuted")
    model = load(folder)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert distance(logits(twin), truth) < 1e-5
        assert len({id(m.rotation) for m in transforms(twin).values()}) < len(transforms(twin))


@pytest.mark.parametrize("name", ["quip-permuted", "quip-large-random", "several"])
def test_a_state_dict_fills_an_empty_model(name: str, made: Callable[[str], Made]) -> None:
    folder, truth, _ = made(name)
    state, model = load(folder).state_dict(), load(folder)
    for module in model.modules():
        if isinstance(module, Rotation):
            for tensor in module.buffers():
                tensor.zero_()
    model.load_state_dict(state)
    assert distance(logits(model), truth) < 1e-5
    key = next(key for key in state if key.endswith("_input.weight"))
    with pytest.raises(RuntimeError, match="Missing key.*_input.weight"):
        model.load_state_dict({name: tensor for name, tensor in state.items() if name != key})
    with pytest.raises(RuntimeError, match="has the shape"):
        model.load_state_dict({**state, key: torch.ones(3, 3)})


@pytest.mark.parametrize("name", ["quip-biases", "quip-large-permuted", "several", "quip-head-too"])
def test_dequantized_the_transforms_are_part_of_the_weights(
    name: str, made: Callable[[str], Made], tmp_path: Path
) -> None:
    folder, truth, _ = made(name)
    model = load(folder)
    model.dequantize()
    assert not transforms(model) and distance(logits(model), truth) < 1e-5
    model.save_pretrained(tmp_path / "saved")
    twin = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert distance(logits(twin), truth) < 1e-5


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_transformers_loads_them_too(made: Callable[[str], Made]) -> None:
    folder, truth, _ = made("quip-head-too")
    with qdt.enable():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert transforms(model) and distance(logits(model), truth) < 1e-5
        part = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
        assert len(transforms(part)) == len(transforms(model)) - 2
        options = transformers.CompressedTensorsConfig(dequantize=True)
        dense = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, quantization_config=options
        )
    assert not transforms(dense) and distance(logits(dense), truth) < 1e-5


@pytest.mark.parametrize("name", ["quip-random", "several"])
def test_one_layer_dequantized_is_saved_without_its_transforms(
    name: str, made: Callable[[str], Made], tmp_path: Path
) -> None:
    """Even where that layer was the one that stored what others share."""
    folder, truth, _ = made(name)
    model = load(folder)
    storing = next(key for key, module in transforms(model).items() if module.stores).rpartition(".")[0]
    model.set_submodule(storing, model.get_submodule(storing).dequantize())
    model.save_pretrained(tmp_path / "saved")
    twin = load(tmp_path / "saved")
    assert len(transforms(twin)) < len(transforms(load(folder))) and distance(logits(twin), truth) < 1e-5


def test_verify_looks_at_the_layer_without_its_transforms(made: Callable[[str], Made]) -> None:
    rows = verify(made("quip-random")[0], dtype=torch.float32)
    assert len(rows) == 14 and all(row.weights_equal and row.error < 1e-5 for row in rows)


# --------------------------------------------------------------------------------------------- files of other writers


def test_each_layer_may_store_its_own(made: Callable[[str], Made], tmp_path: Path) -> None:
    def repeat(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for name, module in transforms(load(folder)).items():
            for role, tensor in module.rotation.stored().items():
                tensors[f"{name}.{role}"] = tensor.clone()

    folder, truth, _ = made("quip-permuted")
    other = changed(folder, tmp_path / "other", repeat)
    assert len(stored(other)) > len(stored(folder)) and distance(logits(load(other)), truth) < 1e-5


@pytest.mark.parametrize("name", ["quip-hadamard", "quip-large", "spin-r4-f64"])
def test_plain_hadamard_matrices_need_not_be_stored(name: str, made: Callable[[str], Made], tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for key in [key for key in tensors if key.endswith(("_input.weight", "_output.weight"))]:
            del tensors[key]

    folder, truth, _ = made(name)
    model = load(changed(folder, tmp_path / "other", drop))
    assert distance(logits(model), truth) < 1e-5
    assert not any("_input" in key or "_output" in key for key in model.state_dict())


def test_a_random_matrix_that_is_missing(made: Callable[[str], Made], tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        del tensors[next(key for key in tensors if key.endswith("down_proj.v_input.weight"))]

    with pytest.raises(qd.QuantDispatchError, match=r"down_proj: v_input.weight is missing.*size 192"):
        load(changed(made("quip-random")[0], tmp_path / "other", drop))


@pytest.mark.parametrize("place", ["q_attn", "k_cache"])
def test_places_without_support_are_named(place: str, made: Callable[[str], Made], tmp_path: Path) -> None:
    def add(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        group = {"type": "hadamard", "head_dim": 32, "apply": [apply(place, ["re:.*self_attn$"])]}
        config["transform_config"]["config_groups"]["R3"] = group

    folder = changed(made("spin-r4")[0], tmp_path / "other", add)
    with pytest.raises(qd.PlanError) as caught:
        load(folder)
    assert len(caught.value.errors) == 2
    for error in caught.value.errors:
        assert isinstance(error, qd.NoKernelFound)
        assert all(part in str(error) for part in (f"R3 at {place}", "self_attn", "input or output of linear layers"))


def test_a_module_that_is_no_linear_layer_in_the_model(made: Callable[[str], Made], tmp_path: Path) -> None:
    """Files do not tell: a router has a weight like a linear layer's. Its class is not meant, its name is."""
    moe = tiny_moe(tmp_path / "moe", {"g": Group(INT4, format="pack-quantized")}, family="mixtral")

    def add(targets: Any) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
        def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
            group = {"type": "hadamard", "head_dim": 32, "apply": [apply("input", targets)]}
            config["transform_config"] = {"config_groups": {"R": group}}

        return change

    model = load(changed(moe, tmp_path / "class", add("Linear")))
    assert not any(".gate." in name for name in transforms(model)) and transforms(model)
    with pytest.raises(qd.NoKernelFound, match="R at input.*Router"):
        load(changed(moe, tmp_path / "name", add([r"re:.*\.gate$"])))


# ------------------------------------------------------------------------------------------------------ routed experts

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("experts") / "model"
    ignore = ("lm_head", r"re:.*\.gate$", r"re:.*layers\.1\.mlp\.experts.*")
    yield tiny_moe(folder, {"g": Group(INT4, format="pack-quantized")}, ignore=ignore)
    gc.collect()


def test_experts_are_transformed(experts: Path, tmp_path: Path) -> None:
    """Packed ones and dense ones, against a dense model whose weights do what the transforms would."""

    def add(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        targets = [r"re:.*experts\.\d+\.(up|down)_proj$"]
        group = {"type": "hadamard", "head_dim": 32, "apply": [apply("input", targets), apply("output", targets)]}
        config["transform_config"] = {"config_groups": {"R": group}}

    model = load(changed(experts, tmp_path / "moe", add))
    assert len(transforms(model)) == 2 * 4 * 2 * 2
    plain = load(experts)
    plain.dequantize()
    hadamard = torch.tensor([[1 - 2 * (int(i & j).bit_count() % 2) for j in range(32)] for i in range(32)])
    block = hadamard.double() / 32**0.5

    def turn(weight: torch.Tensor) -> torch.Tensor:
        """``U^T W V^T`` with blocks of 32."""
        n, k = weight.shape[-2] // 32, weight.shape[-1] // 32
        left, right = torch.block_diag(*[block] * n), torch.block_diag(*[block] * k)
        return (left.T @ weight.double() @ right.T).to(weight.dtype)

    with torch.no_grad():
        untransformed = logits(plain)
        for layer in plain.model.layers:
            inner = layer.mlp.experts.down_proj.shape[-1]
            layer.mlp.experts.down_proj.copy_(turn(layer.mlp.experts.down_proj))
            up = layer.mlp.experts.gate_up_proj[:, inner:]
            up.copy_(turn(up))
    truth = logits(plain)
    assert distance(untransformed, truth) > FAR / 3
    # decompression rounds weights to the scales' bfloat16, which packed layers do not
    assert distance(logits(model), truth) < 1e-2
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))
    model.dequantize()
    assert not transforms(model) and distance(logits(model), truth) < 1e-4
