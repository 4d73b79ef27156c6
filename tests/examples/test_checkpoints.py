"""The checkpoints that other tests stand on hold what they say, near the model they were made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from demo_models import VARIANTS, tiny_model
from demo_models.cache import made_once
from demo_models.legacy import pack_padded, unpack_dense
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

Checkpoint = Callable[..., Path]
LAYERS = ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj")


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for shard in folder.glob("*.safetensors") for name, tensor in load_file(shard).items()}


def args_of(folder: Path, layer: str) -> dict:
    """Weight args of the one group that targets `layer`."""
    groups = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    pairs = ((target, group["weights"]) for group in groups for target in group["targets"])
    (args,) = (
        args
        for target, args in pairs
        if target == "Linear" or (target.startswith("re:") and re.match(target.removeprefix("re:"), layer))
    )
    return args


def codes_of(tensors: dict[str, Tensor], layer: str, bits: int, name: str, count: int) -> Tensor:
    """Signed codes of a packed tensor [rows, words]; the stored width tells dense from padded packing."""
    packed = tensors[f"{layer}.{name}"]
    packed = packed.T if name == "weight_zero_point" else packed
    dense = -(-count * bits // 32)
    if packed.shape[1] == dense:
        codes = unpack_dense(packed, bits, count)
    else:
        each = 32 // bits
        assert packed.shape[1] == -(-count // each)
        words = packed.to(torch.int64).repeat_interleave(each, dim=1)[:, :count]
        codes = (words >> (torch.arange(count) % each * bits)) & (2**bits - 1)
    signed = codes.double() - 2 ** (bits - 1)
    return signed.T if name == "weight_zero_point" else signed


def small_float(code: int, bits: int) -> float:
    """e2m1 of 4 bits or e2m3 of 6: a sign, two bits of exponent with bias 1, and the mantissa."""
    mantissa = bits - 3
    sign, exponent, fraction = code >> (bits - 1), code >> mantissa & 3, code & (1 << mantissa) - 1
    size = (fraction + (1 << mantissa if exponent else 0)) / (1 << mantissa) * 2.0 ** max(exponent - 1, 0)
    return -size if sign else size


def microscaled(tensors: dict[str, Tensor], layer: str, bits: int) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and scales [N, G] of nvfp4 and the mx formats."""
    scale = tensors[f"{layer}.weight_scale"]
    overall = tensors.get(f"{layer}.weight_global_scale")
    scale = torch.exp2(scale.double() - 127) if overall is None else scale.double() / overall.double()
    if bits == 8:
        return tensors[f"{layer}.weight"].double(), scale
    values = [small_float(code, bits) for code in range(1 << bits)]
    rows = []
    for row in tensors[f"{layer}.weight_packed"].numpy():
        stream = int.from_bytes(row.tobytes(), "little")
        rows.append([values[stream >> shift & (1 << bits) - 1] for shift in range(0, len(row) * 8, bits)])
    return torch.tensor(rows, dtype=torch.float64), scale


def dequantized(folder: Path, layer: str) -> tuple[Tensor, Tensor]:
    """The layer's weight and the scale of each of its elements, both [N, K], in float64 and by the definition."""
    tensors, args = tensors_of(folder), args_of(folder, layer)
    if args.get("scale_dtype"):
        codes, scale = microscaled(tensors, layer, args["num_bits"])
        scale = scale.repeat_interleave(args["group_size"], 1)
        return codes * scale, scale
    scale = tensors[f"{layer}.weight_scale"].double()
    if f"{layer}.weight_packed" in tensors:
        rows, columns = tensors[f"{layer}.weight_shape"].tolist()
        codes = codes_of(tensors, layer, args["num_bits"], "weight_packed", columns)
        zero = torch.zeros_like(scale)
        if not args["symmetric"] and args["strategy"] == "tensor":
            zero = tensors[f"{layer}.weight_zero_point"].double()  # one signed value is not packed
        elif not args["symmetric"]:
            zero = codes_of(tensors, layer, args["num_bits"], "weight_zero_point", rows)
    else:
        codes = tensors[f"{layer}.weight"].double()
        rows, columns = codes.shape
        zero = tensors.get(f"{layer}.weight_zero_point", torch.zeros_like(scale)).double()
    if args["strategy"] == "block":
        height, width = args["block_structure"]
        scale = scale.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
        zero = torch.zeros_like(scale)
    elif args["strategy"] == "group":
        g_idx = tensors.get(f"{layer}.weight_g_idx", torch.arange(columns) // args["group_size"]).long()
        scale, zero = scale[:, g_idx], zero[:, g_idx]
    scale = scale.expand(rows, columns)
    return (codes - zero) * scale, scale


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_its_model_rounded(name: str, tiny_checkpoint: Checkpoint) -> None:
    folder = tiny_checkpoint(name)
    original = tensors_of(tiny_checkpoint("bf16", **VARIANTS[name].tiny))
    for layer in LAYERS:
        weight = original[f"{layer}.weight"].double()
        rounded, step = dequantized(folder, layer)
        args, largest = args_of(folder, layer), weight.abs().max()
        # Half a step, or half of its own last place; a rounded zero point shifts the ends by half a step more.
        # Storing the scale in bf16 moves those ends too.
        if args["type"] == "int":
            slack = step * (0.5 if args["symmetric"] else 1.0) + largest * 2**-8
        else:
            last_place, least = {4: (2**-2, 0.25), 6: (2**-4, 2**-4), 8: (2**-4, 2**-9)}[args["num_bits"]]
            slack = weight.abs() * last_place + step * least + largest * 2**-8
        assert ((rounded - weight).abs() <= slack).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_config_says_what_the_table_says(name: str, tiny_checkpoint: Checkpoint) -> None:
    folder, variant = tiny_checkpoint(name), VARIANTS[name]
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["quantization_status"] == "compressed"
    assert config["ignore"] == list(variant.ignore)
    # The writer orders groups as it meets them in the model.
    written = {tuple(stored["targets"]): stored for stored in config["config_groups"].values()}
    assert set(written) == {group.targets for group in variant.groups}
    for group in variant.groups:
        stored = written[group.targets]
        for declared, found in ((group.weights, stored["weights"]), (group.inputs, stored["input_activations"])):
            assert (declared is None) == (found is None)
            changed = {"actorder"} if variant.rewrite == "g_idx" else set()
            assert all(found[key] == value for key, value in (declared or {}).items() if key not in changed)
        assert group.format in (None, stored.get("format"))


def test_static_inputs_have_calibrated_scales(tiny_checkpoint: Checkpoint) -> None:
    tensors = tensors_of(tiny_checkpoint("w8a8-int8-static-asym"))
    scales = [tensor for name, tensor in tensors.items() if name.endswith("input_scale")]
    points = {int(tensor) for name, tensor in tensors.items() if name.endswith("input_zero_point")}
    assert len(scales) == 14
    assert all(scale.isfinite().all() and (scale > 0).all() for scale in scales)
    assert len(points) > 1  # calibrated one by one


def test_options_of_a_tiny_model(tiny_checkpoint: Checkpoint) -> None:
    shards = tiny_checkpoint("w4a16-asym", max_shard_size="60KB", tied=False, family="qwen2")
    assert (shards / "model.safetensors.index.json").is_file()
    assert len(list(shards.glob("*.safetensors"))) > 2
    tensors = tensors_of(shards)
    assert "lm_head.weight" in tensors
    assert tensors["model.layers.0.self_attn.q_proj.bias"].abs().max() > 0
    tied = tensors_of(tiny_checkpoint("w4a16-asym"))
    assert "lm_head.weight" not in tied
    head = tensors_of(tiny_checkpoint("w4a16-lm_head"))
    assert "lm_head.weight_packed" in head and "model.embed_tokens.weight" in head


def test_the_byte_tokenizer_goes_there_and_back(tiny_checkpoint: Checkpoint) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint("bf16"))
    text = "Zürich, 3 °C: naïve \x7f\n"
    ids = tokenizer(text).input_ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "user: hi\nassistant: "


@pytest.mark.parametrize(("name", "options"), [("w5a15", {}), ("bf16", {"family": "gpt"})])
def test_what_there_is_not_is_named_and_leaves_nothing(name: str, options: dict, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="there are"):
        tiny_model(name, tmp_path / "model", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_once_and_whole(tmp_path: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("x")

    assert made_once(tmp_path / "a" / "b", make) == made_once(tmp_path / "a" / "b", make) == tmp_path / "a" / "b"
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_who_comes_second_keeps_what_the_first_made(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "file").write_text("second")
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "file").write_text("first")

    assert (made_once(tmp_path / "model", make) / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 8), st.integers(1, 70), st.integers(0, 2**31))
def test_unpacking_dense_words_is_reading_their_bits(bits: int, count: int, seed: int) -> None:
    codes = torch.randint(0, 2**bits, (2, count), generator=torch.Generator().manual_seed(seed))
    words = []
    for row in codes.tolist():
        stream = sum(code << (bits * index) for index, code in enumerate(row))
        words.append([(stream >> shift) & 0xFFFFFFFF for shift in range(0, count * bits, 32)])
    packed = torch.tensor(words).to(torch.int32)
    assert torch.equal(unpack_dense(packed, bits, count).long(), codes)
    padded = pack_padded(codes, bits)
    each = 32 // bits
    assert padded.shape == (2, -(-count // each))
    first = padded.long() & (2**bits - 1)
    assert torch.equal(first, codes[:, ::each])
