"""Devices and packages as facts, for machines that are here and machines that are not."""

import pytest

from quantdispatch import ConfigError, Environment
from quantdispatch.registry.environment import parse_device
from quantdispatch.registry.values import ABSENT


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda:sm90", ("cuda", "sm90")),
        ("CUDA:SM120", ("cuda", "sm120")),
        ("cuda:sm90a", ("cuda", "sm90a")),
        ("rocm:gfx942", ("rocm", "gfx942")),
        ("rocm:gfx90a", ("rocm", "gfx90a")),
    ],
)
def test_devices_can_be_asked_about_anywhere(device: str, expected: tuple[str, str]) -> None:
    assert parse_device(device) == expected
    environment = Environment.detect(device)
    assert (environment.facts["device"], environment.facts["arch"]) == expected
    assert not any(environment.facts[k] for k in environment.facts if k.startswith("isa."))


@pytest.mark.parametrize("device", ["", "gpu", "cuda:gfx942", "rocm:sm90", "cpu:0", "cuda:", "cuda:sm", None, 3])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Environment.detect(device)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_a_device_that_is_not_here_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdispatch.registry.environment._present_arch", lambda kind, index: None)
    with pytest.raises(ConfigError, match="no cuda device is present.*cuda:sm90"):
        Environment.detect("cuda")


def test_what_is_installed_can_be_overridden() -> None:
    environment = Environment.detect("cpu", {"triton": "9.9", "torch": None, "isa.avx512f": True, "threads": 3})
    assert environment.facts["package.triton"] == "9.9"
    assert environment.facts["package.torch"] is ABSENT
    assert environment.facts["isa.avx512f"] is True
    assert "3 threads" in environment.describe()
    assert Environment.detect("cpu", {"torch": False, "isa.avx2": False}).facts["package.torch"] is ABSENT
    for overrides in ({"colour": "red"}, {5: "red"}):
        with pytest.raises(ConfigError, match="unknown environment fact"):
            Environment.detect("cpu", overrides)  # type: ignore[arg-type]
    for other in ("triton", ["triton"], 5):
        with pytest.raises(ConfigError, match="environment maps facts to values"):
            Environment.detect("cpu", other)  # type: ignore[arg-type]
