"""Writes the checkpoints that the tests ask vLLM about, with what the repository's own environment has:
``python make_models.py FOLDER``. vLLM pins a compressed-tensors that cannot write all of them."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from demo_models import VARIANTS, smollm2_variant, tiny_model  # noqa: E402
from demo_models.moe import compress, tiny_moe  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

#: of two layers and random weights, by all that is stored and computed in different ways
TINY = (
    "w4a16-asym", "w4a16-sym", "w4a16-asym-g_idx", "w4a16-tensor-asym", "w4a16-lm_head", "w3a16-asym",
    "w3a16-asym-padded", "w8a16-int", "w4a8", "w8a8-int8", "w8a8-int8-static-asym", "fp8-dynamic", "fp8-static",
    "fp8-block", "fp8-w8a16", "nvfp4", "nvfp4a16", "mxfp4a16", "mxfp8", "mixed",
)  # fmt: skip
#: experts, with the format that each variant's tensors are stored in
EXPERTS = {"w4a16-sym": "pack-quantized", "w4a16-asym": "pack-quantized", "w8a8-int8": "int-quantized"}
#: of the real model
REAL = ("w4a16-sym", "w4a16-asym", "w8a8-int8", "fp8-dynamic", "w8a16-int", "nvfp4a16")


#: tables: a quantized embedding, with a head of its own and with one that shares it
TABLES = {"untied": False, "tied": True}
#: a vocabulary that is no multiple of what vLLM pads it to
VOCABULARY = 260


def quantized_embedding(folder: Path, tied: bool) -> None:
    """A model in which the embedding alone is quantized, found by its name."""
    if folder.exists():
        return
    plain = tiny_model("bf16", folder.with_name(f"{folder.name}-bf16"), tied=tied, vocab_size=VOCABULARY)
    tensors = load_file(plain / "model.safetensors")
    group = replace(VARIANTS["w4a16-asym"].groups[0], format="pack-quantized", targets=("re:.*embed_tokens$",))
    name = "model.embed_tokens"
    tensors |= {f"{name}.{key}": value for key, value in compress(tensors.pop(f"{name}.weight"), group).items()}
    shutil.copytree(plain, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "version": "0.20.1", "ignore": [],
        "config_groups": {"group_0": {"targets": list(group.targets), "weights": group.weights}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    folder = Path(sys.argv[1])
    for name in TINY:
        tiny_model(name, folder / "tiny" / name)
    for name, stored in EXPERTS.items():
        group = replace(VARIANTS[name].groups[0], format=stored)
        tiny_moe(folder / "experts" / name, {"group_0": group})
    for name, tied in TABLES.items():
        quantized_embedding(folder / "tables" / name, tied)
    for name in REAL:
        target = folder / "smollm2" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(smollm2_variant(name, folder / "cache").resolve())


if __name__ == "__main__":
    main()
