"""Code of a user who has everything wrong: each line that says so is an error of that kind for ``mypy --strict``."""

from __future__ import annotations

import quantdispatch as qd
from quantdispatch import testing

plan = qd.plan(3)  # error: arg-type
qd.plan("model", devise="cpu")  # error: call-arg
qd.plan("model", device=0)  # error: arg-type
qd.plan("model", "cpu")  # error: call-arg
qd.load("model", dtype="bfloat16")  # error: arg-type
qd.plam("model")  # error: attr-defined
print(plan.layer)  # error: attr-defined
plan.layers["lm_head"].kernel.upper()  # error: union-attr
plan.layers["lm_head"] = None  # error: index
qd.Rule(name="mine", when=qd.When(), scheme=3)  # error: arg-type
qd.Rule(name="mine", scheme="mine:Scheme")  # error: call-arg
qd.When(knid="moe")  # error: call-arg
qd.When(weights="int4")  # error: arg-type
qd.Args(nun_bits=4)  # error: call-arg
qd.Kernel(name="mine")  # error: call-arg
print(qd.ConfigError("text").feild)  # error: attr-defined
print(testing.check_rwo)  # error: attr-defined
testing.load_table(3)  # error: arg-type
