# Each word does its own set-up in .venv.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= demo
WORKERS ?= 2
WITH_FRAMEWORKS := tests/test_examples.py tests/test_lightning.py tests/runs/test_wandb_logs.py tests/runs/test_mlflow_logs.py
ON_PROCESSES := tests/runtimes/processes/test_process_runtime.py tests/study/test_scheduler.py

.PHONY: demo test test-fast coverage coverage-quick check fix bench docs faults audit fuzz reproduce package test-frameworks

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,speech,synthetic,export,mpi,plot,tensorboard,docs]'
	touch $@

# The whole story in minutes: speech, training by the papers' strategies on processes and simulated, decoding, report.
demo: .venv/ready
	$(BIN)/roundelay demo --out $(OUT)

test: .venv/ready
	$(BIN)/python -m pytest -n $(WORKERS)

test-fast: .venv/ready
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow'

# Lightning, Accelerate, lhotse, W&B and MLflow have an environment of their own; make test uses it too, if it is there.
.venv-frameworks/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[speech,synthetic,lightning,accelerate,lhotse,wandb,mlflow]'
	touch $@

test-frameworks: .venv/ready .venv-frameworks/ready
	$(BIN)/python -m pytest -n $(WORKERS) $(WITH_FRAMEWORKS)

# The suite with every line counted that some process runs, which takes half as long again; fails below the floor.
coverage: .venv/ready
	mkdir -p build/coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# The same of a part that holds the floor alone, in minutes; what is above it, make coverage tells.
coverage-quick: .venv/ready
	mkdir -p build/coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) -m 'not slow'
	$(BIN)/coverage run -m pytest $(ON_PROCESSES)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

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
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/timing_only.py

# One claim of the papers, tried again, with its page: make reproduce CLAIM=C09
reproduce: .venv/ready
	$(BIN)/python benchmarks/reproduce.py $(CLAIM)

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/docs: built; look at it by $(BIN)/python -m http.server -d build/docs"

# The wheel and the source distribution, built, installed in an empty environment elsewhere, and run there.
package: .venv/ready
	$(BIN)/python tools/package.py

# Known vulnerabilities of what is installed, where the advisories can be reached.
audit: .venv/ready
	$(BIN)/python tools/audit.py

# Learners killed, stopped and cut off, thousands of times, on real processes and in the simulator; then the table.
faults: .venv/ready
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/resume.py

# An hour of damaged and hostile input for everything that reads, in one process at a time; then the table.
fuzz: .venv/ready
	$(BIN)/python tools/fuzz.py
