# Each word does its own set-up in .venv.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= demo

.PHONY: demo test test-fast check fix bench docs chaos audit

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,speech,synthetic,mpi,plot]'
	touch $@

# What there is, from audio to aligned states, and one model trained by two strategies on processes and in the simulator.
demo: .venv/ready
	rm -rf $(OUT)
	$(BIN)/roundelay corpus synth --out $(OUT)/corpus --hours 0.17 --jobs 2
	$(BIN)/roundelay prepare $(OUT)/corpus --out $(OUT)/data --jobs 2
	$(BIN)/roundelay train experiments/tiny.toml --out $(OUT)/processes --learners 2 --strategy bmuf
	$(BIN)/roundelay train experiments/tiny.toml --out $(OUT)/simulated --learners 16 --strategy adpsgd --on simulator --slow 3=10

test: .venv/ready
	$(BIN)/python -m pytest

test-fast: .venv/ready
	$(BIN)/python -m pytest -m 'not slow'

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell src tests docs tools benchmarks examples experiments README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md
	$(BIN)/python docs/build.py --check

fix: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/ddp.py
	$(BIN)/python benchmarks/straggler.py
	$(BIN)/python benchmarks/features.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/memory.py

docs: .venv/ready
	$(BIN)/python docs/build.py build/docs

# Known vulnerabilities of what is installed, where the advisories can be reached.
audit: .venv/ready
	$(BIN)/python tools/audit.py

# Learners killed on real processes and in the simulator.
chaos: .venv/ready
	$(BIN)/python -m pytest tests/runtimes/test_membership.py tests/runtimes/test_launch.py tests/test_training.py
