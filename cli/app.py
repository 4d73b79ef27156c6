"""The ``quantdispatch`` command: arguments, exit codes, and errors as one line.

Exit codes: 0 everything resolves; 1 something does not, or tensors contradict the plan; 2 the input or the usage is
wrong; 130 interrupted; 141 nobody reads the output any more. Standard output carries the answer only.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..registry.errors import PlanError, QuantDispatchError

app = typer.Typer(
    name="quantdispatch",
    help="Shows how a compressed-tensors checkpoint resolves to schemes and kernels, and runs it.",
    # rich's help and tracebacks would cost every command a fifth of a second
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DEVICE = typer.Option("cpu", "--device", metavar="D", help="cpu, cuda (the one present), cuda:sm90, rocm:gfx942, ...")
_JSON = typer.Option(False, "--json", help="One JSON document on standard output.")
_BACKEND = typer.Option(None, "--backend", metavar="B", help="Use this backend's kernels only.")
_ALLOW = typer.Option(
    [], "--allow", metavar="WHAT", help="Let kernels compute something else, as the plan says: int8-activations."
)
_SOURCE = typer.Argument(..., metavar="SOURCE", help="A checkpoint folder, a config.json, or a hub id.")
#: of the error's norm relative to the output's; rounding outputs to bfloat16 alone costs 1.7e-3
_TOLERANCE = typer.Option(
    1e-2, "--tolerance", metavar="T", min=0.0, help="Largest admissible error of an output's norm."
)
_PATH = typer.Argument(..., metavar="PATH", help="A checkpoint folder, or a hub id.")


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks (also QUANTDISPATCH_DEBUG=1)."),
) -> None:
    if debug:
        os.environ["QUANTDISPATCH_DEBUG"] = "1"
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"quantdispatch {installed('quantdispatch')}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@app.command()
def explain(
    source: str = _SOURCE,
    device: str = _DEVICE,
    layer: str | None = typer.Option(
        None, "--layer", metavar="NAME", help="One layer in full, with every rule's answer."
    ),
    module: list[str] = typer.Option(
        [],
        "--module",
        metavar="NAME=CLASS",
        help="A module and its class (or CLASS,BASE,... as in its MRO); repeatable.",
    ),
    why_not: str | None = typer.Option(None, "--why-not", metavar="BACKEND", help="Why this backend was not chosen."),
    allow: list[str] = _ALLOW,
    meta: bool = typer.Option(False, "--meta", help="Build the transformers model on meta for names and classes."),
    assume: list[str] = typer.Option(
        [],
        "--assume",
        metavar="NAME=VALUE",
        help="A package's version or a fact in place of what is here (triton=3.9.0, vllm=none, rows=1024); repeatable.",
    ),
    full: bool = typer.Option(False, "--full", help="All of a block that is longer than a screen."),
    as_json: bool = _JSON,
) -> None:
    """Which rule, scheme and kernel each layer gets, and why."""
    modules = _modules(module)
    from .assumed import assumed
    from .explain import explain_command

    raise typer.Exit(
        explain_command(
            source,
            device=device,
            layer=layer,
            modules=modules,
            why_not=why_not,
            allow=allow,
            meta=meta,
            environment=assumed(assume),
            full=full,
            as_json=as_json,
        )
    )


@app.command()
def run(
    path: str = _PATH,
    prompt: str = typer.Option(..., "--prompt", metavar="TEXT", help="What to answer."),
    max_new_tokens: int = typer.Option(64, "--max-new-tokens", metavar="N", min=1, help="Longest answer, in tokens."),
    backend: str | None = _BACKEND,
    allow: list[str] = _ALLOW,
    device: str = _DEVICE,
    as_json: bool = _JSON,
) -> None:
    """Answer a prompt with the packed model. The answer goes to standard output, figures to standard error."""
    from .run import run_command

    gc.enable()
    raise typer.Exit(
        run_command(path, prompt, max_new_tokens, backend=backend, allow=allow, device=device, as_json=as_json)
    )


@app.command()
def bench(
    path: str = _PATH,
    device: str = _DEVICE,
    rows: list[int] = typer.Option([], "--rows", metavar="M", min=1, help="Tokens a call; repeatable."),
    seconds: float = typer.Option(
        0.2, "--seconds", metavar="S", min=0.0, help="For each kernel and number of rows, about."
    ),
    allow: list[str] = _ALLOW,
    out: str | None = typer.Option(
        None, "--out", metavar="FILE", help="In place of quantdispatch-choices.json beside the checkpoint."
    ),
    as_json: bool = _JSON,
) -> None:
    """Measure the kernels that could compute each layer, and write the file that plans choose by."""
    from .bench import bench_command

    gc.enable()
    raise typer.Exit(
        bench_command(path, device=device, rows=rows, seconds=seconds, allow=allow, out=out, as_json=as_json)
    )


@app.command()
def verify(
    path: str = _PATH,
    tolerance: float = _TOLERANCE,
    backend: str | None = _BACKEND,
    allow: list[str] = _ALLOW,
    device: str = _DEVICE,
    as_json: bool = _JSON,
) -> None:
    """Each layer's kernel against compressed-tensors' decompression of its weight, worst error first."""
    from .verify import verify_command

    gc.enable()
    raise typer.Exit(
        verify_command(path, tolerance=tolerance, backend=backend, allow=allow, device=device, as_json=as_json)
    )


@app.command()
def rules(
    check: bool = typer.Option(False, "--check", help="Static checks of all installed rules and plugins together."),
    coverage: bool = typer.Option(
        False, "--coverage", help="Scheme and kernels for each preset of compressed-tensors."
    ),
    docs: Path | None = typer.Option(
        None, "--docs", metavar="DIR", exists=True, file_okay=False, help="Write the pages of built-in data into DIR."
    ),
    as_json: bool = _JSON,
) -> None:
    """The installed rules: names, schemes, conditions, and where they come from."""
    if docs is not None:
        if check or coverage or as_json:
            raise typer.BadParameter("--docs writes pages and goes with no other option")
        from .docs import docs_command

        raise typer.Exit(docs_command(docs))
    from .rules import rules_command

    if check and coverage:
        raise typer.BadParameter("--check and --coverage are two reports; ask for one of them")
    raise typer.Exit(rules_command(check=check, coverage=coverage, as_json=as_json))


@app.command("new-plugin")
def new_plugin(
    name: str = typer.Argument(..., metavar="NAME", help="Of the distribution: my-kernels is imported as my_kernels."),
    path: Path | None = typer.Option(None, "--path", metavar="DIR", help="Where to make its folder; default: here."),
) -> None:
    """Write a plugin (a rule, a scheme, a kernel, tests that pass) to be changed into your own."""
    from .new_plugin import new_plugin_command

    raise typer.Exit(new_plugin_command(name, path))


@app.command()
def doctor(as_json: bool = _JSON) -> None:
    """Versions, device, plugins, and what is missing."""
    from .doctor import doctor_command

    raise typer.Exit(doctor_command(as_json=as_json))


def _modules(entries: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """``NAME=CLASS[,BASE...]`` as ``plan()`` takes it. Raises ``BadParameter`` for what is not of that form."""
    modules: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, equals, spelled = entry.partition("=")
        classes = tuple(word.strip() for word in spelled.split(","))
        if not (name and equals and all(c.isidentifier() for c in classes)):
            raise typer.BadParameter(f"--module takes NAME=CLASS, not {entry!r}")
        if modules.setdefault(name, classes) != classes:
            raise typer.BadParameter(f"--module gives {name!r} two classes: {modules[name]} and {classes}")
    return modules or None


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: runs one command and returns its exit code. Raises nothing, unless debugging."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # pydantic would look through every installed distribution for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    collecting = gc.isenabled()
    # A seventh of the time of a short command goes into looking for garbage among freshly imported classes.
    gc.disable()
    try:
        return _run(given)
    finally:
        if collecting:
            gc.enable()


def _run(given: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = app(given, prog_name="quantdispatch", standalone_mode=False)
            sys.stdout.flush()
            return int(code or 0)
        except BrokenPipeError:
            _forget_output()
            return 141
        except SystemExit as stop:  # what click makes of a pipe that nobody reads any more
            _forget_output()
            if isinstance(stop.__context__, BrokenPipeError):
                return 141
            code = stop.code or 0
            return code if isinstance(code, int) else _fail(f"unexpected end: {code}", 2)
        except (KeyboardInterrupt, typer.Abort):
            return _fail("interrupted", 130)
        except Exception as error:
            if os.environ.get("QUANTDISPATCH_DEBUG") and not hasattr(error, "format_message"):
                import traceback

                traceback.print_exc()
            if "--json" in given and isinstance(error, QuantDispatchError):
                _error_document(error)
            return _fail(*_described(error))


def _show_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    """A warning as one line: the place in our source tells a user of the command nothing."""
    from .output import Output

    Output(sys.stderr).line(("warning: ", "yellow"), " ".join(str(message).split()))


def _error_document(error: QuantDispatchError) -> None:
    """``{"version": 1, "error": {...}}`` where a document was asked for and there is nothing else to say in it."""
    from .output import Output

    first = error.errors[0] if isinstance(error, PlanError) and error.errors else error
    try:
        Output().json({"version": 1, "error": first.to_json()})
    except BrokenPipeError:
        _forget_output()


def _described(error: Exception) -> tuple[str, int]:
    """One line and the exit code."""
    if isinstance(error, PlanError) and error.errors:
        code = max(e.exit_code for e in error.errors)
        more = f" (and {len(error.errors) - 1} more; see quantdispatch explain)" if len(error.errors) > 1 else ""
        return f"{type(error.errors[0]).__name__}: {error.errors[0]}{error.errors[0].mark}{more}", code
    if isinstance(error, QuantDispatchError):
        return f"{type(error).__name__}: {error}{error.mark}", error.exit_code
    message = getattr(error, "format_message", None)
    if message is not None:  # what click and typer raise for bad usage, whichever of their versions is installed
        return f"{message()} (see quantdispatch --help)", 2
    if isinstance(error, OSError):
        return f"{error.strerror or type(error).__name__}: {error.filename or error}", 2
    return f"unexpected {type(error).__name__}: {error} (QUANTDISPATCH_DEBUG=1 shows where)", 2


def _fail(message: str, code: int) -> int:
    from .output import Output

    try:
        sys.stdout.flush()
        Output(sys.stderr).line(("error: ", "bold red"), " ".join(message.split()))
    except BrokenPipeError:
        _forget_output()
    return code


def _forget_output() -> None:
    """So that the interpreter's last flush does not complain about the closed pipe."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            pass
