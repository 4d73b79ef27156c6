"""What a checkpoint computes, by the numerics of its schemes in fp32: no kernel, no adapter and no engine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import quantdispatch as qd
from quantdispatch.engines.tensors import read_tensor
from quantdispatch.registry.lazy import load_target


class ReferenceLinear(nn.Module):
    def __init__(self, numerics: Any, operands: Any) -> None:
        super().__init__()
        self.numerics, self.operands = numerics, operands

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.numerics.forward(x, self.operands)
        return result


@torch.no_grad()
def logprobs(folder: str | Path, ids: list[int]) -> Tensor:
    """[len(ids) - 1]: of each token of the prompt but the first."""
    rows = torch.tensor([ids])
    logits = model(Path(folder))(rows, use_cache=False).logits.float().log_softmax(-1)
    found: Tensor = logits[0, :-1].gather(1, rows[0, 1:, None])[:, 0]
    return found


def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    plan = qd.plan(folder)
    assert plan.checkpoint is not None
    dense = {name: read_tensor(entry).float() for name, entry in plan.checkpoint.tensors.items()}
    quantized = {}
    for name, layer in plan.layers.items():
        if layer.scheme == "dense" or layer.scheme_object is None or layer.shape is None:
            continue
        stored = {local: dense.pop(f"{name}.{local}") for local in layer.tensors}
        exact = {local: read_tensor(entry) for local, entry in layer.tensors.items()}
        numerics = load_target(layer.scheme_object.numerics)(layer.scheme_object.layer)
        operands = numerics.operands(exact, layer.shape, name)
        dense[f"{name}.weight"] = numerics.dequantize(operands, torch.float32)
        if "bias" in stored:
            dense[f"{name}.bias"] = stored["bias"]
        if layer.kind in ("linear", "lm_head"):
            quantized[name] = ReferenceLinear(numerics, operands)
    with tempfile.TemporaryDirectory() as scratch:
        config = json.loads((folder / "config.json").read_text())
        del config["quantization_config"]
        Path(scratch, "config.json").write_text(json.dumps(config))
        save_file({name: t.contiguous() for name, t in dense.items()}, Path(scratch, "model.safetensors"))
        built = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32)
    if built.config.tie_word_embeddings:
        built.tie_weights()
    for name, module in quantized.items():
        built.set_submodule(name, module)
    return built
