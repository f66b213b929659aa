# One virtual environment serves every target. Each target works alone in a fresh clone that has
# only python3, g++ and make; cmake and ninja come through the build requirements when absent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
SOURCES := CMakeLists.txt $(shell find native -type f)

.PHONY: setup build demo test test-all lint format bench clean

setup: $(READY)

# The package is installed editable: an edit of a Python file counts at once, an edit of C++ through this rule.
# torch goes first and alone, so that its pinned version is settled before pip weighs anything else.
$(READY): pyproject.toml constraints.txt $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@

# Compile the extension again whatever the time stamps say.
build: setup
	$(PIP_INSTALL) --no-deps --force-reinstall --editable .

demo: setup
	$(BIN)/fewbits compare --report fewbits-report.html --json fewbits-report.json

test: setup
	$(BIN)/python -m pytest --cov=fewbits --cov-report=term --cov-fail-under=95

test-all: setup
	$(BIN)/python -m pytest -m 'slow or not slow' --cov=fewbits --cov-report=term --cov-fail-under=95

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	for script in benchmarks/[a-z]*.py; do $(BIN)/python "$$script" || exit 1; done

clean:
	rm -rf $(VENV) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -f fewbits-report.html fewbits-report.json
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
