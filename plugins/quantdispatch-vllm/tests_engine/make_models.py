"""Writes the checkpoints that the tests ask vLLM about, with what the repository's own environment has:
``python make_models.py FOLDER``. vLLM pins a compressed-tensors that cannot write all of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from demo_models import VARIANTS, smollm2_variant, tiny_model  # noqa: E402
from demo_models.moe import tiny_moe  # noqa: E402

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


def main() -> None:
    folder = Path(sys.argv[1])
    for name in TINY:
        tiny_model(name, folder / "tiny" / name)
    for name, stored in EXPERTS.items():
        group = replace(VARIANTS[name].groups[0], format=stored)
        tiny_moe(folder / "experts" / name, {"group_0": group})
    for name in REAL:
        target = folder / "smollm2" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(smollm2_variant(name, folder / "cache").resolve())


if __name__ == "__main__":
    main()
