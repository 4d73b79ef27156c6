"""What `make demo` shows: a plan, an answer through our kernels, and what it costs beside the same model in bf16.

python examples/demo.py [VARIANT]     w4a16-asym unless another is named; `make_model.py --list` names them
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_models import VARIANTS, MissingSource, smollm2_base, smollm2_variant

if TYPE_CHECKING:
    from torch import Tensor

QUESTION = "What is the capital of France?"
NEW_TOKENS = 12
ROUNDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", nargs="?", default="w4a16-asym", choices=sorted(VARIANTS), metavar="VARIANT")
    variant = parser.parse_args().variant
    try:
        print(f"SmolLM2-135M-Instruct in {variant}, made on the first run and kept", flush=True)
        quantized, plain = smollm2_variant(variant), smollm2_base()
    except MissingSource as error:
        print(f"cannot make the model: {error}", file=sys.stderr)
        return 1
    shown = os.path.relpath(quantized)  # short enough to be read, and good to be typed again
    for command in (["explain", shown], ["run", shown, "--prompt", QUESTION]):
        status = _show(command)
        if status:
            return status
    compare(variant, quantized, plain)
    return 0


def _show(arguments: list[str]) -> int:
    shown = [f'"{part}"' if " " in part else part for part in arguments]
    print(f"\n$ quantdispatch {' '.join(shown)}", flush=True)
    return subprocess.run([Path(sys.executable).parent / "quantdispatch", *arguments], check=False).returncode


def compare(variant: str, quantized: Path, plain: Path) -> None:
    """Print weight bytes and decode speed of both models, loaded side by side and timed in turns.

    Speed is CPU time of one thread: on a busy machine waiting says nothing about either.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    import quantdispatch as qd

    print("\nBeside the same model in bf16:", flush=True)
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(plain)
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    loaders = {
        f"quantdispatch {variant}": lambda: qd.load(quantized, dtype=torch.bfloat16),
        "transformers bf16": lambda: AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16),
    }
    models, sizes = {}, {}
    for name, load in loaders.items():
        before = live_tensor_bytes()
        models[name] = load().eval()
        generate(models[name], prompt, 2)  # weights that a kernel makes on first use count too
        sizes[name] = live_tensor_bytes() - before
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, model in models.items():
            times[name].append(seconds_per_token(model, prompt))
    print(f"{'':32}{'resident weights':>18}{'decode':>18}")
    for name in models:
        speed = 1 / statistics.median(times[name])
        print(f"{name:32}{sizes[name] / 1e6:>15.1f} MB{speed:>9.1f} tokens/s")
    print(f"(batch 1, CPU time of one thread, median of {ROUNDS} turns of {NEW_TOKENS} tokens)")


def seconds_per_token(model: Any, prompt: dict[str, Tensor]) -> float:
    """Seconds of one decoding step; the prompt's own forward is measured apart and taken off."""
    return (generate(model, prompt, NEW_TOKENS + 1) - generate(model, prompt, 1)) / NEW_TOKENS


def generate(model: Any, prompt: dict[str, Tensor], count: int) -> float:
    """CPU seconds of generating exactly `count` tokens."""
    import torch

    start = time.thread_time()
    with torch.inference_mode():
        model.generate(**prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    return time.thread_time() - start


def live_tensor_bytes() -> int:
    """Bytes of all tensors that Python objects hold, each storage once: whatever a kernel keeps of a weight."""
    import torch

    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        # Not isinstance: it asks lazily imported modules for their class, which imports them.
        if not issubclass(type(thing), torch.Tensor) or thing.device.type == "meta":
            continue
        if thing.layout is torch._mkldnn:  # opaque: no storage to ask
            storages[id(thing)] = thing.numel() * thing.element_size()
        else:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


if __name__ == "__main__":
    sys.exit(main())
