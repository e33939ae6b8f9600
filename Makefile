# Every target sets up what it needs, in .venv; `make clean` removes it again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BACKENDS := tensorflow jax torch
STAMPS := .stamps
# The CPU build: the default one brings gigabytes of CUDA.
TORCH ?= torch==2.13.0
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TF_CPP_MIN_LOG_LEVEL = 2

.PHONY: help setup demo test test-slow lint format bench docs clean
help:
	@echo "make demo       train on Python's own sources for two minutes, then explain and generate"
	@echo "make test       the test-suite, once on each of: $(BACKENDS)"
	@echo "make test-slow  the tests that take minutes"
	@echo "make lint       ruff, mypy and formatting"
	@echo "make bench      measure this machine; results go to benchmarks/results/"
	@echo "make docs       the tables in README.md, from benchmarks/results/"
	@echo "make setup      only prepare .venv for all of these"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cellerate needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# The demo needs one backend only.
$(STAMPS)/demo: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[jax]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet 'pip>=25.1'
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet -e '.[tensorflow,jax,torch,tokenizers,tensorboard,plots]' --group dev
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/demo

setup: $(STAMPS)/dev

demo: $(STAMPS)/demo
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

# One process for what needs no Keras, then one for each backend.
test: $(STAMPS)/dev
	$(BIN)/python -m pytest -m "not keras and not slow"
	@for backend in $(BACKENDS); do \
		echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(BIN)/python -m pytest -m "keras and not slow" || exit 1; \
	done

# pytest ends with 5 where no test is marked so.
test-slow: $(STAMPS)/dev
	$(BIN)/python -m pytest -m "slow and not keras"
	@for backend in $(BACKENDS); do \
		echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(BIN)/python -m pytest -m "keras and slow" || [ $$? -eq 5 ] || exit 1; \
	done

lint: $(STAMPS)/dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: $(STAMPS)/dev
	$(BIN)/python benchmarks/run.py

docs: $(STAMPS)/dev
	$(BIN)/python benchmarks/tables.py

clean:
	rm -rf $(VENV) $(STAMPS) demo
