"""SmolLM2 in the presets of compressed-tensors: the names that its users and llmcompressor's give to whole schemes.

`python examples/demo_models/presets.py NAME ... --into FOLDER [--writer llmcompressor]` writes them. llmcompressor
needs an environment of its own, with the versions that it asks for; compressed-tensors writes them here.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a file, with another environment's Python
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_models.cache import DEFAULT_CACHE, made_once
from demo_models.quiet import quiet
from demo_models.smollm2 import CALIBRATION, smollm2_base
from demo_models.variants import Group, Variant

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@dataclass(frozen=True)
class Preset:
    """A preset of compressed-tensors, and what is changed in it.

    `group_size`: of the weights, in place of the preset's 128, which does not divide the model's 576 columns.
    `asymmetric`: weights with zero points, where the preset has none.
    """

    preset: str
    group_size: int | None = None
    asymmetric: bool = False

    @property
    def name(self) -> str:
        size = f"-g{self.group_size}" if self.group_size else ""
        return f"{self.preset}{size}{'-asym' if self.asymmetric else ''}"

    def scheme(self) -> dict[str, Any]:
        """Of compressed-tensors, without targets."""
        from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

        scheme: dict[str, Any] = preset_name_to_scheme(self.preset, ["Linear"]).model_dump(
            mode="json", exclude_none=True, exclude={"targets"}
        )
        if self.group_size:
            scheme["weights"] |= {"strategy": "group", "group_size": self.group_size}
        if self.asymmetric:
            scheme["weights"]["symmetric"] = False
        return scheme

    def variant(self) -> Variant:
        scheme = self.scheme()
        return Variant((Group(scheme["weights"], scheme.get("input_activations")),))


_AS_THEY_ARE = (
    "W8A8", "INT8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP4XFP8",
    "MXFP6A8", "MXFP6A16", "MXFP8", "MXFP8A16",
)  # fmt: skip


def _presets() -> list[Preset]:
    integers = [
        # 4 bits with zero points are a preset of their own
        Preset("W4A16_ASYM", 64) if (bits, inputs, asymmetric) == (4, 16, True) else
        Preset(f"W{bits}A{inputs}", 64, asymmetric)
        for inputs in (16, 8)
        for asymmetric in (False, True)
        for bits in range(2, 9)
    ]  # fmt: skip
    return [
        *map(Preset, _AS_THEY_ARE), *integers, Preset("W4AFP8", 64), *(Preset(f"W{bits}A4", 64) for bits in (2, 3, 4)),
    ]  # fmt: skip


PRESETS: dict[str, Preset] = {preset.name: preset for preset in _presets()}


def smollm2_preset(name: str, cache: Path = DEFAULT_CACHE, *, layers: int | None = None) -> Path:
    """The model, or the first `layers` of its 30, quantized as `PRESETS[name]` says. Kept in `cache`."""
    preset = PRESETS[name]
    label = f"smollm2-preset-{name}" + (f"-{layers}-layers" if layers else "")
    return made_once(cache / label, lambda folder: write_preset(preset, folder, cache, layers=layers))


def write_preset(preset: Preset, folder: Path, cache: Path = DEFAULT_CACHE, *, layers: int | None = None) -> None:
    """Written by compressed-tensors, with the ranges that llmcompressor's observers find."""
    from loguru import logger

    from demo_models.rtn import quantize_and_save

    logger.disable("compressed_tensors")  # a warning a layer that 576 columns are no whole blocks
    with quiet():
        model, tokenizer = _model(cache, layers)
        variant = preset.variant()
        tokens = tokenizer(CALIBRATION, return_tensors="pt").input_ids if variant.needs_calibration else None
        quantize_and_save(model, variant, folder, tokens, like_llmcompressor=True)
        tokenizer.save_pretrained(folder)


def write_with_llmcompressor(preset: Preset, folder: Path, cache: Path = DEFAULT_CACHE) -> None:
    """The same by llmcompressor: data-free, or calibrated on the text that static scales are taken from here."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    model, tokenizer = _model(cache, None)
    recipe = (
        QuantizationModifier(config_groups={"group_0": {"targets": ["Linear"], **preset.scheme()}}, ignore=["lm_head"])
        if preset.group_size
        else QuantizationModifier(targets="Linear", scheme=preset.preset, ignore=["lm_head"])
    )
    calibration: dict[str, Any] = {}
    if preset.variant().needs_calibration:
        from datasets import Dataset

        samples = Dataset.from_list([dict(tokenizer(CALIBRATION))])
        calibration = {"dataset": samples, "num_calibration_samples": 1, "max_seq_length": 512}
    oneshot(model=model, recipe=recipe, tokenizer=tokenizer, **calibration)
    model.save_pretrained(folder, save_compressed=True)
    tokenizer.save_pretrained(folder)


WRITERS = {"compressed-tensors": write_preset, "llmcompressor": write_with_llmcompressor}


def _model(cache: Path, layers: int | None) -> tuple[LlamaForCausalLM, Any]:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    base = smollm2_base(cache)
    shorter = {"num_hidden_layers": layers} if layers else {}
    return LlamaForCausalLM.from_pretrained(base, dtype=torch.bfloat16, **shorter), AutoTokenizer.from_pretrained(base)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write SmolLM2 in presets of compressed-tensors.")
    parser.add_argument("names", nargs="+", choices=PRESETS, metavar="NAME", help=", ".join(PRESETS))
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="a folder a preset is made there")
    parser.add_argument("--writer", choices=WRITERS, default="compressed-tensors")
    options = parser.parse_args()
    for name in options.names:
        try:
            made_once(options.into / name, partial(WRITERS[options.writer], PRESETS[name]))
        except (KeyError, ValueError) as error:  # a writer may be older than a preset
            (options.into / f"{name}.failed").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
