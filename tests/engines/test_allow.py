"""int8 activations for weight-only layers: only where they are asked for, and then the plan says so."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_plans import config
from typer.testing import CliRunner
from usual_kernels import NATIVE

import quantdispatch as qd
from quantdispatch.cli.app import app
from quantdispatch.engines.verify import verify

NAMES = ("model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj")
DEVIATION = ("inputs are quantized to int8, one scale a token",)
needs_native = pytest.mark.skipif(not NATIVE, reason="the native kernels were not built")


@pytest.mark.parametrize("allow", [(), frozenset(), []])
def test_nothing_deviates_unasked(allow):
    plan = qd.plan(config(), modules=dict.fromkeys(NAMES, "Linear"), allow=allow)
    assert all(not layer.deviations and "allowed" not in (layer.kernel or "") for layer in plan.layers.values())


@needs_native
@pytest.mark.parametrize("allow", ["int8-activations", ["int8-activations"]])
def test_the_plan_lists_the_deviation(allow):
    plan = qd.plan(config(), modules=dict.fromkeys(NAMES, "Linear"), allow=allow)
    for name in NAMES:
        layer = plan.layers[name]
        assert (layer.scheme, layer.kernel, layer.deviations) == ("wNa16_int", "cpu/native_int8_allowed", DEVIATION)


def test_other_devices_have_nothing_to_allow():
    plan = qd.plan(config(), modules=dict.fromkeys(NAMES, "Linear"), device="cuda:sm90", allow="int8-activations")
    assert not any(layer.deviations for layer in plan.layers.values())


@pytest.mark.parametrize("allow", ["fp8-activations", ["int8-activations", "x"], [3]])
def test_what_cannot_be_allowed_is_named(allow):
    with pytest.raises(qd.ConfigError, match="int8-activations") as caught:
        qd.plan(config(), modules=dict.fromkeys(NAMES, "Linear"), allow=allow)
    assert caught.value.field == "allow"


@needs_native
@pytest.mark.parametrize("variant", ["w4a16-asym", "w3a16-asym", "w4a16-asym-g_idx"])
def test_layers_compute_what_the_plan_says(variant, tiny_checkpoint):
    folder = tiny_checkpoint(variant)
    exact = {row.name: row for row in verify(folder)}
    allowed = {row.name: row for row in verify(folder, allow="int8-activations")}
    for name, row in exact.items():
        assert row.exact and row.error < 3e-3
        assert not allowed[name].exact and 3e-3 < allowed[name].error < 2e-2
        assert allowed[name].weights_equal == row.weights_equal
    layer = qd.load(folder, allow="int8-activations").model.layers[0].mlp.down_proj
    x = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    truth = ((x.float() / scale).round() * scale).double() @ layer.dense_weight().double().T
    with torch.no_grad():
        assert (layer(x).double() - truth).norm() < 3e-3 * truth.norm()
    # the choice stays with the layer when it is bound again
    assert layer.to(torch.float16).kernel.name == "cpu/native_int8_allowed"


@needs_native
def test_the_command_line_asks_too(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config()))
    arguments = ["explain", str(path), "--module", f"{NAMES[0]}=Linear", "--json"]
    found = [
        json.loads(CliRunner().invoke(app, [*arguments, *more]).stdout)["layers"][0]["deviations"]
        for more in ([], ["--allow", "int8-activations"])
    ]
    assert found == [[], list(DEVIATION)]
