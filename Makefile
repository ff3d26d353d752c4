# One command per thing a person does here. Everything lives in .venv, made by the first call;
# stamp files make the second call instant.

VENV   ?= .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	if "$$p" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo "$$p"; break; fi; done)
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet --constraint constraints.txt

# On Linux the default torch wheel brings CUDA (gigabytes). A package index that has CPU wheels, such as
# PyTorch's own, can be named: `make TORCH_INDEX=URL demo`.
TORCH_INDEX ?=

# The torch that `make test-torch` runs on, in an environment of its own.
TORCH  ?= 2.15.0
OTHER  := .venv-torch-$(TORCH)

# Tests run file by file in this many processes; tests/conftest.py keeps whole jobs from running beside each other.
WORKERS ?= 2
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What a user feels comes first, then the parts, from the links between processes to the log.
BENCH ?= downtime overhead recording warmup mirror roles collectives switching planner replay

.DEFAULT_GOAL := help
.PHONY: help demo chaos test test-long coverage conformance test-torch check check-types check-direction format bench contract docs docs-serve compose-test slurm-test clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## train a small GPT on 3 machines; one is killed, one is moved away
	@$(BIN)/trainmover demo $(ARGS)

test: $(VENV)/.dev  ## run the tests (ARGS="-k name" for some of them, WORKERS=0 one after the other)
	@$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-long: $(VENV)/.dev  ## every case of the long suites too (conformance aside)
	@$(BIN)/python -m pytest --long $(SPREAD) $(ARGS)

coverage: $(VENV)/.dev  ## the tests once more, and what of the code they reach
	@$(BIN)/python -m pytest --cov --cov-report=term $(SPREAD) $(ARGS)

conformance: $(VENV)/.dev  ## torch's frameworks and torch's own suite on our backend, beside Gloo
	@TRAINMOVER_CONFORMANCE=all $(BIN)/python -m pytest tests/conformance $(ARGS)

test-torch: $(OTHER)/.ready  ## everything that touches torch, on another torch (TORCH=2.14.1)
	@$(OTHER)/bin/python -m pytest tests/conformance tests/ccl/test_group.py tests/ccl/test_roads.py \
		tests/ccl/test_standalone.py tests/ccl/test_reconfigure.py tests/ccl/test_memory.py \
		tests/ccl/test_cuda.py $(ARGS)

check: $(VENV)/.dev  ## lint, format, types, direction of dependency, the contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j 2 check-types check-direction

check-types:
	@$(BIN)/mypy

check-direction:
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/trainmover events contract --check

format: $(VENV)/.dev  ## put the code into the one format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

chaos: $(VENV)/.demo  ## half an hour of random faults in real runs (ARGS="--seed 100"); JSON in runs/
	@mkdir -p runs
	@$(BIN)/trainmover chaos --minutes 30 --json runs/chaos.json $(ARGS) tests/cluster/scripts/tiny.py --steps 40

bench: $(VENV)/.demo  ## every benchmark in its quick form, a quarter of an hour (BENCH="downtime overhead"); JSON in runs/
	@mkdir -p runs; failed=; for name in $(BENCH); do \
		echo "benchmarks/$$name.py --quick"; \
		$(BIN)/python benchmarks/$$name.py --quick --json runs/$$name.json || failed="$$failed $$name"; \
	done; if [ -n "$$failed" ]; then echo "not as it should be:$$failed" >&2; exit 1; fi

contract: $(VENV)/.dev  ## write what follows from the code: the contract in events/, subjects, reference pages
	@$(BIN)/python tools/generate.py

docs: $(VENV)/.docs  ## build the documentation into site/, strictly; loads nothing from elsewhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is in site/index.html"

docs-serve: $(VENV)/.docs  ## show the documentation at http://127.0.0.1:8000 while you write it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

compose-test: $(VENV)/.demo  ## a cluster of containers, one killed, one cut off (needs a Docker engine)
	@$(BIN)/python tools/compose_test.py $(ARGS)

slurm-test: $(VENV)/.demo  ## the batch script on a Slurm of one host (needs Debian's slurmd, slurmctld, munge; root)
	@PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tools/slurm_test.py $(ARGS)

clean:  ## remove everything that was made here, runs included
	rm -rf $(VENV) .venv-torch-* build dist runs site .coverage .coverage.* htmlcov .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- the virtual environment ---------------------------------------------------------------------

$(VENV)/.python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "TrainMover needs Python 3.11 or newer with the venv module; none was found on PATH." >&2; \
		echo "Install it (Debian and Ubuntu: apt install python3-venv), or say: make PYTHON=/path/to/python3.12 ..." >&2; \
		exit 1; fi
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "$(PYTHON) does not run or is older than Python 3.11." >&2; exit 1; fi
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.python constraints.txt
ifneq ($(TORCH_INDEX),)
	@echo "installing torch for the CPU (one download, about 200 MB)"
	@$(PIP) --no-deps --retries 0 --timeout 15 --index-url $(TORCH_INDEX) torch \
		|| echo "$(TORCH_INDEX) did not have it; taking torch from the default index"
endif
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	@echo "installing trainmover[demo]"
	@$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo pyproject.toml
	@echo "installing trainmover[dev]"
	@$(PIP) --editable ".[demo,dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml
	@echo "installing trainmover[docs]"
	@$(PIP) --editable ".[docs]"
	@touch $@

# Another torch brings its own companions, so only what has nothing to do with it stays pinned.
$(OTHER)/.ready: $(VENV)/.python pyproject.toml constraints.txt
	@echo "making $(OTHER) (torch's default wheel brings CUDA: several GB)"
	@$(BIN)/python -m venv $(OTHER)
	@grep -v -i -E '^(torch|triton|nvidia|setuptools|sympy|networkx|mpmath)' constraints.txt >$(OTHER)/constraints.txt
	@$(OTHER)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(OTHER)/constraints.txt \
		"torch==$(TORCH)" --editable ".[demo,dev]"
	@touch $@
