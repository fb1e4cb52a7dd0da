PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := engines/.venv
WORKERS := 4
FUZZ := fuzz/.venv
FUZZ_SECONDS ?= 300
FUZZ_EXAMPLES ?= 2000
MAJORS := 15 16 17
.DEFAULT_GOAL := help
.PHONY: help demo test postgres-versions model lint bench scale engines fuzz lock clean pictures recall

help:    ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/'

demo: $(VENV)/ready    ## conversations surviving kill -9, on a Postgres of the demo's own
	$(BIN)/turnkeep demo

test: $(VENV)/ready pgbouncer postgresql    ## every test, on real Postgres and real pgbouncer
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

postgres-versions: $(VENV)/ready    ## the store's and the schema's tests on Postgres 15, 16 and 17; the usual one is 18
	$(BIN)/python tools/postgres_versions.py $(MAJORS)
	for major in $(MAJORS); do \
	    echo "Postgres $$major"; \
	    TURNKEEP_TEST_POSTGRES=$(CURDIR)/.postgres/$$major $(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not pgvector" tests/store tests/migration || exit 1; \
	done

lint: $(VENV)/ready    ## ruff, mypy, and whether the generated files are current
	$(BIN)/python tools/sync_twin.py --check
	$(BIN)/python -m tools.reference --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

model: $(VENV)/ready    ## thousands of made-up sequences, the store beside a plain model
	MODEL_SEQUENCES=$${MODEL_SEQUENCES:-3000} $(BIN)/pytest -q tests/store/test_model.py

bench: $(VENV)/ready pgbouncer    ## ratios beside their budgets
	$(BIN)/python -m bench

scale: $(VENV)/ready    ## a million messages in 20,000 conversations: each command's time, memory and plans
	$(BIN)/python -m bench.scale

recall: $(VENV)/ready    ## how often a search finds what was meant, on real text
	$(BIN)/python -m tools.recall

pictures: $(VENV)/ready    ## what the commands print, drawn for README and docs
	$(BIN)/python tools/pictures.py

engines: $(VENV)/ready $(ENGINES)/ready    ## real model servers, killed in the middle of a stream
	$(BIN)/pytest -q engines

fuzz: $(VENV)/ready $(FUZZ)/ready    ## exact JSON text under made-up input, for FUZZ_SECONDS and FUZZ_EXAMPLES
	@mkdir -p fuzz/seen fuzz/found
	$(FUZZ)/bin/python -m fuzz.jsontext -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -dict=fuzz/json.dict \
	    -artifact_prefix=fuzz/found/ fuzz/seen tests/corpus
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest -q -k fuzz tests/unit tests/store

lock: $(VENV)/ready    ## write down what CI installs
	$(BIN)/pip freeze --exclude-editable | grep -v "^pip==" > constraints.txt

clean:    ## remove the virtual environment and caches
	rm -rf $(VENV) $(ENGINES) $(FUZZ) fuzz/seen fuzz/found build dist .postgres .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(ENGINES)/ready: engines/llamacpp.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check --no-deps -r engines/llamacpp.txt
	@touch $@

$(FUZZ)/ready: fuzz/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/pip install --quiet --disable-pip-version-check -r fuzz/requirements.txt -e . hypothesis
	@touch $@

.PHONY: pgbouncer postgresql
pgbouncer:
	@PATH="$$PATH:/usr/sbin"; command -v pgbouncer >/dev/null || $(call installed,pgbouncer)

postgresql:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || ls .postgres/*/bin/postgres >/dev/null 2>&1 || $(call installed,postgresql)

# Install a package that the tests need, or say so.
installed = { \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $(1), which the tests need"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) >/dev/null; \
	else \
	    echo "the tests need $(1): install the package $(1) (apt-get install $(1)), then run this again"; exit 1; \
	fi; }
