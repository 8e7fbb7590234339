# `make demo` and `make test` work from nothing but Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 2000
RUNS ?= 20
TIME ?= 60
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup check lint types layers test sim e2e bench demo clean protos protos-check crds crds-check openapi openapi-check diagram diagram-check golden

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.complete ## virtual environment with everything that development needs

$(VENV)/.complete: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into $(VENV) (about a minute the first time) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[local,otel]" --group dev
	@touch $@

check: setup ## lint, types, layers, generated files: under a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -p no:randomly tests/test_layout.py tests/test_tidy.py

test: setup ## all tests that belong to every change
	$(BIN)/pytest -q -n $(WORKERS) tests
	$(BIN)/pytest -q e2e

sim: setup ## simulated Raft clusters: SEEDS=2000, or PAVANE_SEED=… to replay one
	SEEDS=$(SEEDS) $(BIN)/pytest -q -n $(WORKERS) --timeout=0 tests/sim

e2e: setup ## end-to-end tests on the embedded cluster, the long runs too (RUNS of each)
	PAVANE_E2E_RUNS=$(RUNS) $(BIN)/pytest -q -rP e2e

bench: setup ## benchmarks
	$(BIN)/python -m bench

demo: setup ## the main job, live: a cluster, a client that writes, a rollout under it
	$(BIN)/pavane demo examples/quickstart.yaml

crds: setup ## regenerate the custom resource definitions
	$(BIN)/python -m pavane_operator.crds.gen

crds-check: setup
	$(BIN)/python -m pavane_operator.crds.gen --check

openapi: setup ## regenerate the description of the REST API
	$(BIN)/python -m pavane_api.openapi

openapi-check: setup
	$(BIN)/python -m pavane_api.openapi --check

protos: setup ## regenerate the gRPC modules
	$(BIN)/python services/pavane/compute/proto/generate.py

protos-check: setup
	$(BIN)/python services/pavane/compute/proto/generate.py --check

diagram: setup ## regenerate docs/rollout.md from the planner's table
	$(BIN)/python -m pavane_operator.plan.diagram

diagram-check: setup
	$(BIN)/python -m pavane_operator.plan.diagram --check

golden: setup ## rewrite golden traces; explain each changed line in the commit
	$(BIN)/pytest -q --rewrite tests/services/raft/test_golden.py

clean: ## what tests and builds leave behind (not .pavane, not .venv)
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov
