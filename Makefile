# Two commands: `make quickstart` shows the whole path at work, `make test` runs the suite. Both install what they need.
# PIP_ARGS is passed to every pip install, for example PIP_ARGS="--index-url <a CPU-only index>".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet -c constraints-cpu.txt $(PIP_ARGS)
ONE_THREAD := OMP_NUM_THREADS=1

.PHONY: quickstart test test-slow lint bench

quickstart: $(VENV)/installed
	$(BIN)/toolkit quickstart

test: $(VENV)/tests-installed
	$(ONE_THREAD) $(BIN)/python -m pytest

test-slow: $(VENV)/tests-installed
	$(ONE_THREAD) $(BIN)/python -m pytest -m slow
	$(ONE_THREAD) $(BIN)/python -m tests.planted_faults

lint: $(VENV)/lint-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/training_step.py

# torch first: as somebody's dependency, pip might take a newer one than the constraints name.
$(VENV)/installed: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable ".[fast]"
	touch $@

$(VENV)/tests-installed: $(VENV)/installed
	$(PIP) --editable ".[fast,test,embed]"
	touch $@

$(VENV)/lint-installed: $(VENV)/tests-installed
	$(PIP) --editable ".[fast,test,embed,lint]"
	touch $@
