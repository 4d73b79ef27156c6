"""``PYTHON one_model.py ENGINE FOLDER``: a model in a process of its own, which decodes when it is told to.

Needs nothing of this repository, so that the interpreter may be one that has vLLM and not quantdispatch. First a line
of JSON with what the weights take; then, for each line that is read, one with the CPU seconds of a token. One thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NEW_TOKENS = 16


def main() -> None:
    engine, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print to standard output
    generate, resident, version = ENGINES[engine](folder)
    text = generate(NEW_TOKENS)
    print(json.dumps({"resident_bytes": resident(), "answer": text, "version": version}), file=answers)
    for _ in sys.stdin:
        print(
            json.dumps({"seconds": (_seconds(generate, NEW_TOKENS) - _seconds(generate, 1)) / (NEW_TOKENS - 1)}),
            file=answers,
        )


def _seconds(generate: Callable[[int], str], tokens: int) -> float:
    start = time.process_time()
    generate(tokens)
    return time.process_time() - start


def _bytes(model: Any) -> int:
    """Of the storages behind all parameters and buffers, each once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())


def _in_transformers(model: Any, folder: str) -> tuple[Callable[[int], str], Callable[[], int], str]:
    import torch
    import transformers

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    def generate(tokens: int) -> str:
        with torch.inference_mode():
            found = model.generate(**ids, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)
        return str(tokenizer.decode(found[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))

    return generate, lambda: _bytes(model), transformers.__version__


def _quantdispatch(folder: str) -> Any:
    import quantdispatch

    generate, resident, _ = _in_transformers(quantdispatch.load(folder), folder)
    return generate, resident, quantdispatch.__version__


def _transformers(folder: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return _in_transformers(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval(), folder)


def _vllm(folder: str) -> Any:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0",
    }
    import vllm

    # what its compiler adds to so small a model is less than the minutes it takes
    model = vllm.LLM(folder, dtype="bfloat16", enforce_eager=True, max_model_len=256)

    def generate(tokens: int) -> str:
        sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        return str(model.chat(QUESTION, sampling, use_tqdm=False)[0].outputs[0].text)

    inner = model.llm_engine.model_executor.driver_worker.worker.model_runner.model
    return generate, lambda: _bytes(inner), vllm.__version__


ENGINES: dict[str, Callable[[str], Any]] = {
    "quantdispatch": _quantdispatch,
    "transformers": _transformers,
    "vllm": _vllm,
}

if __name__ == "__main__":
    main()
