# Opus SDN. `make help` lists the targets; the first one that needs it makes .venv, later ones install nothing.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The interpreter that makes .venv; empty: the first one below that runs, is 3.11 or newer and can make one.
PYTHON ?=
# Further arguments for every `pip install`, for example another index.
PIP_ARGS ?=
PYTEST_ARGS ?=
# `no` leaves out the tests that need PostgreSQL's programs; else they are installed where that is possible.
POSTGRES ?= yes
export OPUS_TEST_POSTGRES := $(POSTGRES)
# `no` leaves out the tests that look at pages in a browser; else it is installed where that is possible.
CHROMIUM ?= yes
export OPUS_TEST_CHROMIUM := $(CHROMIUM)
# How many times the usual number of seeds `make soak` runs.
SCALE ?= 20

PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)

.PHONY: help install postgres chromium demo demo-polatis test lint bench soak openapi clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

install: $(STAMP) ## make .venv with everything that the other targets need

$(STAMP): pyproject.toml requirements/torch-cpu.txt
	@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
	    # An interpreter counts when it runs: a version manager's shim may be on the path without one behind it.
	    found=
	    for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3 /usr/bin/python3); do
	        if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi
	    done
	    if [ -z "$$found" ]; then
	        echo "no Python of 3.11 or newer that can make an environment: looked at $(or $(PYTHON),python3.11 python3.12 python3.13 python3 /usr/bin/python3); install one with its venv module, or name one: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2
	        exit 1
	    fi
	    echo "[1/3] making $(VENV) with $$("$$found" --version)" >&2
	    rm -rf $(VENV)
	    "$$found" -m venv $(VENV)
	else
	    echo "[1/3] $(VENV) is there: $$($(BIN)/python --version)" >&2
	fi
	echo "[2/3] installing torch for the tests and demonstrations (large; once, minutes on a slow line)" >&2
	$(PIP) --requirement requirements/torch-cpu.txt
	echo "[3/3] installing opus-sdn and its development tools" >&2
	$(PIP) --editable '.[dev,shim,whatif]'
	touch $@

postgres: $(STAMP) ## PostgreSQL's programs for the tests: found, or installed by apt-get as root
	@if [ "$(POSTGRES)" != no ] && ! $(BIN)/python -m tests.postgres; then
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	        echo "installing PostgreSQL's programs for the tests (apt-get install postgresql)" >&2
	        apt-get update -qq >&2
	        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >&2
	    fi
	    $(BIN)/python -m tests.postgres || { $(BIN)/python -m tests.postgres why >&2; exit 1; }
	fi

chromium: $(STAMP) ## a headless Chromium for the tests of pages: found, or installed by apt-get as root
	@if [ "$(CHROMIUM)" != no ] && ! $(BIN)/python -m tests.chromium; then
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	        echo "installing Chromium for the tests (apt-get install chromium fonts-dejavu-core)" >&2
	        apt-get update -qq >&2
	        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >&2
	    fi
	    $(BIN)/python -m tests.chromium || { $(BIN)/python -m tests.chromium why >&2; exit 1; }
	fi

demo: $(STAMP) ## two and eight real PyTorch ranks train through the controller; report in build/demo/
	@$(BIN)/python -m opus_sdn.demo

demo-polatis: $(STAMP) ## the eight ranks through an emulated Polatis over RESTCONF; report in build/demo-polatis/
	@$(BIN)/python -m opus_sdn.demo.polatis

test: $(STAMP) postgres chromium ## all tests but the soak; the pure core with full branch coverage
	@echo "every branch of the pure core:" >&2
	$(BIN)/python -m pytest -q tests/intent --ignore=tests/intent/test_programs.py \
	    --ignore=tests/intent/test_run_programs.py --ignore=tests/intent/test_mutants.py \
	    --cov=opus_sdn.intent --cov-branch --cov-fail-under=100 $(PYTEST_ARGS)
	echo "everything:" >&2
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP) ## format, lint, types and import rules; changes nothing
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## how long grants and replays take, and what the backend costs
	@$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.whatif
	$(BIN)/python -m benchmarks.shim

soak: $(STAMP) postgres ## seeded simulations, store histories and fail-overs at many times their usual number (SCALE=20)
	@OPUS_TEST_SCALE=$(SCALE) $(BIN)/python -m pytest tests/intent/test_programs.py tests/intent/test_run_programs.py tests/store/test_stateful.py \
	    tests/store/test_lost_connection.py tests/replicas/test_failover.py tests/sim tests/crash $(PYTEST_ARGS)

openapi: $(STAMP) ## write the API document anew
	@$(BIN)/opus openapi > openapi.json.new
	mv openapi.json.new openapi.json

clean: ## remove what can be made again, .venv too
	@rm -rf $(VENV) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.ONESHELL:
