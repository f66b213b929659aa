# One virtual environment serves every target. Each target works alone in a fresh clone that has
# only python3, g++ and make; cmake and ninja come through the build requirements when absent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pip would compile twenty thousand modules to bytecode, of which a third is ever imported.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
SOURCES := CMakeLists.txt $(shell find native -type f)

# Three processes share the tests, which wait a quarter of the time, so that two cores are busy; `make test WORKERS=1` runs
# them in one. Threads that wait sleep, so that those of one process do not hold up the other's.
WORKERS ?= 3
PYTEST = OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

# The sanitized build has an environment of its own, which borrows the libraries of the other one.
SANITIZED := build/sanitize
SANITIZED_TESTS ?= tests/native tests/kernels tests/tensor tests/conformance tests/files tests/must_fail \
	tests/sparsity tests/solvers
# The sanitizers have to be loaded first, and the C++ library with them, whose exceptions they follow.
SANITIZERS = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so.6)
# No hunt for leaks: the interpreter and PyTorch keep memory until the process ends, thousands of blocks of it.
SANITIZED_RUN = OMP_NUM_THREADS=2 LD_PRELOAD='$(SANITIZERS)' ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 $(SANITIZED)/venv/bin/python

# The same tests with the extension that another compiler makes; tests of the build itself keep to the default one.
CLANG := build/clang
CLANG_TESTS ?= tests/native tests/kernels tests/tensor tests/conformance

# Of `make fuzz`: time for each target, where its inputs begin, and where those that fail are left.
SECONDS ?= 60
SEED ?= 0
FINDINGS ?= build/fuzz

# Of `make test-floor`: where it lives, the version of torch in place of the lowest one, and the tests.
FLOOR := build/floor
FLOOR_TORCH ?=
FLOOR_TESTS ?= tests

# Of `make mutants`: how many are drawn, and from which folders of src/fewbits in place of its own choice.
COUNT ?= 240
FOLDERS ?=

# Tests start some hundred interpreters, and each would compile the package's modules again where none may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup build demo test test-all test-floor test-clang sanitize fuzz mutants lint format bench clean

setup: $(READY)

# The package is installed editable: an edit of a Python file counts at once, an edit of C++ through this rule.
# torch goes first and alone, so that its pinned version is settled before pip weighs anything else; then the extension
# is compiled while pip, which waits and keeps one core busy, installs the other libraries.
$(READY): pyproject.toml constraints.txt $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --no-deps --editable . & built=$$!; \
	$(BIN)/python tools/libraries.py >$(VENV)/libraries.txt && $(PIP_INSTALL) --requirement $(VENV)/libraries.txt; \
	installed=$$?; wait $$built && exit $$installed
	touch $@

# Compile the extension again whatever the time stamps say.
build: setup
	$(PIP_INSTALL) --no-deps --force-reinstall --editable .

demo: setup
	$(BIN)/fewbits compare --report fewbits-report.html --json fewbits-report.json

# Counting the lines that tests reach takes two fifths of the time: test-all does it, which nobody waits for.
test: setup
	$(PYTEST)

test-all: setup
	$(PYTEST) -m 'slow or not slow' --cov=fewbits --cov-report=term --cov-fail-under=95

# The same tests with the lowest versions of every library that pyproject.toml allows, in an environment of their own.
# Old libraries warn of new ones that they use: that is not ours. The first call loads some gigabytes, since the
# PyTorch of the package index brings CUDA; FLOOR_TORCH=2.9.1+cpu takes another one where pip finds it.
test-floor: setup
	test -x $(FLOOR)/bin/python || $(PYTHON) -m venv $(FLOOR)
	$(BIN)/python tools/floor.py $(FLOOR_TORCH) >$(FLOOR)/constraints.txt
	$(FLOOR)/bin/python -m pip install --quiet --upgrade pip
	$(FLOOR)/bin/python -m pip install --quiet --constraint $(FLOOR)/constraints.txt torch
	$(FLOOR)/bin/python -m pip install --quiet --constraint $(FLOOR)/constraints.txt '.[dev]'
	$(FLOOR)/bin/python -m pip list
	OMP_WAIT_POLICY=passive $(FLOOR)/bin/python -m pytest -p no:cacheprovider --numprocesses=$(WORKERS) --dist=worksteal \
		-W default::DeprecationWarning -W default::FutureWarning $(FLOOR_TESTS)

# Compile the extension so that it stops at the first access out of bounds or undefined behaviour, and run the tests that
# reach native code. `make sanitize SANITIZED_TESTS=tests/native` for some of them. What compilers make of the source is
# no matter of this build.
sanitize: setup
	test -x $(SANITIZED)/venv/bin/python || $(BIN)/python -m venv --without-pip $(SANITIZED)/venv
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$($(SANITIZED)/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
	$(BIN)/python -m pip --python $(SANITIZED)/venv install --quiet --no-deps --force-reinstall \
		--config-settings=build-dir=$(SANITIZED)/objects --config-settings=cmake.build-type=RelWithDebInfo \
		--config-settings=install.strip=false --config-settings=cmake.define.FEWBITS_SANITIZE=ON .
	$(SANITIZED_RUN) -m pytest -p no:cacheprovider --capture=sys -m 'not slow and not peak_memory' \
		--ignore=tests/native/test_build.py $(SANITIZED_TESTS)

# Compile the extension with Clang and run the tests that hold each instruction set to the definition.
test-clang: setup
	test -x $(CLANG)/venv/bin/python || $(BIN)/python -m venv --without-pip $(CLANG)/venv
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$($(CLANG)/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
	CXX=clang++ $(BIN)/python -m pip --python $(CLANG)/venv install --quiet --no-deps --force-reinstall \
		--config-settings=build-dir=$(CLANG)/objects .
	OMP_WAIT_POLICY=passive $(CLANG)/venv/bin/python -m pytest -p no:cacheprovider --numprocesses=$(WORKERS) \
		--dist=worksteal $(CLANG_TESTS)

# Mutated inputs for what reads texts and files of strangers; what fails is left in FINDINGS. `make fuzz SECONDS=600`.
fuzz: setup
	for target in grammar checkpoint; do \
		$(BIN)/python -m tests.fuzz.run $$target --seconds $(SECONDS) --seed $(SEED) --findings $(FINDINGS) || exit 1; \
	done

# Mistakes made on purpose in the source, and how many of them the tests notice; `make mutants COUNT=600 SEED=1`.
mutants: setup
	$(BIN)/python tools/mutants.py --count $(COUNT) --seed $(SEED) $(if $(FOLDERS),--folders $(FOLDERS))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Every benchmark that has a bar, with every instruction set of this CPU; about an hour on two cores.
bench: setup
	$(BIN)/python benchmarks/run.py
	$(BIN)/python tools/speed_page.py

clean:
	rm -rf $(VENV) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -f fewbits-report.html fewbits-report.json
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
