# Everything runs from .venv, which is made on first use and brought up to date whenever
# pyproject.toml changes. Needs Python 3.10 or newer and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-kube check format bench bench-kube clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(INSTALLED) ## the main job: learn CartPole through the pool
	$(BIN)/python examples/rl_rollouts/train.py

test: $(INSTALLED) ## all tests (TEST_ARGS="-k name" for some)
	$(BIN)/python -m pytest $(TEST_ARGS)

# The build takes a quarter of an hour on two cores, once.
test-kube: $(INSTALLED) ## half an hour of tests on a Kubernetes cluster of this machine (root, Go)
	@$(BIN)/python -m tests.kube.bed build
	@$(BIN)/python -m tests.kube.bed test $(or $(TEST_KUBE),tests/kube/cluster) -- $(TEST_ARGS)

check: $(INSTALLED) ## ruff, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## the figures of the README (BENCH_ARGS="--only NAME --json")
	$(BIN)/firepool bench $(BENCH_ARGS)

# Figures of one machine that plays all pods: for a cluster of your own, firepool bench --kube -f FILE.
bench-kube: $(INSTALLED) ## the figures on Kubernetes, on a cluster of this machine (root, Go)
	@$(BIN)/python -m tests.kube.bed build
	@$(BIN)/python -m tests.kube.bed run --kueue --nodes "a:cpu=64,mem=256,gpu=40" -- \
		$(BIN)/firepool bench --kube -f tests/kube/bench.yaml $(BENCH_ARGS)

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is older than 3.10: set PYTHON=/path/to/python3.10+" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
