"""A model of routed experts, packed and in bf16: CPU time of a token and of a prompt, bytes in memory, and the peak of
loading.

The model is synthetic: the shape of Qwen3-MoE, 8 layers of 64 experts, 8 of them for each token, int4 in groups of 32,
about 1 GB packed. Its weights are random bits; the packed tensors are written as they are, and the bf16 twin is what
they dequantize to. Nothing here tells anything about answers.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .timing import interleaved, ratio

ROOT = Path(__file__).resolve().parents[1]
LAYERS, EXPERTS, CHOSEN, HIDDEN, INNER, GROUP = 8, 64, 8, 2048, 512, 32
SHAPE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
#: implementations of experts that transformers has for the CPU; the fastest is the peer
PEERS = ("eager", "batched_mm", "grouped_mm")
#: batched_mm copies the weights of every token's experts: for a prompt that is more memory than the model
PROMPT_PEERS = ("eager", "grouped_mm")
PROMPT = 512
#: tokens that a model decodes in its turn: text is many tokens, and the first finds the caches full of another model
TURN = 8
#: tokens before them
CONTEXT = 16

#: a model that imports what the large one does
SMALL: dict[str, Any] = {
    **SHAPE,
    "vocab_size": 64,
    "hidden_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_experts": 8,
}

#: loads a checkpoint in a process of its own: what the system says it needed at most, and what is left of it
_LOAD = """
import gc, json, re, sys
import torch
from benchmarks.moe import plugin
import quantdispatch
from quantdispatch.engines.memory import release_free_memory
from quantdispatch.engines.tensors import resident_bytes

def status(key):
    return int(re.search(rf"{key}:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024

torch.set_num_threads(1)
with plugin():
    quantdispatch.load(sys.argv[2])
    gc.collect()
    release_free_memory()
    open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts again from here
    idle = status("VmRSS")
    model = quantdispatch.load(sys.argv[1])
    print(json.dumps({"peak": status("VmHWM") - idle, "resident": resident_bytes(model)}))
"""


def write(folder: Path, symmetric: bool, shape: dict[str, Any] = SHAPE) -> Path:
    """A packed checkpoint, one shard a layer."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3MoeConfig

    generator = torch.Generator().manual_seed(0)
    places: dict[str, str] = {}

    def save(shard: str, tensors: dict[str, Any]) -> None:
        save_file(tensors, folder / shard, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, shard))

    def dense(*shape: int, std: float = 0.02) -> Any:
        return (torch.randn(shape, generator=generator) * std).bfloat16()

    def norm(size: int) -> Any:
        return torch.ones(size, dtype=torch.bfloat16)

    def packed(name: str, n: int, k: int) -> dict[str, Any]:
        def words(*shape: int) -> Any:
            return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator).to(torch.int32)

        scale = (torch.rand(n, k // GROUP, generator=generator) + 0.5) * (0.15 / k**0.5)
        tensors = {"weight_packed": words(n, k // 8), "weight_scale": scale.bfloat16()}
        if not symmetric:
            # 6 to 9, offset-binary: near the middle, as zero points are
            nibbles = words(n // 8, k // GROUP) & 0x33333333
            tensors["weight_zero_point"] = nibbles + 0x66666666
        tensors["weight_shape"] = torch.tensor([n, k])
        return {f"{name}.{key}": tensor for key, tensor in tensors.items()}

    config = Qwen3MoeConfig(**shape)
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    save(
        "model-embeddings.safetensors",
        {
            "model.embed_tokens.weight": dense(config.vocab_size, hidden),
            "lm_head.weight": dense(config.vocab_size, hidden),
            "model.norm.weight": norm(hidden),
        },
    )
    wide, narrow = (config.head_dim * heads for heads in (config.num_attention_heads, config.num_key_value_heads))
    for number in range(config.num_hidden_layers):
        layer = f"model.layers.{number}"
        tensors = {
            f"{layer}.input_layernorm.weight": norm(hidden),
            f"{layer}.post_attention_layernorm.weight": norm(hidden),
            f"{layer}.self_attn.q_norm.weight": norm(config.head_dim),
            f"{layer}.self_attn.k_norm.weight": norm(config.head_dim),
            f"{layer}.mlp.gate.weight": dense(config.num_experts, hidden),
        }
        for projection, n, k in (
            ("q", wide, hidden),
            ("k", narrow, hidden),
            ("v", narrow, hidden),
            ("o", hidden, wide),
        ):
            tensors |= packed(f"{layer}.self_attn.{projection}_proj", n, k)
        for expert in range(config.num_experts):
            for projection, n, k in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
                tensors |= packed(f"{layer}.mlp.experts.{expert}.{projection}_proj", n, k)
        save(f"model-{number}.safetensors", tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": GROUP}
    block = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", r"re:.*\.gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    saved = {**config.to_dict(), "architectures": ["Qwen3MoeForCausalLM"], "quantization_config": block}
    (folder / "config.json").write_text(json.dumps(saved))
    return folder


@contextmanager
def plugin() -> Iterator[None]:
    """Asymmetric experts are served by a distribution of its own, taken from this repository."""
    from quantdispatch.testing.registries import registry_with, using_registry

    source = str(ROOT / "plugins" / "quantdispatch-asym-moe" / "src")
    sys.path.insert(0, source)
    try:
        with using_registry(registry_with("quantdispatch_asym_moe")):
            yield
    finally:
        sys.path.remove(source)


def measure(rounds: int = 9, kinds: tuple[bool, ...] = (False, True)) -> list[dict[str, Any]]:
    """Rows for asymmetric and symmetric weights: ours, and each implementation of transformers' in bf16.

    ``over_``: how many times as fast as the fastest of those, median of the rounds."""
    import torch

    torch.set_num_threads(1)
    rows = []
    for symmetric in kinds:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("QUANTDISPATCH_BENCH_DIR")))
            stack.enter_context(plugin())
            rows += _compare(write(Path(folder), symmetric), symmetric, rounds)
        gc.collect()
    return rows


def loading_bytes(folder: Path) -> dict[str, int] | None:
    """``peak``: most memory while loading, over that of a process that has loaded a small model before. ``resident``:
    the model's tensors. ``None`` where the system does not tell."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    with tempfile.TemporaryDirectory() as small:
        paths = [str(folder), str(write(Path(small), False, SMALL))]
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, *paths], capture_output=True, text=True, check=False, cwd=ROOT
        )
    if done.returncode != 0:
        raise RuntimeError(f"loading {folder}: {done.stderr.strip()[-2000:]}")
    figures: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _compare(folder: Path, symmetric: bool, rounds: int) -> list[dict[str, Any]]:
    import torch

    import quantdispatch
    from quantdispatch.engines.tensors import resident_bytes

    loading = loading_bytes(folder)
    ours = quantdispatch.load(folder)
    dense = quantdispatch.load(folder)
    dense.dequantize(torch.bfloat16)
    bytes_ = {True: resident_bytes(ours), False: resident_bytes(dense)}
    names = ["quantdispatch", *PEERS]
    with torch.inference_mode():
        decode = interleaved({name: _decoder(ours if name == names[0] else dense, name) for name in names}, rounds)
        ids = torch.arange(PROMPT).view(1, -1)
        prompt = {
            name: [_prefill_seconds(ours if name == names[0] else dense, name, ids)]
            for name in (names[0], *PROMPT_PEERS)
        }
    fastest = min(PEERS, key=lambda name: statistics.median(decode[name]))
    reader = min(PROMPT_PEERS, key=lambda name: prompt[name])
    return [
        {
            "weights": f"int4 {'symmetric' if symmetric else 'asymmetric'} g{GROUP}",
            "model": name if name == names[0] else f"transformers bf16 {name}",
            "tokens_per_second": TURN / statistics.median(decode[name]),
            "over_bf16": ratio(decode[fastest], decode[name]),
            "prompt_seconds": prompt[name][0] if name in prompt else None,
            "prompt_over_bf16": ratio(prompt[reader], prompt[name]) if name in prompt else None,
            "resident_bytes": bytes_[name == names[0]],
            "of_bf16": bytes_[name == names[0]] / bytes_[False],
            "loading_over_resident_bytes": loading["peak"] - loading["resident"]
            if loading and name == names[0]
            else None,
        }
        for name in names
    ]


def _select(model: Any, name: str) -> None:
    if name in PEERS:
        model.set_experts_implementation(name)


def _decoder(model: Any, name: str) -> Any:
    """:data:`TURN` tokens in each call, after a short prompt; the tokens differ, so that the experts do."""
    import torch

    cache = model(torch.arange(CONTEXT).view(1, -1), use_cache=True).past_key_values
    state = {"token": 0}

    def step() -> None:
        _select(model, name)
        for _ in range(TURN):
            state["token"] = (state["token"] * 37 + 11) % SHAPE["vocab_size"]
            ids = torch.tensor([[state["token"]]])
            model(ids, past_key_values=cache, use_cache=True)
        cache.crop(-TURN)  # every turn is the same work

    return step


def _prefill_seconds(model: Any, name: str, ids: Any) -> float:
    _select(model, name)
    model(ids[:, :16], use_cache=False)
    start = time.thread_time()
    model(ids, use_cache=False, logits_to_keep=1)
    return time.thread_time() - start
