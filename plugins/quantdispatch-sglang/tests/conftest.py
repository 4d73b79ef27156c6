"""The tests in ``engine`` need SGLang itself, in a virtual environment of its own: ``make test-engine-sglang``."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("sglang") else ["engine"]
