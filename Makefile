# `make` alone lists what there is. Everything runs in .venv, which is built on demand from requirements.txt.

VENV   := .venv
STAMP  := $(VENV)/.installed
BIN    := $(VENV)/bin
PYTHON ?=
PORT   ?=
SEEDS  ?= 300
SEED   ?=
PYTEST := $(BIN)/pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help up images test test-fast test-system test-kubernetes test-long check sim sim-mutants bench bench-api bench-archive bench-controller bench-editor bench-proxy bench-start docs pins format clean

help: ## This list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(STAMP) ## Run a whole CodeHub on this machine (PORT=9000: elsewhere than 8000)
	@$(BIN)/codehub up $(if $(PORT),--port $(PORT))

images: $(STAMP) ## Build the images of workspaces and of CodeHub itself, if they are not up to date
	@$(BIN)/python deploy/images/build.py

test: check test-fast ## All that CI runs but on Kubernetes: check, fast tests, simulation, system tests
	@$(MAKE) --no-print-directory sim
	@$(MAKE) --no-print-directory test-system

test-fast: $(STAMP) ## Tests that need nothing but Python (two or three minutes)
	@$(PYTEST) -q -n 2 -m "not system and not kubernetes and not long"

test-system: $(STAMP) ## Tests on the real PostgreSQL, Redis and processes
	@$(PYTEST) -q -n 2 --dist loadfile --durations 12 -m "system and not kubernetes and not long"

test-kubernetes: $(STAMP) ## Tests on a real Kubernetes: of CODEHUB_TEST_KUBECONFIG, or built and started for them
	@$(BIN)/python -m tests.kubernetes.cluster run $(PYTEST) -q -n 0 --durations 12 -m "kubernetes and not long"

test-long: check ## The full numbers; keeps their summary in docs/evidence
	@$(BIN)/python -m tests.evidence

check: $(STAMP) ## Linters, types, import contracts, generated docs, house rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python docs/generate.py --check
	@$(PYTEST) -q tests/house

sim: $(STAMP) ## Search fault schedules: SEEDS=300 many, or SEED=7 to replay one
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-mutants: $(STAMP) ## Plant bugs one at a time and show that the search finds each
	@$(BIN)/python -m tests.mutants

bench: $(STAMP) ## Every benchmark
	@$(BIN)/python -m bench

bench-api: $(STAMP) ## The API's answers and events at 1 k and 10 k workspaces, with 500 listeners
	@$(BIN)/python -m bench.api

bench-archive: $(STAMP) ## The storage job against tar and zstd, on a home of 1 GB and 50,000 files
	@$(BIN)/python -m bench.archive

bench-controller: $(STAMP) ## The controller's passes at 1 k, 10 k and 100 k workspaces
	@$(BIN)/python -m bench.controller

bench-editor: $(STAMP) ## What an idle editor costs, with CodeHub's extension and without
	@$(BIN)/python -m bench.idle_editor

bench-proxy: $(STAMP) ## The front door beside nginx and configurable-http-proxy
	@$(BIN)/python -m bench.proxy --json -

bench-start: $(STAMP) ## From a wish to RUNNING in Docker, against a bare docker run (RUNTIME=kubernetes: a bare pod)
	@$(BIN)/python -m bench.start $(if $(RUNTIME),--runtime $(RUNTIME))

docs: $(STAMP) ## Write docs/reference anew from the code
	@$(BIN)/python docs/generate.py

pins: $(STAMP) ## Write the requirements with their hashes anew, after a change to constraints.txt
	@$(BIN)/python -m pip install -qq uv==0.13.7
	@$(BIN)/python deploy/pins.py

format: $(STAMP) ## Format the code and apply the linter's safe fixes
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

clean: ## Remove .venv and every cache (your data is elsewhere)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first interpreter on PATH that is new enough and can make environments: a pyenv shim or another user's private
# python may be found yet not run, so each candidate is tried, not only looked up.
define FIND_PYTHON
	usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	python=; \
	for name in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  IFS=:; for place in '' $$PATH; do unset IFS; \
	    case $$place in '') candidate=$$name ;; *) candidate=$$place/$$name ;; esac; \
	    if "$$candidate" -c "$$usable" 2>/dev/null; then python=$$candidate; break 2; fi; \
	  done; unset IFS; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "CodeHub needs Python 3.11 or newer with its venv module, and found none$(if $(PYTHON), at PYTHON=$(PYTHON))."; \
	  echo "On Debian or Ubuntu: apt-get install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python3.11"; \
	  exit 1; \
	fi
endef

$(STAMP): pyproject.toml requirements.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  $(FIND_PYTHON); \
	  echo "Building $(VENV) with $$python (once; a minute or two)"; \
	  rm -rf $(VENV); \
	  "$$python" -m venv $(VENV); \
	fi
	@echo "Installing the pinned dependencies into $(VENV)"
	@$(BIN)/python -m pip install -qq --require-hashes --requirement requirements.txt
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@
