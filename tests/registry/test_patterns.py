"""Regular expressions from untrusted files: Python's meaning, bounded time."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch.registry import pattern_scanner, patterns
from quantdispatch.registry.errors import ConfigError
from quantdispatch.registry.pattern_sets import PatternSet
from quantdispatch.registry.pattern_syntax import digit_sets, digit_table
from quantdispatch.registry.patterns import PatternBudget, compile_pattern

NAMES = [
    "",
    "lm_head",
    "model.layers.0.self_attn.q_proj",
    "model.layers.17.mlp.experts.203.down_proj",
    "model.layers.17.mlp.experts.203.down_proj\n",
    "a b",
    "aab-ab",
    "A{3}",
    "x[0]",
    "k\x0b2\t",
    "modèle.couche.٣",
    "\ud800",
]


@pytest.fixture(params=["re2", "without re2"])
def engine(request, monkeypatch):
    if request.param == "re2":
        assert pattern_scanner.load_re2() is not None, "google-re2 is one of the test requirements"
    else:
        monkeypatch.setattr(pattern_scanner, "load_re2", lambda: None)
    return request.param


def python_answer(text: str, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.match(text, name) is not None


TEXTS = [
    "",
    ".*",
    "^lm_head$",
    r"lm_head\Z",
    "lm_hea",
    "head",
    r".*self_attn.*",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r"model\.layers\.(?:[3-9]|[1-6][0-9]|7[0-7])\.mlp\.experts\.\d+\.(?:gate_proj|up_proj|down_proj)$",
    r"(?!.*mlp).*proj",
    r"(?=model)(?<!x)model",
    r"(a+)\1b?-",
    "a{,2}b",
    "a{2}b",
    "a{2,}b",
    "A{3,x}",
    r"A\{3}",
    r"A{3}$",
    "A{e<=1}",
    "x[[0]]",
    r"x[\[0]+\]",
    "[[:alpha:]]+",
    "[^]a]+",
    r"[]\-a]",
    r".*\s\d",
    r".*\d$",
    r"\w+$",
    r"(?i)LM_HEAD",
    "(?i:LM)_head",
    "(?s).*$",
    "(?m).*$",
    "(?a)\\w+",
    "(?x) lm _ head # comment",
    "(?#a{)lm",
    r"\blm",
    r"a\b.b",
    r"(?P<q>a)(?P=q)b",
    r"(a)?(?(1)a|l)",
    "a++b",
    "(?>a*)b",
    r"\N{LATIN SMALL LETTER L}m",
    r"\x6cm",
    r"\154m",
    "mod[è]le",
    "a|b|lm",
    "()*lm",
]


@pytest.mark.parametrize("text", TEXTS)
def test_means_what_python_means(text, engine):
    pattern = compile_pattern(text)
    together = PatternSet([pattern], PatternBudget())
    for name in NAMES:
        expected = python_answer(text, name)
        assert pattern.match(name) is expected, name
        assert together.scan(name) == ((0,) if expected else ()), name


ATOMS = [
    "a",
    "b",
    "0",
    "1",
    "7",
    "_",
    r"\.",
    ".",
    r"\d",
    r"\w",
    r"\D",
    "[0-4]",
    "[^0-4]",
    "[a-c1]",
    r"[\d_]",
    r"[^\w]",
    "[.-5]",
    "proj",
]
REPEATS = ["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{0,3}?", "{,2}", "*+"]


@st.composite
def expressions(draw, depth=2):
    def piece(level):
        kind = draw(st.integers(0, 7 if level else 5))
        if kind <= 4:
            return draw(st.sampled_from(ATOMS)) + draw(st.sampled_from(REPEATS))
        if kind == 5:
            return draw(st.sampled_from(["^", "$", r"\b", "|", r"\Z"]))
        inner = "".join(piece(level - 1) for _ in range(draw(st.integers(1, 3))))
        opening = draw(st.sampled_from(["(", "(?:", "(?:", "(?=", "(?!", "(?>"]))
        repeat = draw(st.sampled_from(REPEATS)) if opening in ("(", "(?:") else ""
        return f"{opening}{inner}){repeat}"

    return draw(st.sampled_from(["", "", "(?i)"])) + "".join(piece(depth) for _ in range(draw(st.integers(1, 4))))


SHORT_NAMES = st.lists(st.text(alphabet="ab01479._-A \n", max_size=8), min_size=1, max_size=6)


def assert_like_python(texts, names):
    budget = PatternBudget()
    compiled = []
    for text in texts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                re.compile(text)
        except re.error:
            with pytest.raises(ConfigError, match="invalid regular expression"):
                compile_pattern(text)
        else:
            compiled.append(compile_pattern(text, budget=budget))
    together = PatternSet(compiled, budget)
    for name in names:
        expected = tuple(i for i, p in enumerate(compiled) if python_answer(p.text, name))
        assert together.scan(name) == expected, ([p.text for p in compiled], name)
        assert tuple(i for i, p in enumerate(compiled) if p.match(name)) == expected


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(expressions(), min_size=1, max_size=4), SHORT_NAMES)
def test_random_expressions_like_python(texts, names):
    assert_like_python(texts, names)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck])
@given(st.lists(expressions(), min_size=1, max_size=4), SHORT_NAMES)
def test_random_expressions_like_python_without_re2(texts, names):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_scanner, "load_re2", lambda: None)
        assert_like_python(texts, names)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text(alphabet=r"a0159-[]^\d.|", max_size=8), min_size=1, max_size=3),
    st.text("a0123456789-", max_size=6),
)
def test_exchangeable_digits_change_no_answer(texts, name):
    valid = []
    for text in texts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                re.compile(text)
            valid.append(text)
        except re.error:
            pass
    table = digit_table(map(digit_sets, valid))
    if table is None:
        return
    image = name.encode().translate(table).decode()
    for text in valid:
        assert python_answer(text, name) == python_answer(text, image), (text, image)


@pytest.mark.parametrize(
    ("texts", "image"),
    [
        ([r".*self_attn.*", r".*\d+\.w"], "0000000000"),
        ([r"layers\.1\."], "0100000000"),
        (["[3-9]|[1-6][0-9]|7[0-7]"], "0113333788"),
        (["[^3-5]"], "0003330000"),
        ([r"[\.-4]"], "0000055555"),
        (["a{3}"], "0000000000"),
    ],
)
def test_digits_that_patterns_tell_apart(texts, image):
    assert b"0123456789".translate(digit_table(map(digit_sets, texts))).decode() == image


@pytest.mark.parametrize("text", [r"(\d)\1", r"(?P<d>\d)(?P=d)", r"\x31", "(?#[)1-3]", "(?x)[ 1", "0123456789"])
def test_no_digits_are_exchanged_where_that_would_be_unsafe(text):
    assert digit_table([digit_sets(text)]) is None


@pytest.mark.parametrize(
    ("text", "engine_name"),
    [
        (".*self_attn.*", "re2"),
        (r".*mlp\.(gate|up)_proj$", "re2"),
        (r"model\.layers\.(?:[3-9]|[1-6][0-9])\.\d+", "re2"),
        ("(?i)lm", "re2"),
        ("(?!a)b", "regex"),
        (r"(a)\1", "regex"),
        ("a{,2}", "regex"),
        ("a++", "regex"),
        (r"a\Z", "regex"),
        ("é", "regex"),
        ("(?:a{100}){20}", "regex"),
    ],
)
def test_engine(text, engine_name):
    assert compile_pattern(text).engine == engine_name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(", "position 0"),
        ("a**", "position 2"),
        ("[b-a]", "position 1"),
        (r"\p{L}", "position 0"),
        ("(?R)", "position 1"),
        ("(?<=a+)b", "look-behind"),
        ("(" * 2000 + ")" * 2000, "invalid regular expression"),
        ("a{99999999999999999999}", "repeats too much"),
        ("a" * (patterns.MAX_REGEX_LENGTH + 1), "too long"),
        ("(?i)" + "[\0-\uffff]" * 100, "beyond ASCII"),
    ],
)
def test_refused(text, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        compile_pattern(text, field="ignore").match("a")
    assert caught.value.field == "ignore"
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_verbose_with_brackets_is_an_error_not_another_meaning():
    with pytest.raises(ConfigError, match="verbose"):
        compile_pattern("(?x)a{e} [b]").match("a")


CATASTROPHES = [
    r"(a+)+$",
    r"(a*)*$",
    r"(a|a)*$",
    r"(a|aa)+$",
    r"(.*a){20}$",
    r"(.*.*.*.*.*)*b$",
    r"([a-zA-Z]+)*$",
    r"(\w+\s?)*$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(a+)\1+b",
    r"(.+)\1\1\1\1\1\1b",
    r"((.*)\2)*c",
    r"(?=(a+)+b)a",
    r"(?!(a+)+b)a*$",
    r"(?<=a)(a+)+$",
    r"(?:(?:(?:a?){30}){30}){30}b",
    r"(a?){500}a{500}b",
    r"((a{1,200}){1,200}){1,200}b",
    r"(?=.*(a*)*b)(?=.*(a*)*c).*$",
    r"(?:a|b|ab)*(?=c)(?:a*)*d",
    r"((((((((((a*)*)*)*)*)*)*)*)*)*)b",
    r"(?i)(k+)+s$",
]


@pytest.mark.parametrize("name", ["a" * 60, "a" * 5000, "model.layers.0." + "a" * 200 + "!"], ids=len)
def test_catastrophes_end(name, engine):
    start = time.thread_time()
    for text in CATASTROPHES:
        try:
            compile_pattern(text).match(name)
        except ConfigError as error:
            assert "out of time" in str(error) or "repeats too much" in str(error)
    assert time.thread_time() - start < 2


def test_timeout_is_an_error_that_names_the_pattern_and_is_never_no_match():
    with pytest.raises(ConfigError, match="out of time") as caught:
        compile_pattern(r"(a+)\1+b", field="config_groups.group_0.targets").match("a" * 5000)
    assert r"(a+)\\1+b" in str(caught.value) and caught.value.field == "config_groups.group_0.targets"
    assert caught.value.exit_code == 2


def test_budget_is_shared_and_time_outs_count():
    budget = PatternBudget(total_s=0.1, per_match_s=0.04)
    start = time.thread_time()
    for i in range(1000):  # a caller that carries on after each error
        with pytest.raises(ConfigError, match="out of time"):
            compile_pattern(rf"(a+)\1+b{i % 10}", budget=budget).match("a" * 5000)
    assert time.thread_time() - start < 2


def test_large_programs_are_charged():
    budget = PatternBudget(total_s=0.1)
    start = time.thread_time()
    with pytest.raises(ConfigError, match="out of time"):
        PatternSet([compile_pattern(f"{i}" + "(a{900}|.*b)" * 20, budget=budget) for i in range(200)], budget)
    assert time.thread_time() - start < 2


def test_importing_loads_no_engine():
    code = "import sys, quantdispatch.registry.targets; print({'re2', 'regex', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_another_distribution_named_re2_is_not_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", type(sys)("re2"))
    pattern = compile_pattern("lm_.*")
    assert pattern.engine == "regex" and pattern.match("lm_head")
