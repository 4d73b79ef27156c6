"""Legal witnesses: a layer that lies in a box and that compressed-tensors would accept.

A box can be non-empty and still hold no legal layer (``strategy: channel`` with ``group_size: 128``), so analysis asks
for a witness: candidate values of every field are tried in order, and the quant args' own validation decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from .args import QuantArgs
from .facts import ARGS_FIELDS, KINDS, LayerFacts
from .predicates import Box
from .values import ABSENT, PRESENT

#: Values that matter to some format, the usual ones first; a box's own cut points come on top.
CANDIDATES: dict[str, tuple[Any, ...]] = {
    "type": ("int", "float"),
    "num_bits": (4, 8, 2, 3, 5, 6, 7, 1, 16),
    "strategy": ("group", "channel", "tensor", "token", "block", "tensor_group", "attn_head"),
    "symmetric": (True, False),
    "dynamic": (False, True, "local"),
    "group_size": (None, 128, 32, 16, 64, -1),
    "block_structure": (None, (128, 128)),
    "actorder": (None, "static", "weight", "group"),
    "scale_dtype": (None, "uint8", "float8_e4m3fn", "bfloat16"),
}
FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", None)
#: combinations tried before saying "none found"; a box of the built-in rules needs a few dozen
FUEL = 50_000


def witness(box: Box) -> LayerFacts | None:
    """A legal layer inside ``box``, or ``None`` when there is none among the candidates."""
    domains = box.domains
    kind = _first(box, "kind", KINDS)
    format_ = _first(box, "format", FORMATS)
    if kind is None or (format_ is None and None not in domains.get("format", _ANY)):
        return None
    sides: list[list[QuantArgs | None]] = []
    for side in ("weights", "inputs", "outputs"):
        found = list(_side_witnesses(box, side))
        if not found:
            return None
        sides.append(found)
    for weights, inputs, outputs in product(*sides):
        facts = LayerFacts(kind, format_, weights, inputs, outputs)
        if box.test(facts.flat).status == "yes":
            return facts
    return None


class _Any:
    def __contains__(self, value: Any) -> bool:
        return True


_ANY = _Any()


def _first(box: Box, name: str, values: tuple[Any, ...]) -> Any:
    wanted = box.domains.get(name)
    if wanted is None:
        return values[0]
    pool = [*values, *sorted((v for v in wanted.cuts() if v not in values), key=str)]
    return next((v for v in pool if v in wanted), None)


def _side_witnesses(box: Box, side: str, most: int = 8) -> Iterator[QuantArgs | None]:
    """A few legal args of one side inside the box (several, because relations between sides may rule some out)."""
    wanted = box.domains.get(side)
    if wanted is None or ABSENT in wanted:
        yield None
    if wanted is not None and PRESENT not in wanted:
        return
    columns = []
    for name in ARGS_FIELDS:
        if name == "zp_dtype":
            continue  # follows from type and bits
        domain_ = box.domains.get(f"{side}.{name}")
        cuts = () if domain_ is None else sorted((v for v in domain_.cuts() if v not in CANDIDATES[name]), key=str)
        columns.append([(name, v) for v in (*CANDIDATES[name], *cuts) if domain_ is None or v in domain_])
    found = 0
    for _, values in zip(range(FUEL), product(*columns), strict=False):
        args = _legal(dict(values))
        if args is not None and all(getattr(args, k) == v for k, v in values):
            yield args
            found += 1
            if found == most:
                return


def _legal(fields: dict[str, Any]) -> QuantArgs | None:
    try:
        return QuantArgs(**fields)
    except Exception:  # pydantic's and the config's own errors alike mean: not legal
        return None
