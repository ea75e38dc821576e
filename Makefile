# What can be made here. `make` alone lists it. Every target that needs it makes .venv first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

IN_VENV := .venv/bin/python -m
PYTEST_ARGS ?=
# Small matrices on shared cores: one thread is faster than many, and repeatable.
export OMP_NUM_THREADS := 1
export PYTHON

.PHONY: help setup demo test test-slow newest-sglang lint format wheel clean

help: ## list what can be made (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile
	@echo 'PYTHON=python3.12 picks the interpreter of a new .venv; PYTEST_ARGS="-k word" narrows the tests.'

setup: ## make .venv: SGLang CPU engine, test tools, this package; checks what must be there first
	@tools/setup.sh

demo: setup ## a walk through the whole product, no GPU needed; ends in a page, build/demo.html
	@.venv/bin/sglang-mi300a demo --page build/demo.html

test: lint ## lint, then every test that is not slow
	$(IN_VENV) pytest -m 'not slow' $(PYTEST_ARGS)

test-slow: setup ## the tests marked slow
	$(IN_VENV) pytest -m slow $(PYTEST_ARGS)

newest-sglang: setup ## judge every hook against the newest SGLang release; reports, never fails
	@rm -rf build/newest-sglang && mkdir -p build/newest-sglang
	-@.venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
	  -d build/newest-sglang sglang && .venv/bin/sglang-mi300a hooks check --sglang build/newest-sglang/sglang-*.whl

lint: setup ## ruff, formatting, types (mypy --strict), Python 3.10 syntax and library
	$(IN_VENV) ruff check .
	$(IN_VENV) ruff format --check .
	$(IN_VENV) mypy
	@# `long` is a tensor's method here, not Python 2's type.
	.venv/bin/vermin --quiet --no-tips --violations --exclude long -t=3.10- sglang_mi300a

format: setup ## rewrite the Python files as `make lint` wants them
	$(IN_VENV) ruff check --fix .
	$(IN_VENV) ruff format .

wheel: setup ## dist/: the source archive, and the wheel built from it
	rm -rf dist
	$(IN_VENV) build --no-isolation

clean: ## remove all that was made here, .venv too
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
