# Everything a newcomer needs: `make quickstart` and `make test`. Nothing else has to be installed first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: quickstart test test-numerics docs lint format clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[report]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e '.[report,tune,tensorboard,triton,faiss,docs,dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) -e '.[report,docs]'
	@touch $@

quickstart: $(VENV)/.base
	$(BIN)/limerank quickstart

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-numerics: $(VENV)/.dev
	$(BIN)/python tests/numerics.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'site/index.html'

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) limerank-quickstart site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
