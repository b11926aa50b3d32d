# Two commands do everything on a fresh machine with Python 3.11 to 3.13 and a C++ compiler:
#
#     make quickstart        install, make games, train RSPO over GRPO, print success before and after
#     make test              install, run the tests
#
# `make quickstart BASE=grpo` trains plain GRPO with the same budget (so do rloo, gigpo and the other bases of configs/bases.py);
# `make report` lays the runs side by side.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BASE ?= rspo
WORKDIR ?= runs/quickstart-$(BASE)
GAMES := data/alfworld
SFT_GAMES := data/alfworld-sft
comma := ,
CONFIG := configs/$(if $(filter rspo,$(BASE)),rspo.py:alfworld,base.py:alfworld$(comma)$(BASE))
export JAX_PLATFORMS ?= cpu

.PHONY: install quickstart report warm-start test test-presets test-warm-start check bench

install: $(VENV)/.installed

# Every package exactly as pinned and nothing else: --no-deps keeps jericho from bringing spaCy along.
$(VENV)/.installed: constraints.txt setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(GAMES)/games.json: | install
	$(BIN)/rspo envs make alfworld --out=$(GAMES) --games=300 --panel=96 --seed=0

quickstart: install $(GAMES)/games.json
	$(BIN)/rspo train --config=$(CONFIG) --workdir=$(WORKDIR)

report: install
	$(BIN)/rspo report $(wildcard runs/quickstart-*) --out=runs/report.html

# The model in configs/warm_start/alfworld, from nothing. More games than a run trains on: fewer would be learned by heart.
$(SFT_GAMES)/games.json: | install
	$(BIN)/rspo envs make alfworld --out=$(SFT_GAMES) --games=1000 --panel=12 --seed=1

warm-start: install $(SFT_GAMES)/games.json
	$(BIN)/rspo sft --config=configs/base.py:alfworld --config.pool.options.data=$(SFT_GAMES) --workdir=runs/warm-start

test: install
	$(BIN)/ruff check .
	$(BIN)/pytest -q -n 2 --dist loadfile

test-presets: install
	$(BIN)/pytest -q -m presets tests/train

test-warm-start: install $(GAMES)/games.json $(SFT_GAMES)/games.json
	$(BIN)/pytest -q -s -m rebuild tests/train

check: install $(GAMES)/games.json
	$(BIN)/ruff check .
	$(BIN)/rspo envs check $(GAMES)

bench: install $(GAMES)/games.json
	$(BIN)/python bench/alfworld_speed.py $(GAMES)
	$(BIN)/python bench/pool.py --alfworld $(GAMES)
	$(BIN)/python bench/model_speed.py
	$(BIN)/python bench/sampler.py
