"""``python -m benchmarks presets [--only NAME ...]``: SmolLM2 in every preset of compressed-tensors.

Writes benchmarks/results/smollm2_presets.json and docs/smollm2-presets.md. What does not depend on our kernels, the
decompressed model's answer and the comparison with llmcompressor's files, is kept from the last run (``--afresh``
measures it again). ``--llmcompressor PYTHON``: of an environment that has llmcompressor, to write the files with it
too.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from . import agreement, models
from .preset_page import PAGE, RESULTS, render
from .timing import interleaved, ratio

QUESTION = "What is the capital of France?"
#: of the answer, given to all: two first words are a tie in the unquantized model, and only one of them leads to Paris
OPENING = "The capital of France is"
#: tokens that are timed; the answer ends long before
TOKENS = 16
ANSWER_TOKENS = 10
#: ``quantdispatch verify``'s own
TOLERANCE = 1e-2
#: part of transformers' message -> what of the files it is about
FAILURES = {"unflatten": "groups of inputs", "ignore_mismatched_sizes": "packed zero points"}
#: what llmcompressor wrote, a folder a preset
LLMCOMPRESSOR = Path(__file__).parents[1] / ".cache" / "models" / "llmcompressor"
_SHOWN = ("kernels", "worst_error", "over_bf16", "answer", "decompressed", "llmcompressor")


def measure(
    only: list[str] | None = None, *, ours: bool = True, afresh: bool = False, llmcompressor: str | None = None
) -> dict[str, Any]:
    """The results of all presets, those of ``only`` (all) new. They are in the file after each preset.

    ``ours``: measure our side; without it, only what does not depend on our kernels.
    """
    import torch
    from demo_models.presets import PRESETS, smollm2_preset

    torch.set_num_threads(1)
    if llmcompressor:
        _write_with_llmcompressor(only or list(PRESETS), llmcompressor)
    for name in only or PRESETS:
        stored = _read()["presets"].get(name, {})
        folder = smollm2_preset(name)
        row: dict[str, Any] = {}
        if ours:
            row |= {"writer": _version("compressed-tensors"), **_ours(str(folder))}
        if afresh or "decompressed" not in stored:
            row |= _decompressed(str(folder))
        if llmcompressor:
            row["llmcompressor"] = _compared(folder, LLMCOMPRESSOR / name) | {"versions": _versions(llmcompressor)}
        _keep(name, row, list(PRESETS))
        print(name, {key: row[key] for key in _SHOWN if key in row}, flush=True)
        gc.collect()
    return _read()


def _keep(name: str, row: dict[str, Any], order: list[str]) -> None:
    """Into the file, which another run may have written to meanwhile."""
    results = _read()
    presets = results["presets"]
    presets[name] = presets.get(name, {}) | row
    results |= {
        "measured_with": _measured_with(),
        "tokens": TOKENS,
        "bf16": results["bf16"] or _bf16(),
        "presets": {name: presets[name] for name in order if name in presets},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _read() -> dict[str, Any]:
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return {"measured_with": {}, "bf16": {}, "presets": {}, **stored}


class Decoder:
    """A model and its cache after the question; each :meth:`step` is one greedy token."""

    def __init__(self, model: Any, ids: Any) -> None:
        import torch

        self.model, self.tokens = model, []
        with torch.inference_mode():
            self._take(model(ids, use_cache=True))

    def step(self) -> None:
        import torch

        with torch.inference_mode():
            self._take(self.model(self.last, past_key_values=self.cache, use_cache=True))

    def _take(self, output: Any) -> None:
        self.cache = output.past_key_values
        self.last = output.logits[:, -1:].argmax(-1)
        self.tokens.append(int(self.last))

    def text(self, tokenizer: Any) -> str:
        """As far as the end of the answer."""
        tokens = self.tokens[:ANSWER_TOKENS]
        if tokenizer.eos_token_id in tokens:
            tokens = tokens[: tokens.index(tokenizer.eos_token_id)]
        return str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def _asked(tokenizer: Any) -> Any:
    """[1, T]: the question, and how the answer begins."""
    import torch

    from quantdispatch.engines.generate import encode

    opening = tokenizer(OPENING, return_tensors="pt", add_special_tokens=False).input_ids
    return torch.cat([encode(tokenizer, QUESTION), opening], dim=1)


def _ours(folder: str) -> dict[str, Any]:
    """Loaded, verified, and decoding beside the unquantized model."""
    import quantdispatch
    from quantdispatch.cli.verify import passes
    from quantdispatch.engines.generate import load_tokenizer
    from quantdispatch.engines.tensors import resident_bytes
    from quantdispatch.engines.verify import verify

    rows = verify(folder)
    model = quantdispatch.load(folder)
    tokenizer = load_tokenizer(folder)
    ids = _asked(tokenizer)
    ours, bf16 = Decoder(model, ids), Decoder(_unquantized(), ids)
    seconds = interleaved({"ours": ours.step, "bf16": bf16.step}, TOKENS)
    return {
        "schemes": dict(Counter(row.scheme for row in rows)),
        "kernels": dict(Counter(row.kernel for row in rows)),
        "worst_error": max(row.error for row in rows),
        "weights_equal": sum(row.weights_equal is True for row in rows),
        "verified": all(passes(row, TOLERANCE) for row in rows),
        "resident_bytes": resident_bytes(model),
        "tokens_per_second": 1 / statistics.median(seconds["ours"]),
        "bf16_tokens_per_second": 1 / statistics.median(seconds["bf16"]),
        "over_bf16": ratio(seconds["bf16"], seconds["ours"]),
        "answer": _our_answer(folder, ids, tokenizer),
    }


@cache
def _unquantized() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(models.folder("bf16"), dtype=torch.bfloat16).eval()


def _bf16() -> dict[str, Any]:
    from quantdispatch.engines.generate import load_tokenizer
    from quantdispatch.engines.tensors import resident_bytes

    tokenizer = load_tokenizer(str(models.folder("bf16")))
    ids = _asked(tokenizer)
    return {
        "resident_bytes": resident_bytes(_unquantized()),
        "answer": _answer(_unquantized(), ids, tokenizer),
    }


def _answer(model: Any, ids: Any, tokenizer: Any) -> str:
    decoder = Decoder(model, ids)
    while len(decoder.tokens) < ANSWER_TOKENS and decoder.tokens[-1] != tokenizer.eos_token_id:
        decoder.step()
    return decoder.text(tokenizer)


def _our_answer(folder: str, ids: Any, tokenizer: Any) -> str:
    """In fp32, where it is a matter of the quantization, and not of the luck of one more rounding in each layer."""
    import torch

    import quantdispatch

    return _answer(quantdispatch.load(folder, dtype=torch.float32), ids, tokenizer)


def _decompressed(folder: str) -> dict[str, Any]:
    from quantdispatch.engines.generate import load_tokenizer

    tokenizer = load_tokenizer(folder)
    answer, failure = _their_answer(folder, _asked(tokenizer), tokenizer)
    return {"decompressed": answer, **({"transformers_fails": failure} if failure else {})}


def _their_answer(folder: str, ids: Any, tokenizer: Any) -> tuple[str, str | None]:
    """Of the model that transformers and compressed-tensors make of the same files, run in fp32: decompressed weights,
    and inputs rounded by compressed-tensors in each call. Where transformers fails, for the reason returned, the model
    has both from compressed-tensors itself, but for inputs in groups, which that cannot round."""
    import torch
    from loguru import logger
    from transformers import AutoModelForCausalLM

    logger.disable("compressed_tensors")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        with torch.no_grad():
            model(ids)  # it decompresses in its first call, into bf16
        # transformers will not do that for a quantized model
        return _answer(torch.nn.Module.float(model), ids, tokenizer), None
    except RuntimeError as error:
        failure = next((why for part, why in FAILURES.items() if part in str(error)), None)
        if failure is None:
            raise
    model = agreement.decompressed(folder).float()
    if failure != FAILURES["unflatten"]:
        _round_inputs(model, folder)
    return _answer(model, ids, tokenizer), failure


def _round_inputs(model: Any, folder: str) -> None:
    """Dynamic ones, by compressed-tensors."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    import quantdispatch

    def rounding(args: Any) -> Any:
        def round_input(module: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
            return (fake_quantize(given[0], *compute_dynamic_scales_and_zp(given[0], args, module), args),)

        return round_input

    fields = {"num_bits", "type", "symmetric", "strategy", "dynamic"}
    for name, layer in quantdispatch.plan(folder).layers.items():
        if layer.inputs is not None:
            args = QuantizationArgs(**layer.inputs.model_dump(include=fields))
            model.get_submodule(name).register_forward_pre_hook(rounding(args))


def _write_with_llmcompressor(names: list[str], python: str) -> None:
    """Into :data:`LLMCOMPRESSOR`, those that are not there yet."""
    missing = [name for name in names if not (LLMCOMPRESSOR / name).is_dir()]
    if missing:
        script = Path(__file__).parents[1] / "examples" / "demo_models" / "presets.py"
        command = [python, str(script), *missing, "--into", str(LLMCOMPRESSOR), "--writer", "llmcompressor"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def _compared(ours: Path, theirs: Path) -> dict[str, Any]:
    if not theirs.is_dir():
        return {"fails": theirs.with_suffix(".failed").read_text(encoding="utf-8")}
    return {"differing": differing(ours, theirs)}


def differing(ours: Path, theirs: Path) -> dict[str, list[int]]:
    """{last part of a tensor's name: [how many have other bytes, another dtype or shape or are absent, of how many]},
    without those that are all the same."""
    import torch
    from safetensors.torch import load_file

    a, b = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    counts: dict[str, list[int]] = {}
    for name in sorted(a.keys() | b.keys()):
        count = counts.setdefault(name.rpartition(".")[2], [0, 0])
        x, y = a.get(name), b.get(name)
        same = x is not None and y is not None and x.dtype == y.dtype and x.shape == y.shape
        count[0] += not (same and torch.equal(x.flatten().view(torch.uint8), y.flatten().view(torch.uint8)))
        count[1] += 1
    return {suffix: count for suffix, count in counts.items() if count[0]}


@cache
def _versions(python: str) -> dict[str, str]:
    names = ("llmcompressor", "compressed-tensors", "transformers")
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _version(name: str) -> str:
    return f"{name} {importlib.metadata.version(name)}"


def _measured_with() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "compressed-tensors")}
    return {**versions, "machine": platform.machine()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks presets", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these presets; the others stay as they were")
    parser.add_argument("--peers", action="store_true", help="only what does not depend on our kernels")
    parser.add_argument("--afresh", action="store_true", help="also what does not depend on our kernels")
    parser.add_argument("--llmcompressor", metavar="PYTHON", help="compare with what llmcompressor writes there")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page of the last results")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.page:
        results = _read()
    else:
        results = measure(
            options.only, ours=not options.peers, afresh=options.afresh, llmcompressor=options.llmcompressor
        )
        if options.peers:
            return
    PAGE.write_text(render(results), encoding="utf-8")
    print(f"{PAGE}: {len(results['presets'])} presets")


if __name__ == "__main__":
    main()
