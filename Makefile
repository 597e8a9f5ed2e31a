# The commands of this repository. `make quickstart` shows what Forebay does; `make test` checks it.

VENV   ?= .venv
TORCH  := $(VENV)-torch
CLOUD  := $(VENV)-dataflow
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python3.14,\
	$(shell $(name) -c 'import sys, venv, ensurepip; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
CODE   := cachelib pipelines tests examples bench

.PHONY: quickstart test test-all test-flink lint format pins clean

quickstart: $(VENV)/.has-pipelines
	$(BIN)/python examples/quickstart.py --work quickstart

test: lint
	$(PYTEST) -m "not slow and not engine and not torch and not jax and not dataflow and not flink"

# What `make test` leaves out, after what it does. Exit status 5: there is no such test.
test-all: test $(TORCH)/.has-torch $(CLOUD)/.has-dataflow
	$(PYTEST) -m "(slow or engine) and not dataflow and not flink" || [ $$? -eq 5 ]
	$(CLOUD)/bin/python -m pytest -m dataflow tests/templates/test_dataflow_job.py
	$(TORCH)/bin/python -m pytest -m torch tests/torch
	$(TORCH)/bin/python -m pytest -m jax tests/jax

# For those who have a Flink and the job server of Beam, which no package registry has.
test-flink: $(VENV)/.has-test
	@if [ -n "$$FLINK_HOME" ] && [ -n "$$FOREBAY_FLINK_JOB_SERVER_JAR" ]; then $(PYTEST) tests/flink; else \
		echo "test-flink ran nothing: it needs FLINK_HOME and FOREBAY_FLINK_JOB_SERVER_JAR (docs/flink.md)"; fi

lint: $(VENV)/.has-test
	$(BIN)/ruff check setup.py $(CODE)
	$(BIN)/ruff format --check setup.py $(CODE)
	$(BIN)/mypy $(CODE)

format: $(VENV)/.has-test
	$(BIN)/ruff check --fix setup.py $(CODE)
	$(BIN)/ruff format setup.py $(CODE)

pins: $(VENV)/.has-test
	$(BIN)/python -m pip install --quiet uv
	sed -n '/^#/p' requirements.txt > requirements.new
	$(BIN)/uv pip compile setup.py --extra pipelines --extra gcs --extra s3 \
		--python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
		>> requirements.new
	mv requirements.new requirements.txt

clean:
	rm -rf $(VENV) $(TORCH) $(CLOUD) quickstart build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Installations. A stamp in the environment saves doing one again until what it depends on changes.

$(VENV)/.has-pipelines: setup.py requirements.txt | $(BIN)/python
	$(PIP) -e '.[pipelines]'
	@touch $@

$(VENV)/.has-test: setup.py requirements.txt | $(BIN)/python
	$(PIP) -e '.[pipelines,test,s3,gcs,dask]'
	@touch $@ $(VENV)/.has-pipelines

# Dataflow's client, with which every import of Beam takes a second more.
$(CLOUD)/.has-dataflow: setup.py requirements.txt | $(BIN)/python
	$(BIN)/python -m venv $(CLOUD)
	$(CLOUD)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(CLOUD)/bin/uv pip install --quiet --python $(CLOUD)/bin/python -c requirements.txt \
		-e '.[pipelines,dataflow,test-dataflow]'
	@touch $@

# PyTorch, and JAX with grain: some 6 GB, which uv installs in a fraction of pip's time.
$(TORCH)/.has-torch: setup.py requirements.txt | $(BIN)/python
	$(BIN)/python -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(TORCH)/bin/uv pip install --quiet --python $(TORCH)/bin/python -c requirements.txt \
		-e '.[torch,jax,test-torch,test-jax]'
	@touch $@

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "Forebay needs Python 3.11 or newer with its venv module" \
		"(on Debian: apt-get install python3 python3-venv); none was found." \
		"Name one with: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
