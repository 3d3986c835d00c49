# Everything runs inside .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint types pytest test-arviz test-browser test-adapters docs format quickstart clean

test: lint types pytest

# The stamp makes an interrupted or outdated install start again.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "egm needs Python 3.11 to 3.13; set PYTHON=/path/to/python")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Extras that some tests need, and the quickstart does not.
.venv/.extras: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bayes,completion,examples,log]'
	touch $@

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/basedpyright

pytest: .venv/.extras
	$(BIN)/python -m pytest --numprocesses auto

# ArviZ 1 needs a later Python than 3.11: the first that is found, or ARVIZ_PYTHON=/path/to/python.
ARVIZ_PYTHON ?= $(shell for p in python3.13 python3.12; do $$p -c '' 2>/dev/null && echo $$p && break; done)
test-arviz: .venv/.extras
	$(if $(ARVIZ_PYTHON),,$(error there is no python3.12 or later; set ARVIZ_PYTHON=/path/to/python))
	$(ARVIZ_PYTHON) -m venv .venv/arviz
	.venv/arviz/bin/python -m pip install --quiet 'arviz>=1' h5netcdf h5py
	EGM_ARVIZ_PYTHON=$(CURDIR)/.venv/arviz/bin/python $(BIN)/python -m pytest tests/draws/test_export.py

# Tests of reports in a real browser. `make test` skips them if there is none.
test-browser: .venv/.browser
	EGM_NEEDED='Chromium playwright' $(BIN)/python -m pytest tests/report/test_report_browser.py

# If Chromium is missing, it is installed from the system's packages, which may need permission.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)
.venv/.browser: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	for name in $(BROWSERS); do command -v $$name && exit; done; \
		{ $(SUDO) apt-get update && $(SUDO) apt-get install --yes --no-install-recommends chromium; } || \
		{ echo 'test-browser needs Chromium, and it could not be installed with apt-get; install it and try again'; exit 1; }
	touch $@

# Tests of JAX, Pyro and NumPyro energies and models. `make test` skips them if the packages are missing. Most of their
# time is compilation, so JAX optimizes less.
test-adapters: .venv/.adapters
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 EGM_NEEDED='jax pyro numpyro' .venv/adapters/bin/python -m pytest --numprocesses auto -m adapters tests

# An environment on top of .venv: it finds the packages of .venv, and new packages are installed outside of .venv.
.venv/.adapters: .venv/.installed
	$(BIN)/python -m venv --clear .venv/adapters
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.venv/adapters/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	.venv/adapters/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[jax,pyro,numpyro]'
	touch $@

# Tests of the package without extras, in an empty environment.
.PHONY: test-install
test-install:
	$(PYTHON) -m venv --clear .venv/bare
	.venv/bare/bin/python -m pip install --quiet --constraint constraints.txt .
	.venv/bare/bin/python -I tests/support/bare_install.py

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each call makes a new run, so that it can be repeated.
quickstart: .venv/.installed
	run=runs/quickstart-$$(date +%Y%m%d-%H%M%S) && \
		$(BIN)/egm train --recipe fast/gbrbm --time_limit 60 --device cpu --out $$run && \
		$(BIN)/egm sample $$run -n 2000 --seed 1 --out $$run/draws.csv && \
		$(BIN)/egm report $$run

# The documentation; a warning is an error.
docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going --quiet docs build/docs
	@echo 'written to build/docs/index.html'

.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache build dist
