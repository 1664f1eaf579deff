# Everything a fresh machine needs is set up by the target that needs it; the second call finds it done.
# Needs Python 3.11 or newer and make. `make test ARGS="-k topics"` passes arguments on.

# The first that is new enough: on older systems python3 is not, and python3.11 stands beside it.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS ?=
KILLS ?= 20
RECORDS ?= 100000

.PHONY: help demo test test-portable chaos fleet fuzz bench dashboards lint format lock sbom audit clean

help:
	@echo "make demo           a session that goes wrong, through a broker and a worker, on this machine"
	@echo "make test           every test; those that need Java are skipped, with the reason, where there is none"
	@echo "make test-portable  the tests without a broker, and one through the embedded broker"
	@echo "make chaos KILLS=n  two workers on a real Kafka, ended at random under load, against the pure fold (ARGS: see --help)"
	@echo "make fuzz RECORDS=n  records that nobody should send, through the codec and the fold (ARGS='--seed n')"
	@echo "make fleet          all that docker-compose.yml describes, natively, ten minutes of a fleet with faults (ARGS=--short: two)"
	@echo "make bench          events a second beside the same job in other frameworks; needs Java and Maven (ARGS=--quick: a minute)"
	@echo "make dashboards     write Grafana's JSON from the code in deploy/grafana"
	@echo "make lint           ruff and mypy"
	@echo "make format         let ruff lay out the code"
	@echo "make lock           what the image installs, anew: requirements.lock, requirements-build.lock (ARGS=--upgrade)"
	@echo "make sbom           dist/sbom.json: the bill of materials (CycloneDX) of what is locked"
	@echo "make audit          known vulnerabilities of what is locked; 69 when the source of advisories cannot tell"
	@echo "make clean          remove the virtual environment and all caches in this folder"

demo: $(VENV)/.demo
	@$(BIN)/compaction-monitor demo $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(ARGS)

test-portable: $(VENV)/.dev
	@$(BIN)/python -m pytest -m "smoke or not (broker or kafka or chromium or index)" $(ARGS)

chaos: $(VENV)/.dev
	@$(BIN)/python -m tests.chaos --kills $(KILLS) $(ARGS)

fuzz: $(VENV)/.dev
	@$(BIN)/python -m tests.fuzz --records $(RECORDS) $(ARGS)

fleet: $(VENV)/.dev
	@$(BIN)/python -m tests.fleet $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m bench $(ARGS)

dashboards: $(VENV)/.dev
	@$(BIN)/python -m deploy.grafana

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# uv keeps what is pinned already, as long as it fits.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock'

lock: $(VENV)/.dev
	@$(LOCK) $(ARGS) pyproject.toml --extra monitor --output-file requirements.lock
	@echo hatchling | $(LOCK) $(ARGS) - --output-file requirements-build.lock

sbom: $(VENV)/.dev
	@mkdir -p dist
	@$(BIN)/python -m cyclonedx_py requirements --output-reproducible --pyproject pyproject.toml --output-file dist/sbom.json \
		requirements.lock

audit: $(VENV)/.dev
	@$(BIN)/python -m deploy.audit $(ARGS)

clean:
	rm -rf .venv* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

# The demo installs what it runs, the tests all extras. pyproject.toml changed: installed anew.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV); once, about a minute" >&2
	@$(PIP) --editable '.[adapters,embedded,emitter,monitor,simulate]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV); once, about a minute" >&2
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

# A link to an interpreter that is gone counts as missing, hence --clear.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; install one, or: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { echo "Python's venv module is missing (Debian: apt install python3-venv)" >&2; exit 1; }
