"""A plugin as somebody else would write it: routed experts with asymmetric int weights, in a kernel of its own."""

from quantdispatch import Absent, Args, Backend, Kernel, Needs, Rule, When, hookimpl

WEIGHTS = Args(
    type="int",
    num_bits={4, 8},
    symmetric=False,
    strategy={"channel", "group"},
    dynamic=False,
    actorder={None, "weight", "static"},
    scale_dtype={None, "bfloat16", "float16"},
)


@hookimpl
def quantdispatch_rules():
    yield Rule(
        name="wNa16_int-asymmetric-moe",
        when=When(kind="moe", format="pack-quantized", weights=WEIGHTS, inputs=Absent, outputs=Absent),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
    )


@hookimpl
def quantdispatch_backends():
    yield Backend("sample", 200)


@hookimpl
def quantdispatch_kernels():
    yield Kernel(
        "sample/experts",
        "linear",
        Needs(
            {"k%32": 0},
            kind="moe",
            device="cuda",
            arch={"sm80", "sm90"},
            dtype="bfloat16",
            weights=Args(num_bits=4, symmetric=False),
        ),
        "sample_kernels:Experts",
    )
