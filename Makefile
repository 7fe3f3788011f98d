# `make install` makes .venv with the toolkit in it, `make quickstart` shows the whole path at work, `make test` runs the
# suite. The others install what they need.
# PIP_ARGS is passed to every pip install, for example PIP_ARGS="--index-url <a CPU-only index>".
# BENCH_ARGS goes to the command of `make bench`, FAULTS_ARGS to that of `make faults`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The pip of Debian 12 fails on seqeval without --use-pep517.
PIP := $(BIN)/python -m pip install --quiet --use-pep517 -c constraints-cpu.txt $(PIP_ARGS)
# A file's tests share what is expensive to make, so one process runs them all; tests/conftest.py says which come first.
IN_PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

# The lowest torch that pyproject allows, and the tests whose code is another one there.
OLDEST := .venv-oldest
OLDEST_TORCH := $(shell sed -n 's/.*"torch>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OLDEST_PIP := $(OLDEST)/bin/python -m pip install --quiet --use-pep517 -c $(OLDEST)/constraints.txt $(PIP_ARGS)
OLDEST_TESTS := $(addprefix tests/,model/test_compiled_functions.py model/test_compiled_blocks.py model/test_loss.py \
	model/test_pointwise.py model/test_targets_only.py model/test_attention.py equivalence/test_gradients.py \
	training/test_compiled_shapes.py training/test_mixtures.py)

.PHONY: install quickstart test test-slow faults oldest-torch proofs lint docs bench

install: $(VENV)/installed
	@echo 'The toolkit is in $(VENV). Next:'
	@echo '  source $(BIN)/activate'
	@echo '  toolkit doctor quickstart     # checks this machine, and trains five steps on bundled text'

quickstart: $(VENV)/installed
	$(BIN)/toolkit quickstart

test: $(VENV)/tests-installed
	$(BIN)/python -m pytest $(IN_PARALLEL) --costs=build/test-costs.txt

test-slow: $(VENV)/tests-installed
	$(BIN)/python -m pytest -m slow $(IN_PARALLEL)

# Does the suite notice when the code is wrong? All of them take about half an hour, FAULTS_ARGS="--sample 10" minutes.
faults: $(VENV)/tests-installed
	$(BIN)/python -m tests.planted_faults $(FAULTS_ARGS)

# Compiled blocks, attention, gradients and mixtures on the lowest torch allowed; installs it, some 3 GB.
oldest-torch: $(OLDEST)/tests-installed
	$(OLDEST)/bin/python -m pytest $(IN_PARALLEL) $(OLDEST_TESTS)

# More than an hour; test-slow has a sample.
proofs: $(VENV)/tests-installed oldest-torch
	$(BIN)/python -m pytest -m long $(IN_PARALLEL)
	$(BIN)/python -m tests.proofs.layout_table --write docs/parallelism.md
	$(BIN)/python -m tests.proofs.kills
	$(BIN)/python -m tests.proofs.groups
	$(BIN)/python -m tests.proofs.exit_codes --busy --write docs/configuration.md
	$(BIN)/python -m tests.proofs.endings --write docs/configuration.md
	$(BIN)/python -m tests.proofs.slurm --write docs/clusters.md

lint: $(VENV)/lint-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages as a site, in build/docs; a warning, such as of a link to nowhere, is an error.
docs: $(VENV)/docs-installed
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs/site -d build/doctrees docs build/docs

bench: $(VENV)/installed
	$(BIN)/python benchmarks/performance.py $(BENCH_ARGS)

# torch first: as somebody's dependency, pip might take a newer one than the constraints name.
$(VENV)/installed: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable ".[dedup,fast]"
	touch $@

$(VENV)/tests-installed: $(VENV)/installed
	$(PIP) --editable ".[cluster,dedup,fast,test]"
	touch $@

$(VENV)/lint-installed: $(VENV)/tests-installed
	$(PIP) --editable ".[cluster,dedup,fast,test,lint]"
	touch $@

$(VENV)/docs-installed: $(VENV)/installed
	$(PIP) --editable ".[dedup,fast,docs]"
	touch $@

$(OLDEST)/tests-installed: pyproject.toml constraints-cpu.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	sed 's/^torch==.*/torch==$(OLDEST_TORCH)/' constraints-cpu.txt > $(OLDEST)/constraints.txt
	$(OLDEST_PIP) torch
	$(OLDEST_PIP) --editable ".[dedup,fast,test]"
	touch $@
