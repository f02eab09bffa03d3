# Each word does its own set-up in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast check fix bench docs chaos

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,speech,synthetic,mpi]'
	touch $@

test: .venv/ready
	$(BIN)/python -m pytest

test-fast: .venv/ready
	$(BIN)/python -m pytest -m 'not slow'

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell src tests docs README.md CONTRIBUTING.md CHANGELOG.md

fix: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
