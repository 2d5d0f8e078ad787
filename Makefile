# Everything a newcomer needs: `make quickstart` and `make test`. Nothing else has to be installed first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: quickstart test test-browser test-engines results soak test-numerics docs lint format clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[report,serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e '.[report,serve,otel,tune,tensorboard,triton,faiss,browser,docs,dev]'
	@touch $@

# TorchRec asks for a build of FBGEMM with CUDA; both are installed without what they ask for, and that by name
$(VENV)/.engines: $(VENV)/.dev
	$(PIP) -e '.[ray,redis]' pyre-extensions tensordict
	$(PIP) --no-deps torchrec fbgemm-gpu-cpu
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) -e '.[report,serve,docs]'
	@touch $@

quickstart: $(VENV)/.base
	$(BIN)/limerank quickstart

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --ignore tests/with_engines

# rendered reports and the inspector in a real browser; installs Debian's Chromium when root
test-browser: $(VENV)/.dev
	command -v chromium chromium-browser google-chrome >/dev/null || test "$$(id -u)" != 0 || (apt-get update -qq && apt-get install -qqy chromium)
	$(BIN)/python -m pytest tests/browser

# TorchRec, Ray and Redis for real, on this machine; installs Debian's Redis when root
test-engines: $(VENV)/.engines
	command -v redis-server valkey-server >/dev/null || test "$$(id -u)" != 0 || (apt-get update -qq && apt-get install -qqy redis-server)
	$(BIN)/python -m pytest tests/with_engines

# SOAK_MINUTES (60) and two hours more; SOAK_PARTS=kills,swaps runs some of it; writes docs/results/soak.json
soak: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m soak.run

# every file of docs/results again; RESULTS="accuracy-easy latency" makes some anew; hours, goes on behind what it has finished
results: $(VENV)/.engines
	$(BIN)/python benchmarks/results.py $(RESULTS)

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
