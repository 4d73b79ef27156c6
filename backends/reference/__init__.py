"""Plain torch kernels for any device and any legal shape; slow, chosen last.

A scheme names its numerics class in the kernel spec and this backend runs it by that name: backends and schemes never
import each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...registry.kernels import Kernel, Needs


def kernels() -> Iterator[Kernel]:
    here = "quantdispatch.backends.reference"
    yield Kernel(
        name="reference",
        op="linear",
        requires=Needs(),
        target=f"{here}.linear:ReferenceLinear",
        slow=True,
    )
    yield Kernel(
        name="reference/embedding",
        op="embedding",
        requires=Needs(),
        target=f"{here}.embedding:ReferenceEmbedding",
        slow=True,
    )
    yield Kernel(
        name="reference/kv_cache",
        op="kv_cache",
        requires=Needs(),
        target=f"{here}.kv_cache:ReferenceKVCache",
        slow=True,
    )
