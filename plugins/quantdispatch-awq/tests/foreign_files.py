"""Tiny checkpoints as AutoAWQ and GPTQ write them, packed value by value from the formats' definitions.

Nothing of the plugin, and nothing of quantdispatch, is used: a word is a Python integer that values are added to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

AWQ_COLUMN_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Layer:
    """One linear layer: ``values`` [N, K] and ``zeros`` [N, G], 0 to 2^bits - 1; ``scales`` fp16 [N, G]; ``groups``
    [K], the group of each column."""

    bits: int
    values: Tensor
    zeros: Tensor
    scales: Tensor
    groups: Tensor
    bias: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """[N, K], fp16."""
        spread = self.values - self.zeros[:, self.groups]
        return spread.half() * self.scales[:, self.groups]

    @property
    def exact_weight(self) -> Tensor:
        """[N, K], fp32: kernels do not round the product to fp16."""
        return (self.values - self.zeros[:, self.groups]).float() * self.scales[:, self.groups].float()


def random_layer(
    n: int, k: int, *, bits: int = 4, group: int = 32, symmetric: bool = False, ordered: bool = False, seed: int = 0
) -> Layer:
    """``group`` -1: one for the whole row. ``ordered``: columns belong to groups in random order."""
    random = torch.Generator().manual_seed(seed)
    size = k if group == -1 else group
    count, top = k // size, (1 << bits)
    zeros = torch.randint(top, (n, count), generator=random)
    if symmetric:
        zeros = torch.full_like(zeros, top // 2)
    groups = torch.arange(k) // size
    if ordered:
        groups = groups[torch.randperm(k, generator=random)]
    scales = (torch.rand(n, count, generator=random) + 0.5) * 0.3 / top
    return Layer(bits, torch.randint(top, (n, k), generator=random), zeros, scales.half(), groups)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def rows_of_words(values: Tensor, bits: int) -> Tensor:
    """[R, C] to int32 [R, C bits / 32]: a row is one long number, lowest value first, cut into words."""
    rows = []
    for row in values.tolist():
        number = sum(value << (bits * place) for place, value in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([_signed((number >> (32 * word)) & 0xFFFFFFFF) for word in range(count)])
    return torch.tensor(rows, dtype=torch.int32)


def awq_words(values: Tensor) -> Tensor:
    """[R, C] to int32 [R, C / 8], nibble i of a word holding column AWQ_COLUMN_OF_NIBBLE[i] of its eight."""
    rows = []
    for row in values.tolist():
        eights = [row[start : start + 8] for start in range(0, len(row), 8)]
        words = [sum(eight[c] << (4 * i) for i, c in enumerate(AWQ_COLUMN_OF_NIBBLE)) for eight in eights]
        rows.append([_signed(word) for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def awq_gemm(layer: Layer) -> dict[str, Tensor]:
    return {
        "qweight": awq_words(layer.values.T),
        "qzeros": awq_words(layer.zeros.T),
        "scales": layer.scales.T.contiguous(),
    }


def awq_gemv(layer: Layer) -> dict[str, Tensor]:
    n, count = layer.zeros.shape
    size = layer.values.shape[1] // count
    unit = {32: 4, 64: 2}.get(size, 1)  # words of eight groups that are always together
    width = math.ceil(math.ceil(count / 8) / unit) * unit
    zeros, scales = torch.zeros(n, width * 8, dtype=torch.int64), torch.zeros(n, width * 8, dtype=torch.float16)
    zeros[:, :count], scales[:, :count] = layer.zeros, layer.scales
    return {"qweight": rows_of_words(layer.values, 4), "qzeros": rows_of_words(zeros, 4), "scales": scales}


def gptq(layer: Layer, version: str = "gptq") -> dict[str, Tensor]:
    """``version``: ``"gptq"`` stores zero points less one, ``"gptq_v2"`` as they are, ``"words"`` words less ones."""
    top = 1 << layer.bits
    zeros = layer.zeros if version != "gptq" else (layer.zeros - 1) % top
    words = rows_of_words(zeros.T, layer.bits)
    if version == "words":
        ones = sum(1 << place for place in range(0, 32, layer.bits))
        less = (words.to(torch.int64) - ones) & 0xFFFFFFFF
        words = torch.where(less >= 1 << 31, less - (1 << 32), less).to(torch.int32)
    return {
        "qweight": rows_of_words(layer.values, layer.bits).T.contiguous(),
        "qzeros": words,
        "scales": layer.scales.T.contiguous(),
        "g_idx": layer.groups.to(torch.int32),
    }


def packed(layer: Layer, layout: str) -> dict[str, Tensor]:
    """``layout``: ``gemm``, ``gemv``, ``gptq``, ``gptq_v2`` or ``words``."""
    tensors = {"gemm": awq_gemm, "gemv": awq_gemv}[layout](layer) if layout.startswith("ge") else gptq(layer, layout)
    return tensors if layer.bias is None else {**tensors, "bias": layer.bias}


@dataclass
class Written:
    """``folder``: of the checkpoint; ``twin``: of the same model unquantized, its weights the decoded ones in fp32."""

    folder: Path
    twin: Path
    layers: dict[str, Layer] = field(default_factory=dict)


def write_model(
    folder: Path,
    layout: str,
    block: dict[str, Any],
    *,
    model: Any,
    pad_bias: bool = False,
    choose: Callable[[str], dict[str, Any] | None] = lambda name: {},
    **args: Any,
) -> Written:
    """Every matrix in the blocks of ``model``, replaced by a random one and stored in ``layout``.

    ``pad_bias``: every layer has a bias, zero where the model has none. ``args``: of :func:`random_layer`; ``choose``
    gives the layer of a name others, or ``None``: it stays dense.
    """
    written = Written(folder / "checkpoint", folder / "twin")
    model.save_pretrained(written.twin)
    dense = load_file(written.twin / "model.safetensors")
    tensors = dict(dense)
    for name in sorted(name.removesuffix(".weight") for name, t in dense.items() if ".layers." in name and t.ndim == 2):
        own = choose(name)
        if own is None:
            continue
        layer = random_layer(*dense[f"{name}.weight"].shape, **{**args, **own}, seed=len(written.layers))
        layer.bias = tensors.pop(f"{name}.bias", None)
        if layer.bias is None and pad_bias:
            layer.bias = torch.zeros(len(layer.values), dtype=torch.float16)
        written.layers[name] = layer
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{local}": tensor for local, tensor in packed(layer, layout).items()}
        dense[f"{name}.weight"] = layer.exact_weight
    save_file(dense, written.twin / "model.safetensors", {"format": "pt"})
    written.folder.mkdir()
    save_file(tensors, written.folder / "model.safetensors", {"format": "pt"})
    config = json.loads((written.twin / "config.json").read_text())
    (written.folder / "config.json").write_text(json.dumps({**config, "quantization_config": block}))
    return written
