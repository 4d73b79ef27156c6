"""Turns a checkpoint into what older writers stored, where today's compressed-tensors can no longer write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def unpack_dense(packed: Tensor, bits: int, count: int) -> Tensor:
    """Codes [rows, count] uint8 of `packed` int32 [rows, ceil(count * bits / 32)]: low bits first, no gaps."""
    words = packed.to(torch.int64) & 0xFFFFFFFF
    bit = torch.arange(count * bits)
    stream = (words[:, bit // 32] >> (bit % 32)) & 1
    weights = 1 << torch.arange(bits)
    return (stream.unflatten(1, (count, bits)) * weights).sum(-1).to(torch.uint8)


def pack_padded(codes: Tensor, bits: int) -> Tensor:
    """Pack codes [rows, count] as writers up to 0.17 did: 32 // bits codes a word, the rest of the word unused."""
    each = 32 // bits
    codes = torch.nn.functional.pad(codes.to(torch.int64), (0, -codes.shape[1] % each))
    words = (codes.unflatten(1, (-1, each)) << (torch.arange(each) * bits)).sum(-1)
    return words.to(torch.int32)


def column_order(columns: int) -> Tensor:
    """The order in which a layer of `columns` inputs is quantized where groups follow the activations: any will do."""
    return torch.randperm(columns, generator=torch.Generator().manual_seed(columns))


def rewrite_checkpoint(folder: Path, step: str) -> None:
    """Apply the named step to every quantized layer of `folder` and to its config.json."""
    from safetensors.torch import load_file, save_file

    change_layer, change_config = _STEPS[step]
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    quantization = config["quantization_config"]
    bits = quantization["config_groups"]["group_0"]["weights"]["num_bits"]
    (shard,) = folder.glob("*.safetensors")
    tensors = load_file(shard)
    for key in [key for key in tensors if key.endswith(".weight_packed")]:
        change_layer(tensors, key.removesuffix("weight_packed"), bits)
    change_config(quantization)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, shard, metadata={"format": "pt"})
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True))


def _to_padded(tensors: Tensors, layer: str, bits: int) -> None:
    rows, columns = tensors[f"{layer}weight_shape"].tolist()
    codes = _stored_codes(tensors[f"{layer}weight_packed"], bits, columns)
    tensors[f"{layer}weight_packed"] = pack_padded(codes, bits)
    zero_points = tensors.get(f"{layer}weight_zero_point")
    if zero_points is not None:  # packed along the rows
        codes = _stored_codes(zero_points.T, bits, rows)
        tensors[f"{layer}weight_zero_point"] = pack_padded(codes, bits).T.contiguous()


def _stored_codes(packed: Tensor, bits: int, count: int) -> Tensor:
    each = 32 // bits
    if packed.shape[1] == -(-count * bits // 32):
        return unpack_dense(packed, bits, count)
    # The installed compressed-tensors is itself an old writer.
    words = packed.to(torch.int64).repeat_interleave(each, dim=1)[:, :count]
    return ((words >> (torch.arange(count) % each * bits)) & (2**bits - 1)).to(torch.uint8)


def _add_g_idx(tensors: Tensors, layer: str, bits: int) -> None:
    """Put the columns, quantized in `column_order`, back where the model has them, and store the group of each."""
    columns = int(tensors[f"{layer}weight_shape"][1])
    groups = tensors[f"{layer}weight_scale"].shape[1]
    order = column_order(columns)
    codes = _stored_codes(tensors[f"{layer}weight_packed"], bits, columns)
    permuted = torch.empty_like(codes)
    permuted[:, order] = codes
    g_idx = torch.empty(columns, dtype=torch.int32)
    g_idx[order] = torch.arange(columns, dtype=torch.int32) // (columns // groups)
    # 4 and 8 bits fill their words: padded and dense packing are then the same.
    tensors[f"{layer}weight_packed"] = pack_padded(permuted, bits)
    tensors[f"{layer}weight_g_idx"] = g_idx


def _as_old_writer(quantization: dict) -> None:
    quantization["version"] = "0.13.0"
    for group in quantization["config_groups"].values():
        group.pop("format", None)


def _as_old_writer_with_actorder(quantization: dict) -> None:
    _as_old_writer(quantization)
    for group in quantization["config_groups"].values():
        group["weights"]["actorder"] = "group"


_STEPS: dict[str, tuple[Callable[[Tensors, str, int], None], Callable[[dict], None]]] = {
    "padded": (_to_padded, _as_old_writer),
    "g_idx": (_add_g_idx, _as_old_writer_with_actorder),
}
