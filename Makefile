# Everything runs in .venv, which is made on first use. `make demo` and `make test` need nothing else.
VENV   := .venv
BIN    := $(VENV)/bin
# OpenFHE has wheels for CPython 3.10 and 3.12 only; pyenv's shims may refuse, so its versions are asked directly.
PYTHON ?= $(shell for p in python3.10 python3.12 $$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.10.*/bin/python $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.12.*/bin/python 2>/dev/null | sort -rV | sort -t. -k2,2 -s); do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 12)))' 2>/dev/null && { echo "$$p"; break; }; done)

.PHONY: demo test test-all bench lint install clean

demo: $(VENV)/demo.stamp
	$(BIN)/heliograph demo

# One OpenMP thread for each of the workers: they share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m "slow or not slow"

bench: $(VENV)/dev.stamp
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check heliograph tests examples benchmarks
	$(BIN)/ruff format --check heliograph tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(VENV)/dev.stamp

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "heliograph: no CPython 3.10 or 3.12 found (OpenFHE has wheels for these only): install python3.10 or python3.12 with its venv module, or run 'make PYTHON=/path/to/python'." >&2; exit 1; fi
	"$(PYTHON)" -m venv $(VENV)

# `make demo` installs what a user needs, `make test` what a developer needs.
$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/demo.stamp

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
