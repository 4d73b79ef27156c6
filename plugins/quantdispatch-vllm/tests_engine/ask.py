"""Lets vLLM answer for checkpoints, in a process of its own: ``python ask.py REQUEST.json ANSWER.json``.

A request is ``{"models": {name: folder}, "ids": [...], "dtype", "tensor_parallel", "eager", "tokens"}``; an answer maps
each name to ``{"logprobs", "tokens", "methods", "seconds"}`` or ``{"error"}``: log-probabilities of the prompt's tokens
but the first, the tokens generated, and how many modules go by which class.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter
from typing import Any

# several models in one process, where one rank is enough
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def methods(model: Any) -> dict[str, int]:
    """Classes of quant methods, and kernels of those that are quantdispatch's."""
    found: Counter[str] = Counter()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            kernels = sorted({type(impl).__name__ for impl, _ in getattr(method, "kernels", ())})
            found[" ".join([type(method).__name__, *kernels])] += 1
    return dict(found)


def answer(folder: str, request: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    llm = LLM(
        folder,
        dtype=request.get("dtype", "bfloat16"),
        enforce_eager=request.get("eager", True),
        tensor_parallel_size=request.get("tensor_parallel", 1),
        max_model_len=256,
        max_num_seqs=4,
        disable_log_stats=True,
        skip_tokenizer_init=True,
        **request.get("more", {}),
    )
    ids = request["ids"]
    sampling = SamplingParams(
        temperature=0, max_tokens=request.get("tokens", 4), prompt_logprobs=0, ignore_eos=True, detokenize=False
    )
    result = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)[0]
    rows = result.prompt_logprobs[1:]
    return {
        "logprobs": [row[token].logprob for row, token in zip(rows, ids[1:], strict=True)],
        "tokens": list(result.outputs[0].token_ids),
        # a function of this file cannot be sent to workers in other processes
        "methods": llm.apply_model(methods)[0] if request.get("tensor_parallel", 1) == 1 else {},
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    with open(sys.argv[1]) as stream:
        request = json.load(stream)
    if request.get("tensor_parallel", 1) == 1 and request.get("in_process", True):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    elif "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        # vLLM gives each rank a NUMA node, and refuses where there are too few, unless told which cores are whose
        cores = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(
            str(cores[rank % len(cores)]) for rank in range(request.get("tensor_parallel", 1))
        )
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for apply_model
    answers = {}
    for name, folder in request["models"].items():
        try:
            answers[name] = answer(folder, request)
        except Exception as error:
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        with open(sys.argv[2], "w") as stream:
            json.dump(answers, stream)


if __name__ == "__main__":
    main()
