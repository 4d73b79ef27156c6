"""The layers that everything is tried with: every way to quantize that checkpoints use, in odd and even sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from math import lcm
from typing import Any

from ...registry.args import QuantArgs
from .layers import Layer

_TOKEN: dict[str, Any] = {"strategy": "token", "dynamic": True}
_MX: dict[str, Any] = {"strategy": "group", "group_size": 32, "scale_dtype": "uint8"}
_NV: dict[str, Any] = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
_WAYS: tuple[dict[str, Any], ...] = (
    {"strategy": "tensor"},
    {"strategy": "channel"},
    *({"strategy": "group", "group_size": size} for size in (128, 64, 32, 16, 20)),
    {"strategy": "group", "group_size": 32, "actorder": "group"},
    {"strategy": "block", "block_structure": [16, 24]},
)
#: K of a dense layer or of one scale a row, and N, in sizes that suit every kernel and that suit few
_EVEN, _ODD = ((64, 256), (96, 128)), ((19, 96), (33, 80), (7, 37))
_OTHERS = ("moe", "lm_head", "embedding")
_DTYPES = ("bfloat16", "float16", "float32")


def _int_inputs() -> Iterator[QuantArgs]:
    for symmetric in (True, False):
        yield QuantArgs(symmetric=symmetric, **_TOKEN)
        yield QuantArgs(symmetric=symmetric, strategy="tensor")
        yield QuantArgs(symmetric=symmetric, strategy="tensor", dynamic=True)
    yield QuantArgs(strategy="group", group_size=32, dynamic=True)
    yield QuantArgs(num_bits=4, **_TOKEN)


def _fp8_inputs() -> Iterator[QuantArgs]:
    yield QuantArgs(type="float", **_TOKEN)
    yield QuantArgs(type="float", strategy="tensor")
    yield QuantArgs(type="float", strategy="tensor", dynamic=True)
    yield QuantArgs(type="float", strategy="group", group_size=128, dynamic=True)


def _mx(bits: int, dynamic: bool = False) -> QuantArgs:
    return QuantArgs(type="float", num_bits=bits, dynamic=dynamic, **_MX)


def _sides() -> Iterator[tuple[QuantArgs | None, QuantArgs | None, QuantArgs | None]]:
    """Weights, inputs and outputs that may go together."""
    yield None, None, None
    integers, floats = (None, *_int_inputs()), (None, *_fp8_inputs())
    static = [side for side in integers if side is not None and not side.dynamic]
    for bits in (4, 8, 3, 2, 1, 5, 6, 7):
        for symmetric in (True, False):
            for way in _WAYS:
                weights = QuantArgs(num_bits=bits, symmetric=symmetric, **way)
                yield from ((weights, side, None) for side in (*integers, *floats[1:3]))
                yield from ((weights, side, side) for side in static)
    for way in (*_WAYS[:5], _WAYS[-1], {"strategy": "block", "block_structure": [128, 128]}):
        yield from ((QuantArgs(type="float", **way), side, None) for side in floats)
    for dynamic in (None, "local"):
        yield QuantArgs(**_NV), None if dynamic is None else QuantArgs(**_NV, dynamic=dynamic), None
    for bits in (4, 6, 8):
        yield from ((_mx(bits), side, None) for side in (None, _mx(8, True)))
    yield _mx(4), _mx(4, True), None
    yield _mx(4), QuantArgs(type="float", **_TOKEN), None


def _caches() -> Iterator[Layer]:
    for strategy in ("tensor", "attn_head"):
        scales = QuantArgs(type="float", strategy=strategy)
        for kind in ("kv_cache", "attention"):
            for number, dtype in enumerate(_DTYPES):
                yield Layer(None, scales, kind=kind, n=4, k=16, dtype=dtype, scale_dtype=_DTYPES[number - 1])


def usual_layers(formats: Iterable[str | None] = (None,)) -> tuple[Layer, ...]:
    """All of them for each of ``formats``, in an order that is always the same and means nothing. Sizes, dtypes and
    bias vary along, so that each meets each without multiplying the layers."""
    return _usual(tuple(formats))


@cache
def _usual(formats: tuple[str | None, ...]) -> tuple[Layer, ...]:
    found = []
    shuffled = random.Random(0)
    for form in formats:
        for weights, inputs, outputs in _sides():
            # of what there is little of, every kind
            few = weights is None or weights.type == "float"
            for kind in ("linear", *(_OTHERS if few else (shuffled.choice(_OTHERS),))):
                n, k = _size(shuffled, weights, inputs)
                found.append(
                    Layer(
                        weights, inputs, outputs, kind, form, n, k,
                        shuffled.choice(_DTYPES), shuffled.choice(_DTYPES),
                        kind != "embedding" and shuffled.random() < 0.5, shuffled.randrange(1 << 16),
                    )
                )  # fmt: skip
        found += [cache.with_(format=form) for cache in _caches()]
    shuffled.shuffle(found)
    return tuple(found)


def varied(layers: Iterable[Layer]) -> Iterator[Layer]:
    """Each of ``layers`` in every dtype, with and without a bias, and in a size that few kernels like: what takes only
    a few ways to quantize is tried with these."""
    for layer in layers:
        biases = (False,) if layer.kind in ("embedding", "kv_cache", "attention") else (True, False)
        for number, (dtype, bias) in enumerate((dtype, bias) for dtype in _DTYPES for bias in biases):
            yield layer.with_(dtype=dtype, bias=bias, scale_dtype=_DTYPES[number % 3])
            if layer.kind not in ("kv_cache", "attention"):
                n, k = _size(random.Random(number), layer.weights, layer.inputs, odd=True)
                yield layer.with_(dtype=dtype, bias=bias, n=n, k=k)


def _size(choices: random.Random, *sides: QuantArgs | None, odd: bool | None = None) -> tuple[int, int]:
    n, k = choices.choice(_ODD if (choices.random() >= 0.6 if odd is None else odd) else _EVEN)
    unit = lcm(*(side.group_size for side in sides if side is not None and side.group_size and side.group_size > 0))
    block = next((side.block_structure for side in sides if side is not None and side.block_structure), None)
    if block is not None and choices.random() < 0.5:
        k = block[1] * 8
    # whole groups; and where they are small, enough of them
    return n, (k if k % unit == 0 else unit * (3 if unit >= 64 else 6))


def covering(layers: Iterable[Layer], most: int) -> list[Layer]:
    """At most ``most`` of ``layers`` in which every value of every field, and then as many pairs of values as can be,
    occur: what one field does often shows beside one value of another only."""
    pool = list(layers)
    singles = _greedy(pool, lambda layer: _values(layer), most)
    rest = [layer for layer in pool if layer not in singles]
    seen = {pair for layer in singles for pair in combinations(_values(layer), 2)}
    return singles + _greedy(rest, lambda layer: list(combinations(_values(layer), 2)), most - len(singles), seen)


def _greedy(
    pool: Sequence[Layer], parts: Callable[[Layer], list[Any]], most: int, seen: set[Any] | None = None
) -> list[Layer]:
    covered: set[Any] = set(seen or ())
    candidates = {layer: set(parts(layer)) for layer in pool}
    chosen: list[Layer] = []
    while candidates and len(chosen) < most:
        best = max(candidates, key=lambda layer: len(candidates[layer] - covered))
        if not candidates[best] - covered:
            break
        covered |= candidates.pop(best)
        chosen.append(best)
    return chosen


def _values(layer: Layer) -> list[Hashable]:
    found: list[Hashable] = [("kind", layer.kind), ("format", layer.format), ("dtype", layer.dtype)]
    found += [("scale", layer.scale_dtype), ("bias", layer.bias), ("odd", bool(layer.n % 16), bool(layer.k % 16))]
    for name in ("weights", "inputs", "outputs"):
        side: QuantArgs | None = getattr(layer, name)
        if side is None:
            found.append((name, None))
            continue
        found += [(name, field, getattr(side, field)) for field in ("type", "num_bits", "symmetric", "dynamic")]
        found.append((name, side.strategy, side.group_size, side.actorder == "group"))
    return found
