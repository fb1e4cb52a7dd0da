PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := engines/.venv
WORKERS := 4
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench engines lock clean

help:    ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/'

demo: $(VENV)/ready    ## conversations surviving kill -9, on a Postgres of the demo's own
	$(BIN)/turnkeep demo

test: $(VENV)/ready pgbouncer    ## every test, on real Postgres and real pgbouncer
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

lint: $(VENV)/ready    ## ruff, mypy, and whether the generated files are current
	$(BIN)/python tools/sync_twin.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready pgbouncer    ## ratios beside their budgets
	$(BIN)/python -m bench

engines: $(VENV)/ready $(ENGINES)/ready    ## real model servers, killed in the middle of a stream
	$(BIN)/pytest -q engines

lock: $(VENV)/ready    ## write down what CI installs
	$(BIN)/pip freeze --exclude-editable | grep -v "^pip==" > constraints.txt

clean:    ## remove the virtual environment and caches
	rm -rf $(VENV) $(ENGINES) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(ENGINES)/ready: engines/llamacpp.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check --no-deps -r engines/llamacpp.txt
	@touch $@

.PHONY: pgbouncer
pgbouncer:
	@PATH="$$PATH:/usr/sbin"; command -v pgbouncer >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing pgbouncer, which the tests need"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pgbouncer >/dev/null; \
	else \
	    echo "the tests need pgbouncer: install the package pgbouncer (apt-get install pgbouncer), then run this again"; exit 1; \
	fi
