"""Plain torch kernels for any device and any legal shape; slow, chosen last.

A scheme names its numerics class in the kernel spec and this backend runs it by that name: backends and schemes never
import each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...registry.kernels import Kernel, Needs


def kernels() -> Iterator[Kernel]:
    yield Kernel(
        name="reference",
        op="linear",
        requires=Needs(),
        target="quantdispatch.backends.reference.linear:ReferenceLinear",
        slow=True,
    )
