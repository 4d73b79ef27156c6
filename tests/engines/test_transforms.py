"""Models with transforms at run time, against compressed-tensors' own hooks on the same weights decompressed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models are transformers models")
pytest.importorskip("compressed_tensors", reason="the checkpoints are written by it")

from transformed_models import (  # noqa: E402
    CASES,
    FAR,
    LOOSE,
    Make,
    distance,
    load,
    logits,
    maker,
    stored,
    transforms,
    write,
)  # fmt: skip

import quantdispatch.engines.transformers as qdt  # noqa: E402
from quantdispatch.engines.transforms import Rotation  # noqa: E402
from quantdispatch.engines.verify import verify  # noqa: E402


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return maker(tmp_path_factory)


# ---------------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_compressed_tensors(name: str, made: Make) -> None:
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
def test_other_dtypes(name: str, made: Make) -> None:
    folder, truth, _ = made(name)
    model = load(folder, dtype=torch.bfloat16)
    assert distance(logits(model), truth) < 4e-2
    dtypes = {t.dtype for module in model.modules() if isinstance(module, Rotation) for t in module.buffers()}
    model.to(torch.float32)
    moved = {t.dtype for module in model.modules() if isinstance(module, Rotation) for t in module.buffers()}
    assert dtypes == moved and distance(logits(model), truth) < 2e-2


def test_layers_share_a_matrix_that_is_stored_once(made: Make) -> None:
    model = load(made("quip-random")[0])
    rotations = {id(module.rotation): module.rotation for module in transforms(model).values()}
    # of u and v: 128 and 192; k and v give 64 outputs
    assert sorted(r.size for r in rotations.values()) == [64, 128, 128, 192, 192] and len(transforms(model)) == 28
    model.to(torch.bfloat16).to(torch.float32)
    assert {id(module.rotation) for module in transforms(model).values()} == set(rotations)


def test_large_matrices_are_not_kept(made: Make) -> None:
    for name, size, most in (("quip-large", 512, 4 * 512), ("quip-large-random", 1152, 1152 * 1152 // 40)):
        found = [m.rotation for m in transforms(load(made(name)[0])).values() if m.rotation.size == size]
        assert found and all(sum(t.numel() for t in rotation.buffers()) <= most for rotation in found)


def test_nothing_breaks_the_graph(made: Make) -> None:
    folder, truth, _ = made("quip-large-permuted")
    compiled = torch.compile(load(folder), fullgraph=True, backend="eager")
    assert distance(logits(compiled), truth) < 1e-5


# ------------------------------------------------------------------------------------------------- saved, copied, dense


@pytest.mark.parametrize("name", ["quip-permuted", "quip-large-permuted", "quip-large-random", "quip-matrix", "several",
                                  "spin-r4-f64", "quip-head-too"])  # fmt: skip
def test_what_is_saved_is_what_was_read(name: str, made: Make, tmp_path: Path) -> None:
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


def test_copies(made: Make) -> None:
    folder, truth, _ = made("quip-large-permuted")
    model = load(folder)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert distance(logits(twin), truth) < 1e-5
        assert len({id(m.rotation) for m in transforms(twin).values()}) < len(transforms(twin))


@pytest.mark.parametrize("name", ["quip-permuted", "quip-large-random", "several"])
def test_a_state_dict_fills_an_empty_model(name: str, made: Make) -> None:
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
def test_dequantized_the_transforms_are_part_of_the_weights(name: str, made: Make, tmp_path: Path) -> None:
    folder, truth, _ = made(name)
    model = load(folder)
    model.dequantize()
    assert not transforms(model) and distance(logits(model), truth) < 1e-5
    model.save_pretrained(tmp_path / "saved")
    twin = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert distance(logits(twin), truth) < 1e-5


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_transformers_loads_them_too(made: Make) -> None:
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
def test_one_layer_dequantized_is_saved_without_its_transforms(name: str, made: Make, tmp_path: Path) -> None:
    """Even where that layer was the one that stored what others share."""
    folder, truth, _ = made(name)
    model = load(folder)
    storing = next(key for key, module in transforms(model).items() if module.stores).rpartition(".")[0]
    model.set_submodule(storing, model.get_submodule(storing).dequantize())
    model.save_pretrained(tmp_path / "saved")
    twin = load(tmp_path / "saved")
    assert len(transforms(twin)) < len(transforms(load(folder))) and distance(logits(twin), truth) < 1e-5


def test_verify_looks_at_the_layer_without_its_transforms(made: Make) -> None:
    rows = verify(made("quip-random")[0], dtype=torch.float32)
    assert len(rows) == 14 and all(row.weights_equal and row.error < 1e-5 for row in rows)
