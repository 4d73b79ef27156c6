"""Names of the tensor dtypes that a config may state, without importing the library that defines them.

compressed-tensors accepts any dtype attribute of torch as a string, with or without ``torch.`` before it. The table is
compared with the installed torch by the tests.
"""

from __future__ import annotations

from typing import Any

# torch's second names; a config may use either and means the same.
_SECOND_NAMES = {
    "bit": "uint1",
    "cdouble": "complex128",
    "cfloat": "complex64",
    "chalf": "complex32",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}

DTYPE_NAMES = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
        *("float16", "float32", "float64", "bfloat16", "bool", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
        *("qint8", "qint32", "quint8", "quint2x4", "quint4x2"),
    }
)


def dtype_name(value: Any) -> str | None:
    """The plain name of a dtype: ``"torch.half"`` -> ``"float16"``. ``None`` when there is no such dtype.

    A ``torch.dtype`` object, which a config built in Python may hold, is read by how it prints.
    """
    if not isinstance(value, str):
        kind = type(value)
        if (kind.__module__, kind.__name__) != ("torch", "dtype"):
            return None
        value = str(value)
    name = value.removeprefix("torch.")
    name = _SECOND_NAMES.get(name, name)
    return name if name in DTYPE_NAMES else None
