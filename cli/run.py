"""``quantdispatch run``: one answer from the packed model."""

from __future__ import annotations

import dataclasses
import re
import sys

import typer

from ..registry.errors import ConfigError
from ..registry.registry import get_registry
from .output import Output

_PRESENT = re.compile(r"cpu|cuda(:\d+)?|rocm(:\d+)?")


def run_command(
    path: str, prompt: str, max_new_tokens: int, *, backend: str | None, allow: list[str], device: str, as_json: bool
) -> int:
    """0. Raises what loading raises, and typer's ``BadParameter`` for a device that only a plan can be made for, an
    unknown backend, or a prompt that is not text."""
    where = torch_device(device)
    if backend is not None:
        known_backend(backend)
    if prompt != prompt.encode(errors="replace").decode():  # bytes of the command line that are no characters
        raise typer.BadParameter("--prompt is no text in the terminal's encoding")
    require_engine()
    from ..engines.generate import chat

    answer = chat(path, prompt, max_new_tokens=max_new_tokens, backend=backend, allow=allow, device=where)
    if as_json:
        figures = {**dataclasses.asdict(answer), "tokens_per_second": round(answer.tokens_per_second, 3)}
        Output().json({"version": 1, **figures})
        return 0
    output = Output()
    output.prose(answer.text)
    output.stream.flush()
    Output(sys.stderr).line(
        f"{answer.prompt_tokens} prompt and {answer.new_tokens} new tokens · {answer.tokens_per_second:.1f} tokens/s"
        f" · weights {answer.weight_bytes / 1e6:.1f} MB"
    )
    return 0


def torch_device(device: str) -> str:
    """The device as torch names it. Raises ``BadParameter`` for what cannot be run on."""
    spelled = device.strip().lower()
    if not _PRESENT.fullmatch(spelled):
        raise typer.BadParameter(
            f"a model runs on cpu, cuda, cuda:N or rocm, not on {device!r}; explain answers for any"
        )
    return spelled.replace("rocm", "cuda")


def known_backend(name: str) -> None:
    """Raises ``BadParameter`` for a backend that nobody registers."""
    known = sorted({kernel.backend for kernel in get_registry().kernels})
    if name not in known:
        raise typer.BadParameter(f"no backend {name!r} is installed; installed: {', '.join(known) or 'none'}")


def require_engine() -> None:
    """Raises ``ConfigError`` where the packages that run a model are missing."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"this command needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            field=", ".join(missing),
            observed="not installed",
            required=" and ".join(missing),
            remedy="pip install 'quantdispatch[transformers]'",
            code="QD530",
        )
