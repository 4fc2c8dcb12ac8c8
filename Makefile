# Everything starts here: `make help` lists the targets. Nothing but make and Python 3.11 or later is needed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
comma := ,
# A test that starts Python would compile every module again where an environment forbids it to keep the bytecode.
unexport PYTHONDONTWRITEBYTECODE
RUN := $(VENV)/.gloader-run
STAMP := $(VENV)/.gloader-setup

# The first interpreter that is new enough; `make setup PYTHON=/path/to/python` overrides the search.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && { echo "$$p"; break; }; done)
endif

.PHONY: help setup train test lint types unit durations test-long test-graphbolt test-cluster test-lowest test-newest release-check docs bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# Pip says little for a minute: one line says what comes, and another every four seconds how far it is.
define pip_install
@echo "installing $(1) into $(VENV)"
@( began=$$SECONDS; while sleep 4 >/dev/null 2>&1; do \
	echo "  $$((SECONDS - began)) s: $$(du -sm $(VENV) 2>/dev/null | cut -f1) MB are there"; done ) & beat=$$!; \
	trap "kill $$beat" EXIT; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '$(2)' -c constraints.txt
endef

$(RUN): pyproject.toml constraints.txt gloader/core/version.py
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "error: gloader needs Python 3.11 or later, and '$(or $(PYTHON),python3)' is not:" \
			"install one, or name it with 'make setup PYTHON=/path/to/python3.11'" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: this Python has no venv module; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(call pip_install,gloader and what it needs: torch$(comma) numba$(comma) pyarrow; 1.2 GB$(comma) of which pip downloads 300 MB,.)
	@touch $@

setup: $(STAMP) ## create .venv and install gloader with every development tool (idempotent)

$(STAMP): $(RUN)
	$(call pip_install,the tools of developers: tests$(comma) types$(comma) DGL$(comma) PyG; 2.5 GB in all,.[dev])
	@echo "compiling Python modules on all cores (20 to 60 s)"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true # templates are no Python
	@touch $@

DEMO_FLAGS := --features ssd --cache 10% --memory-budget 350MB --model graphsage --fanout 10,10 --batch-size 1024 --hidden 128 \
	--epochs 3 --compare-mlp

train: $(RUN) ## install what a run needs, and train GraphSAGE on the demo graph from the SSD, a tenth of its features in memory (~1 min)
	$(BIN)/gloader train --dataset synthetic:demo $(DEMO_FLAGS)

# The types are checked beside the tests, which leave a core idle now and then; what that says comes last.
test: setup lint ## lint, types and tests (what CI runs)
	@$(MAKE) --no-print-directory types >$(VENV)/types.log 2>&1 & types=$$!; \
		status=0; $(MAKE) --no-print-directory unit || status=$$?; \
		wait $$types || status=$$?; cat $(VENV)/types.log; exit $$status

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: setup
	$(BIN)/mypy -p gloader
	$(BIN)/mypy experiments

# One worker more than there are cores, because some tests wait for processes and leave a core idle; four at most, each
# of which takes 1 GB. A file's tests stay together, so that what they share is built once, and the files that take
# longest come first (tests/durations.py). Workers that wait for a core must not spin. The kernels that the tests need
# are compiled before, each once: workers that begin with an empty cache would compile the same ones side by side.
WORKERS := -n $(shell expr $$(nproc) + 1) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
unit durations: export OMP_WAIT_POLICY = PASSIVE
unit: setup
	$(BIN)/python tests/compiled_kernels.py
	$(BIN)/python -m pytest -q --reliability-report $(WORKERS)

durations: setup ## the tests; the seconds of each file of them into tests/durations.json, their kernels into compiled_kernels.json
	$(BIN)/python tests/compiled_kernels.py
	$(BIN)/python -m pytest -q $(WORKERS) --write-durations
	$(BIN)/python tests/compiled_kernels.py --write

# numba does not key its cache by these switches, so a lane that compiles has a folder of its own. Kernels that are
# given raw addresses (ssd_store) need the compiler; the others also run as plain Python.
PLAIN_PYTHON := $(foreach name,cache convert samplers,$(wildcard tests/unit/$(name) tests/properties/$(name)))

test-long: setup ## the long tests, then the kernels with bounds checks and without the compiler
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q -m 'long or not long' -o faulthandler_timeout=900 --reliability-report
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/numba-boundscheck $(BIN)/python -m pytest -q -o faulthandler_timeout=900 tests/unit tests/properties
	NUMBA_DISABLE_JIT=1 HYPOTHESIS_PROFILE=tiny $(BIN)/python -m pytest -q -o faulthandler_timeout=900 $(PLAIN_PYTHON)

# GraphBolt's binaries are built for certain versions of torch and of Python, so it has an environment of its own.
GRAPHBOLT_PYTHON ?= python3.11
GRAPHBOLT := $(VENV)/graphbolt/bin/python

test-graphbolt: ## the adapter to DGL's GraphBolt, in .venv/graphbolt (downloads 3 GB the first time)
	test -x $(GRAPHBOLT) || "$(GRAPHBOLT_PYTHON)" -m venv $(VENV)/graphbolt
	$(GRAPHBOLT) -m pip install --quiet --disable-pip-version-check -r tests/graphbolt-requirements.txt
	PYTHONPATH=. $(GRAPHBOLT) -m pytest -q tests/integration/bridges/graphbolt_cases.py \
		tests/integration/bridges/test_dgl_storage.py tests/unit/bridges/test_dgl_blocks.py tests/unit/bridges/test_dgl_graph.py \
		tests/unit/bridges/test_dgl_hetero_blocks.py

# Ray is as large as torch is small: it has a folder of its own beside the packages of .venv. Slow, for clusters are.
CLUSTER := $(VENV)/cluster

test-cluster: setup ## gloader.ray.train on a Ray cluster of two nodes here, examples/cluster, S3 by moto (downloads 120 MB the first time)
	test -d $(CLUSTER)/ray || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
		--target $(CLUSTER) -r tests/cluster-requirements.txt
	PYTHONPATH=$(CURDIR):$(abspath $(CLUSTER)) $(BIN)/python -m pytest -q -m 'long or not long' -o faulthandler_timeout=600 \
		tests/cluster/test_files.py tests/cluster/ray_cases.py tests/cluster/trainjob_cases.py \
		tests/integration/objects/test_moto.py

# The lowest versions that pyproject.toml allows, in an environment of their own; torch of that age brings CUDA along.
LOWEST := $(VENV)/lowest/bin/python

test-lowest: ## the tests with the lowest allowed versions, in .venv/lowest (downloads 3 GB the first time)
	test -x $(LOWEST) || "$(PYTHON)" -m venv $(VENV)/lowest
	$(LOWEST) -m pip install --quiet --disable-pip-version-check -e '.[dgl,ogb,plot,pyg]' hypothesis pytest pytest-xdist scipy \
		-c tests/lowest-constraints.txt
	$(LOWEST) tests/compiled_kernels.py
	$(LOWEST) -m pytest -q $(WORKERS) $(LOWEST_TESTS)

LOWEST_TESTS := $(addprefix tests/,unit properties integration/loader integration/training integration/cli)

# What builds and checks a release. With $RELEASE_TAG the version must be that of the tag; with $RELEASE_OUT the files stay.
RELEASE := $(VENV)/release/bin/python

release-check: ## the wheel and the sdist: built, checked, and each used to train the demo in an environment of its own (3 min)
	test -x $(RELEASE) || "$(PYTHON)" -m venv $(VENV)/release
	$(RELEASE) -m pip install --quiet --disable-pip-version-check -r tests/release-requirements.txt
	$(RELEASE) tests/release_check.py $${RELEASE_TAG:+--tag "$$RELEASE_TAG"} $${RELEASE_OUT:+--out "$$RELEASE_OUT"}

# The newest versions of everything that gloader needs, whatever constraints.txt says, in an environment of their own.
NEWEST := $(VENV)/newest/bin/python

test-newest: ## the tests with the newest allowed versions, in .venv/newest (downloads 3 GB the first time)
	test -x $(NEWEST) || "$(PYTHON)" -m venv $(VENV)/newest
	$(NEWEST) -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[ogb,plot,pyg]' \
		hypothesis pytest pytest-xdist scipy
	$(NEWEST) tests/compiled_kernels.py
	$(NEWEST) -m pytest -q $(WORKERS) $(LOWEST_TESTS)

# A warning is an error: a link that leads nowhere, a name in a docstring that is not there. Nothing is fetched.
docs: $(VENV)/.gloader-docs ## the documentation as a site, in docs/_build/html
	$(BIN)/python -m sphinx -b html -E -W --keep-going --quiet docs docs/_build/html

$(VENV)/.gloader-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[docs]' -c constraints.txt
	touch $@

TODAY := $(shell date +%F)
RESULTS := experiments/results/$(TODAY)

bench: setup ## the benchmarks (~1 h, 30 GB of free disk here); dated results in experiments/results
	$(BIN)/python experiments/bench/sampler.py --out $(RESULTS)-sampler.json
	$(BIN)/python experiments/bench/ssd_read.py --folder . --json $(RESULTS)-ssd-read.json
	$(BIN)/python experiments/bench/prepare.py --workdir . --out $(RESULTS)-prepare.json
	$(BIN)/python experiments/bench/inspector.py --out $(RESULTS)-inspector.json
	$(BIN)/python experiments/bench/packs.py --workdir bench-data --out $(RESULTS)-packs.json
	$(BIN)/python experiments/bench/pipeline.py --workdir bench-data --json $(RESULTS)-pipeline.json
	$(BIN)/python experiments/bench/topology.py --workdir bench-data --scale 0.2 --memory-budget 1GB --out $(RESULTS)-topology.json

clean: ## remove what the build and the tools left (not .venv, not datasets)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find gloader samplers cache ssd_store tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +
