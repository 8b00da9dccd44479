# Everything a person does here, by name. `make` alone lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CODE   := src tests $(wildcard bench examples)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-system mutate check format bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## create .venv with makegood and the locked versions of all it needs

demo: $(READY) ## show it: an embedded server, workers, a faulty shop and a scripted model, on this machine
	@$(BIN)/makegood demo

test: $(READY) ## all tests; they bring their own Valkey (ARGS="-k lease" picks some)
	@$(BIN)/pytest $(ARGS)

test-system: $(READY) ## the tests that need redis-server, rabbitmq-server and promtool of this system
	@$(BIN)/pytest --system $(ARGS)

mutate: $(READY) ## change the pure rules in 1,900 small ways: the rule tests notice 85 % or more (six minutes)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements/lock.txt -r requirements/mutate.txt
	@$(BIN)/python tests/tools/mutation_score.py 85

check: $(READY) ## lint, format, types, import directions, the built package
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/unit/test_packaging_wheel.py

format: $(READY) ## let ruff repair what it can
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY) ## measure the numbers that the docs promise
	@$(BIN)/python -m bench $(ARGS)

lock: ## write requirements/lock.txt anew from the ranges in pyproject.toml
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet hatchling && \
	"$$folder/bin/python" -m pip install --quiet --no-build-isolation -e '.[worker,server,test]' && \
	{ head -n 1 requirements/lock.txt; "$$folder/bin/python" -m pip freeze --exclude-editable; } > requirements/lock.new && \
	mv requirements/lock.new requirements/lock.txt

clean: ## remove .venv, build results and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache mutants
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements/lock.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "makegood needs Python 3.11 or newer: say which with make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	{ echo "This Python cannot create a virtual environment: install its venv package (Debian: python3-venv)." >&2; exit 1; }
	@echo "Installing into $(VENV) (about a minute, once) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements/lock.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
