# One command for people and for CI. `make help` lists the targets; the only thing needed is Python 3.11 or newer.

# `make PYTHON=…` names the Python that .venv is made with; nothing else here uses it.
VENV := .venv
SITE_VENV := .venv-site
BIN := $(VENV)/bin
CODE := $(wildcard src tests bench examples)
ARGS ?=

# What the caller's shell has activated or configured must not leak into ours.
# Without bytecode every server and command that a test starts would compile all modules again.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_REQUIRE_VIRTUALENV := 1
export PIP_USER := 0
PIP_INSTALL := $(BIN)/python -m pip install --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run run-postgres test test-all coverage check lint types imports format bench bench-peers soak-crash soak-power soak-postgres soak-spark docs site sbom lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## a server on ./penstock-data
	@exec $(BIN)/penstock serve --data ./penstock-data $(ARGS)

run-postgres: $(VENV)/.postgres ## a server on a PostgreSQL in ./penstock-postgres
	@exec $(BIN)/python scripts/run-postgres ./penstock-postgres $(ARGS)

# More than cores, because tests wait for servers: one more, with 12 GB of memory two. Four take as much memory as they may.
PROCESSES := $(shell n=$$(($$(nproc 2>/dev/null || echo 1) + 1)); \
	awk '/MemTotal/ { exit $$2 < 12000000 }' /proc/meminfo 2>/dev/null && n=$$((n + 1)); [ $$n -lt 4 ] && echo $$n || echo 4)
PYTEST := $(if $(SEED),PENSTOCK_TEST_SEED=$(SEED)) $(BIN)/python -m pytest -n $(PROCESSES)

test: $(VENV)/.dev ## all tiers of tests, without the long ones (TIER=unit for one, SEED=… to repeat a run)
	@scripts/java
	@scripts/debian chromium chromium || true
	$(PYTEST) -m "not long$(if $(TIER), and $(TIER))" $(ARGS)

test-all: $(VENV)/.dev ## all tests, the long ones too
	@scripts/java
	@scripts/debian chromium chromium || true
	$(PYTEST) --hypothesis-profile=more $(ARGS)

coverage: ## all tests, and which branches they take
	@$(MAKE) --no-print-directory test-all ARGS="--cov --cov-branch --cov-report=term $(ARGS)"

check: lint types imports test ## everything CI asks for

lint: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(VENV)/.dev
	$(BIN)/mypy $(CODE)

imports: $(VENV)/.dev
	$(BIN)/lint-imports

format: $(VENV)/.dev ## format the code and mend what can be mended by itself
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(VENV)/.dev ## the figures (ARGS="--help" for more)
	$(BIN)/python -m bench $(ARGS)

bench-peers: $(VENV)/.peers ## the same work against Penstock and what one would use instead (ARGS="--help" for more)
	$(BIN)/python -m bench.peers $(ARGS)

soak-crash: $(VENV)/.dev ## 1,000 servers killed under load
	$(BIN)/python -m tests.soak.crash --cycles 1000 $(ARGS)

soak-power: $(VENV)/.dev ## power cuts under the store
	$(BIN)/python -m tests.soak.power $(ARGS)

soak-postgres: $(VENV)/.dev ## a commit's conversation cut at every byte, 1,000 interleavings
	PENSTOCK_CUT_EVERY=1 PENSTOCK_INTERLEAVINGS=1000 \
		$(BIN)/python -m pytest --timeout 3600 tests/store/test_postgres.py tests/store/test_postgres_faults.py $(ARGS)

soak-spark: $(VENV)/.dev ## hundreds of drivers and workers killed while they archive
	@scripts/java
	$(BIN)/python -m tests.soak.lake $(ARGS)

docs: $(VENV)/.run ## the pages that are made from code
	$(BIN)/python -m penstock.cli.reference docs
	$(BIN)/python scripts/res01_page.py docs/protocols/res01.md
	$(BIN)/python scripts/security_page.py docs/security.md
	$(BIN)/python scripts/http_page.py docs/http.md

# NO_MKDOCS_2_WARNING hides a notice of mkdocs-material about its successor; it is no fault of a page.
site: $(SITE_VENV)/.site ## the docs as a website with search, in build/site
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/python -m mkdocs build --clean $(ARGS)
	@echo "build/site is ready: $(SITE_VENV)/bin/python -m http.server --bind 127.0.0.1 --directory build/site"

sbom: $(VENV)/.run ## the software bill of materials, from the locks, in build/sbom.json
	@$(BIN)/python scripts/sbom.py build/sbom.json

# The locks hold what the public registry has, whatever mirror or wheel folder this machine's pip prefers.
# Extras stay in the locks: without them pip finds `coverage[toml]` unpinned as soon as coverage has a newer release.
LOCK := CUSTOM_COMPILE_COMMAND='make lock' PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= PIP_INDEX_URL= PIP_EXTRA_INDEX_URL= \
	$(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-strip-extras \
	--allow-unsafe --no-build-isolation $(ARGS)

lock: $(VENV)/.dev ## the pinned dependencies anew (ARGS=--upgrade to move them)
	$(LOCK) --output-file requirements/run.lock pyproject.toml requirements/run.in
	$(LOCK) --output-file requirements/postgres.lock requirements/postgres.in
	$(LOCK) --output-file requirements/site.lock requirements/site.in
	$(LOCK) --extra dev --output-file requirements/dev.lock pyproject.toml requirements/dev.in
	$(LOCK) --output-file requirements/peers.lock requirements/peers.in

clean: ## everything that can be made again; ./penstock-data and ./penstock-postgres stay
	rm -rf $(VENV) $(SITE_VENV) build dist .coverage .coverage.* htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment is installed again when what it is made from has changed.
$(VENV)/.run: requirements/run.lock pyproject.toml scripts/venv
	@scripts/venv $(VENV)
	$(PIP_INSTALL) --require-hashes -r requirements/run.lock
	$(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.postgres: requirements/postgres.lock $(VENV)/.run
	$(PIP_INSTALL) --require-hashes -r requirements/postgres.lock
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.run scripts/spark-env
	$(PIP_INSTALL) --require-hashes -r requirements/dev.lock
	@scripts/spark-env $(VENV)
	@touch $@

$(VENV)/.peers: requirements/peers.lock $(VENV)/.dev
	@scripts/debian redis-server redis-server
	$(PIP_INSTALL) --require-hashes -r requirements/peers.lock
	@touch $@

$(SITE_VENV)/.site: requirements/site.lock scripts/venv
	@scripts/venv $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --quiet --require-hashes -r requirements/site.lock
	@touch $@
