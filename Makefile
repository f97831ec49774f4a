# Every target works as the first command in a fresh clone: it makes the environment it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) $(UPGRADE)
WORKERS ?= 2
# one thread per test worker; the workers share the cores
TEST := OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS)
ARGS ?=

.PHONY: help venv demo test test-slow test-newest test-oldest coverage lint docs dist tutorials bench bench-speed bench-goals clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         cluster the blood cells that ship with scanpy, draw the map"
	@echo "make test         the default tests, doctests included"
	@echo "make test-slow    the slow tests and those on real data"
	@echo "make test-newest  the default tests on the newest releases of all dependencies, PyTorch aside"
	@echo "make test-oldest  the default tests on the oldest releases that pyproject.toml allows (Python 3.11)"
	@echo "make coverage     the default tests, and which lines they reach"
	@echo "make lint         ruff and mypy"
	@echo "make docs         the documentation, into docs/_build/html, and a check of its links"
	@echo "make dist         the wheel and the source archive, checked, into dist"
	@echo "make tutorials    run the tutorials, store their outputs (ARGS=01: one; ARGS=--quick: small, store nothing)"
	@echo "make bench        all tables of docs/benchmarks (ARGS='table1 --seeds 0': only those runs)"
	@echo "make bench-speed  time and memory, and what training on a sketch costs; hours on a quiet machine"
	@echo "make bench-goals  the part of bench-speed that compares with other methods; a quarter of an hour on a quiet machine"
	@echo "make venv         only the environment, in $(VENV)"
	@echo "make clean        remove what these targets made, the environments included"
	@echo "PYTHON=... chooses the interpreter of a new environment, WORKERS=1 makes the tests use one core."

venv: $(VENV)/stamp-dev

$(VENV)/stamp-test: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(INSTALL) --editable ".[dask,leiden]" --group test
	touch $@

# other groups are installed only by the targets that need them
$(VENV)/stamp-%: $(VENV)/stamp-test
	$(INSTALL) --group $*
	touch $@

demo: $(VENV)/stamp-test
	MPLBACKEND=Agg $(BIN)/python tutorials/demo.py

test: $(VENV)/stamp-test
	$(TEST) $(ARGS)

test-slow: $(VENV)/stamp-test
	$(TEST) -m "slow or data" $(ARGS)

# two more environments; the newest is brought up to date at every call
test-newest:
	rm -f .venv-newest/stamp-test
	$(MAKE) test VENV=.venv-newest UPGRADE="--upgrade --upgrade-strategy eager"

test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

coverage: $(VENV)/stamp-test
	$(TEST) --cov --cov-report=term --cov-report=html $(ARGS)

lint: $(VENV)/stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/stamp-doc
	MPLBACKEND=Agg $(BIN)/python -m sphinx -b html -W --keep-going docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

dist: $(VENV)/stamp-dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

tutorials: $(VENV)/stamp-doc
	$(BIN)/python tutorials/execute.py $(ARGS)

bench: $(VENV)/stamp-bench
	$(BIN)/python -m benchmarks.run $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.newcells)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.batches)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.limits)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.cuts)
	$(BIN)/python -m benchmarks.report

bench-speed: $(VENV)/stamp-bench
	$(BIN)/python -m benchmarks.profile
	$(BIN)/python -m benchmarks.speed $(ARGS)
	$(BIN)/python -m benchmarks.sketch
	$(BIN)/python -m benchmarks.report

bench-goals: $(VENV)/stamp-bench
	$(BIN)/python -m benchmarks.speed mnist ifnb pbmc3k types_200 --methods vcc umap_kmeans tl_vcc umap_leiden $(ARGS)
	$(BIN)/python -m benchmarks.report

clean:
	rm -rf $(VENV) .venv-newest .venv-oldest demo_output docs/_build docs/generated docs/tutorials/*.ipynb dist \
		.coverage htmlcov .mypy_cache .pytest_cache .ruff_cache
	find scvcc tests benchmarks tutorials -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
