# Everything is done inside .venv, which is built on first use. `make help` explains the targets.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
MAKEFLAGS += --no-builtin-rules
# Where the environment forbids it, each of the thousands of processes that tests start would compile
# the sources anew: a sixth of what a start costs.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
RUNS ?= 20000
NAME ?= wordcount
ARGS ?=
WORKERS ?= 6
TIMES ?= 5
CLUSTER ?= auto
NODES ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STORE := $(VENV)/store
# The longest tests first.
MEMBERS := e2e-tests runtime operator
SOURCES := $(MEMBERS:%=%/src)
TESTS := $(wildcard $(MEMBERS:%=%/tests))
LONG_TESTS := runtime/tests/faults runtime/tests/testing $(patsubst %,e2e-tests/tests/test_%.py,chaos_kills crash_points damaged_side_files edits files_life older_copies own_state_server parted_drivers run_histories snapshots scaled_ackers several_state_servers standing_by)
# What a worker takes next, conftest.py says. More workers than cores: many tests wait most of the
# time for processes that start.
AT_ONCE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=40 --durations-min=20
CHART := charts/millrace
CLUSTER_TESTS := e2e-tests/cluster/tests
LINTED := conftest.py $(SOURCES) $(TESTS) $(CLUSTER_TESTS) $(wildcard examples benchmarks images)
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
UV := $(VENV)/uv/bin/uv

##@ Try it

.PHONY: demo
demo: classes ## Word count over real text, checked against an independent count (CHAOS=1 kills processes)
	@$(BIN)/python examples/wordcount/demo.py $(ARGS)

##@ Check it

.PHONY: test
test: classes ## The tests that CI runs, WORKERS=6 at a time (ARGS="-k name" to choose)
	@$(BIN)/python -m pytest $(AT_ONCE) $(TESTS) $(ARGS)

.PHONY: test-fast
test-fast: classes ## The tests without the long ones of crashes, kills and poison
	@$(BIN)/python -m pytest $(AT_ONCE) $(TESTS) $(patsubst %,--ignore=%,$(LONG_TESTS)) $(ARGS)

.PHONY: test-long
test-long: classes ## Those alone, TIMES=5 times in a row while something else keeps every core busy
	@for time in $$(seq $(TIMES)); do \
		$(BIN)/python -m millrace_e2e.busy $(BIN)/python -m pytest $(AT_ONCE) $(LONG_TESTS) $(ARGS) || exit; done

.PHONY: lint
lint: $(STAMP) ## Format, style, types and the direction of imports
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint-types lint-others

# Types take one core as long as all others take the other one.
.PHONY: lint-types lint-others
lint-types: $(STAMP)
	@$(BIN)/mypy $(SOURCES)

lint-others: $(STAMP)
	@$(BIN)/ruff check $(LINTED)
	@$(BIN)/ruff format --check $(LINTED)
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory verify

.PHONY: format
format: $(STAMP) ## Format the code and mend what can be mended
	@$(BIN)/ruff check --fix $(LINTED)
	@$(BIN)/ruff format $(LINTED)

.PHONY: simulate
simulate: $(STAMP) ## Simulated runs of the protocol with crashes at every action (RUNS=20000)
	@$(BIN)/python -m millrace.simulate --runs $(RUNS) $(ARGS)

.PHONY: mutants
mutants: $(STAMP) ## Small faults in the protocol, one at a time: who notices? (ARGS="machine --runs 300")
	@$(BIN)/python runtime/tests/mutants/mutant_runner.py $(ARGS)

.PHONY: soak
soak: classes ## One long history with at least 100 kills, over several state servers
	@$(BIN)/python -m millrace_e2e.soak $(ARGS)

.PHONY: bench
bench: classes ## One benchmark (NAME=wordcount)
	@$(BIN)/python benchmarks/$(NAME).py $(ARGS)

.PHONY: profile
profile: classes ## Where the CPU of a window goes, with a flame graph (NAME=wordcount, function, small, shuffle or grouped)
	@$(BIN)/python benchmarks/profiling.py $(NAME) $(ARGS)

##@ On a cluster

.PHONY: cluster-up
cluster-up: $(STAMP) ## A Kubernetes of two nodes (CLUSTER=own, kind or current; NODES=2)
	@$(BIN)/python -m millrace_e2e.cluster --cluster $(CLUSTER) up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: $(STAMP) ## Take that cluster down; nothing of it is left
	@$(BIN)/python -m millrace_e2e.cluster --cluster $(CLUSTER) down

.PHONY: e2e-programs
e2e-programs: $(STAMP) ## Have what tests on nodes take: packages, programs of the cluster, images
	@$(BIN)/python -m millrace_e2e.cluster prepare

.PHONY: e2e-cluster
e2e-cluster: $(STAMP) ## The tests of the cluster itself, which bring one up and take it down
	@$(BIN)/python -m pytest $(wildcard $(CLUSTER_TESTS)/test_cluster_*.py) $(ARGS)

.PHONY: e2e
e2e: $(STAMP) ## All end-to-end tests: the cluster up, images, the chart by helm, campaigns of kills, the cluster down; API servers alone
	@$(BIN)/python -m pytest -rA $(CLUSTER_TESTS) $(ARGS)

.PHONY: e2e-smoke
e2e-smoke: $(STAMP) ## On two nodes: helm install, word count, one kill of every kind of pod, all removed
	@$(BIN)/python -m pytest -x $(CLUSTER_TESTS)/test_smoke_on_nodes.py $(ARGS)

##@ Maintain it

.PHONY: constraints
constraints: $(UV) ## Pin what constraints.in and store.in name, and uv, again (UPGRADE=1 for newer versions)
	@$(UV) pip compile --quiet --generate-hashes --no-header --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade) \
		--output-file constraints.txt constraints.in
	@{ cat e2e-tests/store.in; grep -o '^fsspec==[^ ]*' constraints.txt; } | $(UV) pip compile \
		--quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade) \
		--output-file e2e-tests/store.txt -
	@echo uv | $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade) --output-file uv.txt -

.PHONY: schema
schema: $(STAMP) ## Generate the schema and the reference of topology files
	@$(BIN)/millrace schema > docs/topology.schema.json
	@$(BIN)/millrace schema --markdown > docs/topology.md

.PHONY: crds
crds: $(STAMP) ## Generate the custom resource definitions
	@$(BIN)/python -m millrace_operator.crds crds
	@$(BIN)/python -m millrace_operator.crds $(CHART)/crds

.PHONY: states
states: $(STAMP) ## Generate the description of the driver's states and of the deliberate bugs
	@$(BIN)/python -m millrace.simulate.states > docs/windows.md
	@$(BIN)/python -m millrace.simulate.bugs.table > docs/bugs.md

.PHONY: verify
verify: $(STAMP) ## Fail where generated files differ from what they are generated from
	@$(BIN)/millrace schema | diff -u docs/topology.schema.json - \
		&& $(BIN)/millrace schema --markdown | diff -u docs/topology.md - \
		&& $(BIN)/python -m millrace.simulate.states | diff -u docs/windows.md - \
		&& $(BIN)/python -m millrace.simulate.bugs.table | diff -u docs/bugs.md - \
		|| { echo "docs/ is out of date; run: make schema states" >&2; exit 1; }
	@$(BIN)/python -m millrace_operator.crds --verify crds \
		&& diff -u --recursive --exclude=README.md crds $(CHART)/crds \
		|| { echo "crds/ or the chart's is out of date; run: make crds" >&2; exit 1; }

.PHONY: store
store: $(STORE)/.installed ## Have an object store for tests of snapshots, which skip that without it

.PHONY: venv
venv: $(STAMP) ## Build .venv (done by every target that needs it)

.PHONY: clean
clean: ## Remove .venv, caches and the local state of topologies
	@rm -rf $(VENV) .mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +
	@find . -name '*.egg-info' -prune -exec rm -rf {} +
	@find . -name .millrace -prune -exec rm -rf {} +

.PHONY: help
help: ## Show this help
	@awk 'BEGIN { FS = ":.*## "; print "usage: make <target> [NAME=value ...]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: classes
# Without it everything works, with slower starts: a home that is read-only is no reason to stop.
classes: $(STAMP) java
	@$(BIN)/millrace prepare > /dev/null || true

.PHONY: java
java:
	@version=$$($(JAVA) -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ -z "$$version" ]; then \
		echo "error: $(JAVA) was not found; Spark needs Java 17 or newer: install a JRE" \
			"(Debian: apt install default-jre-headless) or set JAVA_HOME" >&2; exit 1; \
	elif [ "$$version" -lt 17 ]; then \
		echo "error: $(JAVA) is version $$version; Spark needs Java 17 or newer:" \
			"install one or set JAVA_HOME" >&2; exit 1; \
	fi

# Hashes are checked for everything that is downloaded; the members come from this folder. What has no
# wheel is built by the setuptools that is pinned: left to itself pip fetches the newest one for that,
# without a hash, and runs it.
$(STAMP): constraints.txt $(MEMBERS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is missing or older than 3.11; install it or set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "error: $(PYTHON) cannot make a venv (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "installing into $(VENV) (once; takes a minute or two)"
	@sed -n '/^\(packaging\|setuptools\|wheel\)==/,/[^\\]$$/p' constraints.txt | $(BIN)/python -m pip install \
		--quiet --disable-pip-version-check --require-hashes --only-binary :all: -r /dev/stdin
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--no-build-isolation -r constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		$(MEMBERS:%=-e %)
	@$(BIN)/python -m compileall -q $(SOURCES)
	@touch $@

# In a folder of its own, as docs/operator.md has it in an image: some of it clashes with what .venv has.
$(STORE)/.installed: e2e-tests/store.txt | $(STAMP)
	@echo "installing an object store into $(STORE) (95 MB)"
	@rm -rf $(STORE)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--only-binary :all: --no-compile --target $(STORE) -r e2e-tests/store.txt
	@touch $@

# Only needed to pin anew, so it stays out of constraints.txt.
$(UV): uv.txt
	@$(PYTHON) -m venv $(VENV)/uv
	@$(VENV)/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--only-binary :all: -r uv.txt
	@touch $@
