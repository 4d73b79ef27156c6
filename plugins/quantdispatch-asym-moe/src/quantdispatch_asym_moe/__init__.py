"""Routed experts with zero points, as AWQ-style writers store them (``symmetric: false``, ``pack-quantized``).

Imported by every process that plans, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantdispatch import Absent, Args, Rule, When, hookimpl


@hookimpl
def quantdispatch_rules() -> Iterator[Rule]:
    yield Rule(
        name="wNa16_int-asymmetric-moe",
        summary="int4 or int8 weights of routed experts, packed, asymmetric, channel or group; inputs unquantized",
        when=When(
            kind="moe",
            format="pack-quantized",
            inputs=Absent,
            outputs=Absent,
            weights=Args(
                type="int",
                num_bits={4, 8},
                strategy={"channel", "group"},
                symmetric=False,
                dynamic=False,
                actorder={None, "weight", "static"},
                scale_dtype={None, "bfloat16", "float16", "float32"},
            ),
        ),
        scheme="quantdispatch_asym_moe.scheme:AsymmetricMoE",
    )
