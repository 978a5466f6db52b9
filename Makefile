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
# Spark sessions and Airflows run in pairs: each leaves a core half idle. A worker that is done takes tests of another.
PARALLEL := -n auto --dist worksteal
PAIRS := -n 2 --dist worksteal
# A tier has processes of its own: Airflow's environment is set once per process. Streams share Spark's session. The demo,
# which is one process after the other, goes beside them.
unit := $(PARALLEL) tests/unit
tables := $(PARALLEL) tests/tables
streams := $(PAIRS) --ignore tests/e2e/test_evening.py tests/e2e tests/spark tests/kafka
airflow := $(PAIRS) tests/airflow
faults := $(PAIRS) tests/faults
evening := tests/e2e/test_evening.py
# $(call tier,FORM,TIER,MARKERS): the tests of a tier with these markers, within the tier's budget (tests/budget.toml).
tier = @echo "== $(1) $(2) $(ORDER)"; $(PYTEST) -q -p tests.budget --budget $(1).$(2) --durations 10 -m "$(3)" $(ORDER) $($(2))
LINTED := src tests scripts jobs dags plugins benchmarks examples

.PHONY: help setup demo demo-kafka demo-cluster up down test test-order test-full test-all test-long unit test-spark test-kafka test-airflow e2e campaign
.PHONY: mutations check shape schema bench bench-all lock clean

help: ## Print this
	@echo "Needs Python 3.11+, Java 17 or 21 and make. demo and test set everything up by themselves."
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16 | sed 's/^/  make /'

setup: ## Packages and jars, pinned and verified; nothing to do the second time
	@$(PYTHON) scripts/setup.py

demo: setup ## Drain a year of real flights through the Airflow DAG and show the result
	@$(PY) scripts/demo.py

demo-kafka: setup ## The same with a Kafka broker and a topic of events, some of them broken
	@$(PY) scripts/demo_kafka.py

demo-cluster: setup ## The first demo on a Spark cluster of two workers on this machine, ended with it
	@$(PY) scripts/demo.py --cluster

PROJECT = .
up: setup ## Start Airflow on this machine, with the demo's DAG or, PROJECT=../shop, those of a project of yours
	@root="$$(realpath -- "$(PROJECT)")" && DRAINDOWN_ROOT="$$root" $(PY) scripts/airflow_local.py up

down: ## Stop it
	@if [ -x $(PY) ]; then $(PY) scripts/airflow_local.py down; else echo "Nothing is set up, so nothing runs."; fi

SHORT := not full and not long and not campaign
test: setup ## Every capability once, within ten minutes; some tests start Spark, Kafka and Airflow
	$(call tier,test,unit,$(SHORT))
	$(call tier,test,tables,$(SHORT))
	$(call tier,test,streams,$(SHORT))
	$(call tier,test,airflow,$(SHORT))
	$(call tier,test,faults,$(SHORT))

# Modules are shuffled, and tests within a module: a module's fixtures, streams among them, are still made once.
SEED := $(or $(SEED),$(shell echo $$RANDOM))
test-order: ORDER = --random-order-bucket module --random-order-seed $(SEED)
test-order: test ## The same in a random order, which it prints; SEED=7 repeats one

FULL := full and not long and not campaign
test-full: setup ## What test-all has beyond test
	$(call tier,full,tables,$(FULL))
	$(call tier,full,streams,$(FULL))

test-all: test test-full ## Every rule once

test-long: setup ## Other forms of the same rules, and what takes long: an hour and more
	$(call tier,long,unit,long and not campaign)
	$(call tier,long,tables,long and not campaign)
	$(call tier,long,streams,long and not campaign)
	$(call tier,long,airflow,long and not campaign)
	$(call tier,long,faults,long and not campaign)
	$(call tier,long,evening,not campaign)

unit: setup ## Tests without a JVM
	@$(PYTEST) -q $(unit)

test-spark: setup ## Tests with a Spark session, the long ones too
	@$(PYTEST) -q $(PAIRS) -m "not campaign" tests/spark

test-kafka: setup ## Tests against a real broker on loopback
	@$(PYTEST) -q $(PAIRS) -m "not campaign" tests/kafka

test-airflow: setup ## Tests through real DAG runs
	@$(PYTEST) -q $(airflow)

e2e: setup ## The whole way, as a user would
	@$(PYTEST) -q $(PAIRS) -m "not campaign" tests/e2e

# Parts and their ages: `make campaign PART=list`.
PART ?= next
campaign: setup ## Kill and break everything, a part of at most 40 minutes; PART=3, or the one not run for longest
	@$(PY) -m tests.campaign $(PART)

# 30 by the hash of HEAD; `make mutations MUTATIONS="--seed x --count 5"`. It goes on where it was stopped.
mutations: setup ## Break the code in 30 places, one at a time, and see whether the tests find it
	@$(PY) scripts/mutations.py $(MUTATIONS)

check: setup ## Format, lint, types, layers, spelling, docs
	@$(BIN)/ruff check $(wildcard $(LINTED))
	@$(BIN)/ruff format --check $(wildcard $(LINTED))
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PY) scripts/shape.py | tail -10
	@$(BIN)/codespell
	@$(PYTEST) -q -m docs tests/unit

shape: setup ## The rooms of the code, what each imports, and the measures they are held to
	@$(PY) scripts/shape.py

schema: setup ## Write the JSON Schema of pipeline files, for editors
	@$(BIN)/draindown validate --json-schema

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

clean: ## Stop what runs here, and remove what set-up, demo and tests made here (./lake, ./landing and the cache in your home stay)
	@for place in demo/kafka .work/kafka; do \
	  if [ -f $$place/pid ] && [ -x $(PY) ]; then $(PY) scripts/kafka_broker.py down $$place || true; fi; done
	@if [ -f .work/airflow/airflow.pid ] && [ -x $(PY) ]; then $(PY) scripts/airflow_local.py down || true; fi
	@rm -rf .venv .work .draindown build dist demo spark-warehouse metastore_db derby.log \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	@find $(wildcard $(LINTED)) -name __pycache__ -type d -prune -exec rm -rf {} +
