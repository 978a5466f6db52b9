# `make` alone prints help. Set-up logic is scripts/setup.py: it skips what is done, by content, in a moment.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python
# Workers of Spark must be the same Python as the driver, or spark-submit picks another python3.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
PYTEST := $(PY) -m pytest
# Without a JVM tests run side by side, one per core; Spark sessions and Airflows in pairs: each leaves a core half idle.
PARALLEL := -n auto -q
PAIRS := -n 2 --dist worksteal -q
SIDE_BY_SIDE := unit tables
IN_PAIRS := spark kafka airflow
LINTED := src tests scripts jobs dags plugins benchmarks examples

.PHONY: help setup demo demo-kafka up down test unit test-spark test-kafka test-airflow e2e faults check shape schema bench bench-all lock clean

help: ## Print this
	@echo "Needs Python 3.11+, Java 17 or 21 and make. demo and test set everything up by themselves."
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16 | sed 's/^/  make /'

setup: ## Packages and jars, pinned and verified; nothing to do the second time
	@$(PYTHON) scripts/setup.py

demo: setup ## Drain a year of real flights through the Airflow DAG and show the result
	@$(PY) scripts/demo.py

demo-kafka: setup ## The same with a Kafka broker and a topic of events, some of them broken
	@$(PY) scripts/demo_kafka.py

PROJECT = .
up: setup ## Start Airflow on this machine, with the demo's DAG or, PROJECT=../shop, those of a project of yours
	@root="$$(realpath -- "$(PROJECT)")" && DRAINDOWN_ROOT="$$root" $(PY) scripts/airflow_local.py up

down: ## Stop it
	@if [ -x $(PY) ]; then $(PY) scripts/airflow_local.py down; else echo "Nothing is set up, so nothing runs."; fi

# A tier has processes of its own: Spark's session and Airflow's environment are set once per process.
test: setup ## All tests but the long fault campaign
	@set -e; for tier in $(SIDE_BY_SIDE); do echo "== tests/$$tier"; $(PYTEST) $(PARALLEL) "tests/$$tier"; done
	@set -e; for tier in $(IN_PAIRS); do \
	  echo "== tests/$$tier"; $(PYTEST) $(PAIRS) -m "not campaign" "tests/$$tier"; done
	@echo "== tests/faults, tests/e2e"; $(PYTEST) $(PAIRS) -m "not campaign" --ignore tests/e2e/test_evening.py tests/faults tests/e2e
	@echo "== an evening on call"; $(PYTEST) -q -m "not campaign" tests/e2e/test_evening.py

unit: setup ## Tests without a JVM
	@$(PYTEST) $(PARALLEL) tests/unit

test-spark: setup ## Tests with a Spark session, the long ones too
	@$(PYTEST) $(PAIRS) tests/spark

test-kafka: setup ## Tests against a real broker on loopback
	@$(PYTEST) $(PAIRS) tests/kafka

test-airflow: setup ## Tests through real DAG runs
	@$(PYTEST) $(PAIRS) tests/airflow

e2e: setup ## The whole way, as a user would
	@$(PYTEST) $(PAIRS) tests/e2e

faults: setup ## Kill and break everything, at length; writes the tables of docs/guarantees.md
	@rm -f .work/faults.jsonl .work/bad-input.jsonl
	@failed=0; $(PYTEST) $(PAIRS) --timeout 3600 tests/faults || failed=1; \
	  $(PYTEST) $(PAIRS) --timeout 1800 -m campaign tests/spark || failed=1; \
	  $(PY) -m tests.faults.score || failed=1; $(PY) -m tests.scores || failed=1; exit $$failed

check: setup ## Format, lint, types, layers, spelling, docs
	@$(BIN)/ruff check $(wildcard $(LINTED))
	@$(BIN)/ruff format --check $(wildcard $(LINTED))
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PY) scripts/shape.py | tail -6
	@$(BIN)/codespell
	@$(PYTEST) -q -m docs tests/unit

shape: setup ## The rooms of the code, what each imports, and the measures they are held to
	@$(PY) scripts/shape.py

schema: setup ## Write the JSON Schema of pipeline files, for editors
	@$(BIN)/draindown schema

# Other works and their options: `python -m benchmarks.bench --help`, as in `make bench WORK="growth --repeat 5"`.
WORK ?= drain
bench: setup ## Measure against the hand-written job; WORK=growth and others: benchmarks/README.md
	@$(PY) -m benchmarks.bench $(WORK)

bench-all: setup ## All works of the benchmarks: half a day
	@$(PY) -m benchmarks.bench all

lock: ## Resolve requirements.in again (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv on PATH: pipx install uv"; exit 1; }
	@uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
	  --python-version 3.11 --output-file requirements.lock requirements.in

clean: ## Remove what set-up, demo and tests made here (./lake, ./landing and the cache in your home stay)
	@rm -rf .venv .work build dist demo spark-warehouse metastore_db derby.log \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	@find $(wildcard $(LINTED)) -name __pycache__ -type d -prune -exec rm -rf {} +
