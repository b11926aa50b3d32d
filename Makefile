# Two commands do everything on a fresh machine with Python 3.11 to 3.13: `make quickstart` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BASE ?= rspo
WORKDIR ?= runs/quickstart-$(BASE)
export JAX_PLATFORMS ?= cpu

.PHONY: install test lint

install: $(VENV)/.installed

# Every package exactly as pinned and nothing else: --no-deps keeps jericho from bringing spaCy along.
$(VENV)/.installed: constraints.txt setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

test: install
	$(BIN)/ruff check .
	$(BIN)/pytest -q

lint: install
	$(BIN)/ruff check .
