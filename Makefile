# Everything runs in .venv, which is made on first use. `make demo` and `make test` need nothing else.
VENV   := .venv
BIN    := $(VENV)/bin
# A Python of version $$v that can make environments. pyenv's shims may refuse, so its versions are asked directly.
PYENV := $${PYENV_ROOT:-$$HOME/.pyenv}/versions
FITS  := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))
FIND  := for p in python$$v $$(ls -d $(PYENV)/$$v.*/bin/python 2>/dev/null); do "$$p" -c '$(FITS)' 2>/dev/null && { echo "$$p"; break; }; done
# The first of these that is here; OpenFHE, which tests compare with, has wheels for the first two. (make drops what a shell printed
# whose last command was not found.)
PYTHON ?= $(firstword $(shell for v in 3.10 3.12 3.11 3.13 3.14; do $(FIND); done; true))

.PHONY: demo test test-all test-slow test-quick test-pythons durations bench docs lint install lock sbom clean

demo: $(VENV)/demo.stamp
	$(BIN)/heliograph demo

# Lint runs beside the tests; where it fails, it says so at once and at the end. Kernels are compiled before the workers of the
# tests start (a parallel kernel that numba compiles as a serial one is an error), and each worker gets tests that stand
# together, so that it makes what a module shares once. One OpenMP thread for each of the workers: they share the cores.
WARM   := from heliograph.runtime.native.warm import warm_up; import warnings, numba; \
	warnings.simplefilter("error", numba.NumbaPerformanceWarning); warm_up()
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
CHECK   = log=$(VENV)/lint.log; { $(MAKE) --no-print-directory lint > $$log 2>&1 || { echo; cat $$log; exit 1; }; } & lint=$$!; \
	$(BIN)/python -c '$(WARM)' && $(PYTEST) -n auto --dist worksteal --durations=15 -m "$(1)"; tests=$$?; \
	wait $$lint || { echo "lint failed:"; tail -n 30 $$log; exit 1; }; exit $$tests

# Tests that take long by tests/durations.json are marked `whole`; those marked `slow` take minutes.
test: $(VENV)/dev.stamp
	@$(call CHECK,not slow and not whole)

test-all: $(VENV)/dev.stamp
	@$(call CHECK,not slow)

test-slow: $(VENV)/dev.stamp
	$(PYTEST) -n auto --timeout 3600 -m slow

# On a machine with nothing else to do.
durations: $(VENV)/dev.stamp
	$(PYTEST) -n auto --dist worksteal --store-durations

# What depends on Python and its packages: a minute or two, without lint and without torch.
QUICK := tests/formats tests/ir tests/dsl/test_meaning.py tests/execution/test_conformance.py tests/systems tests/serving/test_serving.py

test-quick: $(VENV)/quick.stamp
	$(PYTEST) -q -m "not slow and not whole" $(QUICK)

# The quick tests on every Python that is here, each in an environment of its own.
test-pythons:
	@mkdir -p $(VENV)/pythons && rm -f $(VENV)/pythons/table; failed=0; \
	for v in 3.10 3.11 3.12 3.13 3.14; do python=$$($(FIND)); log=$(VENV)/pythons/$$v.log; \
		if [ -z "$$python" ]; then said="not installed"; else echo "== $$v: $$python, $$log"; \
			$(MAKE) --no-print-directory test-quick VENV=$(VENV)/pythons/$$v PYTHON="$$python" > $$log 2>&1 || { failed=1; tail -n 30 $$log; }; \
			said=$$(grep -E '(passed|failed|error).* in [0-9.]+s' $$log | tail -n 1); fi; \
		echo "$$v  $${said:-failed before the tests}" >> $(VENV)/pythons/table; done; \
	echo; cat $(VENV)/pythons/table; exit $$failed

# Each benchmark that can run here; those that lack data, packages or memory are skipped, and one that fails does not stop the others.
bench: $(VENV)/dev.stamp
	@$(BIN)/python -m benchmarks all

# The site, in site/: strict, so that a link or an anchor that leads nowhere is an error; and so is a table whose figures are not
# those of benchmarks/records.
docs: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks tables --check
	NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --quiet --strict
	@echo "the site is in site/: open site/index.html, or serve it with $(BIN)/python -m mkdocs serve"

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check heliograph tests examples benchmarks docs
	$(BIN)/ruff format --check heliograph tests examples benchmarks docs README.md CONTRIBUTING.md
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(VENV)/dev.stamp

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "heliograph: install CPython 3.10 or newer with its venv module. A Python elsewhere: make PYTHON=/path/to/python" >&2; exit 1; fi
	"$(PYTHON)" -m venv $(VENV)

# `make demo` installs what a user needs, `make test` what a developer needs.
$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/demo.stamp

$(VENV)/quick.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[serve,test]'
	@touch $@

# What deploy/ installs: the versions of constraints.txt for `heliograph serve`, with the hashes of their files for all
# platforms; and the same as a list of parts (SBOM) in CycloneDX's form, sbom.json.
TOOLS := $(VENV)/tools
LOCK  := deploy/requirements.txt

lock: $(TOOLS)/bin/uv
	@{ echo '# What `heliograph serve` takes, and hatchling, which installs it: versions of constraints.txt, with the SHA-256 of all their'; \
	echo '# files. Written by `make lock`.'; } > $(LOCK).part
	echo hatchling | $(TOOLS)/bin/uv pip compile pyproject.toml - --extra serve --constraint constraints.txt --quiet \
		--universal --python-version 3.10 --generate-hashes --no-annotate --no-header >> $(LOCK).part
	@mv $(LOCK).part $(LOCK)

sbom: $(TOOLS)/bin/uv
	$(TOOLS)/bin/cyclonedx-py requirements $(LOCK) --output-reproducible --output-file sbom.json

$(TOOLS)/bin/uv: | $(BIN)/python
	$(BIN)/python -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet uv==0.13.9 cyclonedx-bom==7.5.0

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
