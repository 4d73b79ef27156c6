"""Which of the five parts an error of a code need not name, and why.

An error names the layer, the field, what was observed, what is required and a remedy. Where one of these does not
apply to a code it stands here, so that what is left out is left out on purpose: a test compares every place that raises
an error, and every case of the catalogue, with this.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

PARTS = ("layer", "field", "observed", "required", "remedy")

_WHOLE = "it is of a file, an argument or a plugin as a whole, and of no single layer"
_SOMEBODY = "another package raises it, with what that knows"
_TABLE = "its sentence quotes the row as it is written"
_TENSOR = "it is known after transformers loaded the model, where tensors have names and layers have none"
_MANY = "errors= holds one error for each layer, which names its own"
_NAMELESS = "a kernel does not know the name of the layer that it computes"
_TRANSLATING = "a translation is of the whole config; where it is a layer's scheme that fails, the layer is named"

#: codes whose errors are each of one layer
_OF_A_LAYER = frozenset(
    {"QD507", "QD515", "QD651", "QD652", "QD653", "QD654", "QD655", "QD656", "QD657", "QD658", "QD659", "QD670"}
    | {"QD660", "QD671", "QD672", "QD673", "QD674", "QD675", "QD676", "QD701", "QD751", "QD753"}
)
_LAYER_REASONS = {
    **dict.fromkeys(("QD801", "QD802", "QD803", "QD804"), _NAMELESS),
    "QD677": _TENSOR,
    "QD915": _TRANSLATING,
}
#: errors of a class that whoever raises them gave no code
_WITHOUT_A_CODE = ("QD500", "QD600", "QD650", "QD700", "QD750", "QD900", "QD910")
_MORE = {
    **dict.fromkeys(_WITHOUT_A_CODE, dict.fromkeys(PARTS, _SOMEBODY)),
    "QD950": dict.fromkeys(PARTS, _MANY),
    "QD960": dict.fromkeys(("field", "observed", "required", "remedy"), _TABLE),
}


@cache
def unnamed(code: str) -> Mapping[str, str]:
    """Part to the reason why errors of ``code`` need not name it; in the order of :data:`PARTS`."""
    layer = {} if code in _OF_A_LAYER else {"layer": _LAYER_REASONS.get(code, _WHOLE)}
    reasons = {**layer, **_MORE.get(code, {})}
    return MappingProxyType({part: reasons[part] for part in PARTS if part in reasons})
