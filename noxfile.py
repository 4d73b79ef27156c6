"""The tests with other versions of Python, compressed-tensors and transformers: ``nox``, or ``nox -s NAME``."""

from __future__ import annotations

import nox

nox.options.sessions = ["python", "compressed_tensors", "transformers"]
nox.options.error_on_missing_interpreters = False

TESTS = ("-n", "auto", "--dist", "loadfile", "-m", "not slow")


def _run(session: nox.Session, *pins: str) -> None:
    # The pins of a version under test stand against constraints.txt, so that file is given only where there are none.
    session.install("-e", ".[test]", *(pins or ("--constraint", "constraints.txt")))
    session.run("python", "-m", "pytest", *TESTS, *session.posargs)


@nox.session(python=["3.11", "3.12"])
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
