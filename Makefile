# Everything runs inside .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint types pytest format quickstart clean

test: lint types pytest

# The stamp makes an interrupted or outdated install start again.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "egm needs Python 3.11 to 3.13; set PYTHON=/path/to/python")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# What some tests need beside; the quickstart does without.
.venv/.extras: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bayes,completion,log]'
	touch $@

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/basedpyright

pytest: .venv/.extras
	$(BIN)/python -m pytest --numprocesses auto

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each call makes a run of its own, so that it can be repeated.
quickstart: .venv/.installed
	$(BIN)/egm train --recipe fast/gbrbm --time_limit 60 --device cpu \
		--out runs/quickstart-$$(date +%Y%m%d-%H%M%S)

clean:
	rm -rf .venv .pytest_cache .ruff_cache build dist
