# Two commands: `make demo` and `make test`. Both set up .venv first; nothing else is needed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
PAPER  := $(VENV)/.paper
SCRIPTS := first_figure accuracy gain_by_model input_output latency tables headlines single_branch tradeoff constraints fine_tuned
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input

# One torch thread per process: results repeat, and the two test workers do not fight.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test format lint types contracts doctest unit heavy zoo random fuzz threads matrix roundtrips sweeps tuning paper-quick paper bench docs pictures weights clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1: /p' $(MAKEFILE_LIST)

venv: $(STAMP)  ## create .venv with the pinned development dependencies

# torch goes in first and pinned, so that no other requirement chooses a build of it; torchvision
# goes in last and without its dependencies, because its metadata may name another torch.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch setuptools
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[dev]"
	$(PIP) install -c constraints.txt --no-deps torchvision
	touch $@

demo: $(STAMP)  ## prune the shipped network and print what changed
	$(BIN)/python examples/demo.py

test: lint types contracts doctest unit  ## everything the project claims

format: $(STAMP)  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

contracts: $(STAMP)  ## import-linter: who may import whom
	$(BIN)/lint-imports

doctest: $(STAMP)  ## the examples in the docstrings
	$(BIN)/python -m pytest --doctest-modules src

unit: $(STAMP)  ## the tests
	$(BIN)/python -m pytest -n 2 tests

heavy: $(STAMP)  ## what `unit` leaves out: larger models and more repetitions of what it proves
	$(BIN)/python -m pytest -n 2 -m heavy tests

zoo: $(STAMP)  ## every torchvision classifier, exported against masked, as a table (hours)
	$(BIN)/python -m scripts.zoo

random: $(STAMP)  ## 5,000 random networks, exported against masked
	$(BIN)/python scripts/random_networks.py

.PHONY: masks
masks: $(STAMP)  ## 1,000 random networks: the masks that users train against the oracle (a minute)
	UPSCALE_NETWORKS=1000 $(BIN)/python -m pytest -q tests/verify/test_oracle.py -k users_train

.PHONY: attention
attention: $(STAMP)  ## 2,000 random attention blocks, exported against masked (half an hour)
	UPSCALE_BLOCKS=2000 $(BIN)/python -m pytest -q tests/verbs/test_attention.py -k random_attention

fuzz: $(STAMP)  ## 10,000 mutated files and 2,000 plans: the same model, or our own error
	$(BIN)/python -m scripts.fuzz_store

threads: $(STAMP)  ## 200 prunes in four threads while models serve in two: failures, and growth of memory
	$(BIN)/python -m scripts.threads

# Interpreters come from PATH, or from the folders that UPSCALE_PYTHONS names; records in docs/
# say what has been tried. It takes six gigabytes at a time, and some twenty minutes a version.
matrix: $(STAMP)  ## the tests with torch 2.7 to 2.15, Python 3.10 to 3.13; what has a record is not run again (hours)
	nice -n 10 $(BIN)/python -m scripts.matrix

roundtrips: $(STAMP)  ## every torchvision classifier through every kind of file, as a table (hours)
	$(BIN)/python -m scripts.round_trips

sweeps: $(STAMP)  ## sweeps on Ray, with a worker killed; installs Ray
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[ray]"
	$(BIN)/python -m pytest tests/lab/sweep

tuning: $(STAMP)  ## fine-tuning, stopped and resumed, and on two processes; installs Accelerate
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[tune]"
	$(BIN)/python -m pytest tests/lab/tuning

# What the paper's scripts draw with, fine-tune with and compare with.
$(PAPER): $(STAMP)
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[plot,tune]" torch-pruning
	touch $@

# Weights and images come from where UPSCALE_DATA says; records and figures go into build/.
paper-quick: $(PAPER)  ## every script of paper/, end to end, with few settings (minutes)
	@set -e; for script in $(SCRIPTS); do \
	  echo "== $$script"; \
	  $(BIN)/python -m paper.$$script --quick --records build/paper/records.sqlite --figures build/paper; \
	done
	@echo "== train_subjects"; $(BIN)/python -m paper.train_subjects --quick

# Into the repository: records, figures and tables. IMAGES: how many test images accuracy is of.
IMAGES ?= 1000
paper: $(PAPER)  ## every script of paper/ in full; what has a record is not measured again (hours)
	@set -e; mkdir -p build/paper paper/results; for script in $(SCRIPTS); do \
	  echo "== $$script"; \
	  $(BIN)/python -m paper.$$script --images $(IMAGES) --on processes > build/paper/$$script.md; \
	  mv build/paper/$$script.md paper/results/$$script.md; \
	done
	$(BIN)/python -m paper.page

bench: $(STAMP)  ## seconds to plan and export, and what the ordering solver finds
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/ordering.py --quick

docs: $(STAMP)  ## the site, in build/docs; warnings are errors
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[docs]"
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs build/docs
	@echo "Open build/docs/index.html"

pictures: $(STAMP)  ## draw the pictures in the documents again
	$(BIN)/python -m scripts.pictures

weights: $(STAMP)  ## train the shipped network again
	$(BIN)/python scripts/train_digits.py

clean:  ## remove what the other targets made, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
