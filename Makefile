# make demo        run every stage that this machine can run, print two tables, draw a picture
# make notebooks   run notebooks/source/*.md, write notebooks/*.ipynb with what comes out
# make figures     measure every figure of the pages again, on an idle machine: an hour
# make site        build the site from the pages and the notebooks (Python 3.11)
# make test        lint and the quick tests: three minutes on two cores
# make test-all    the tests that take longer: an hour on two cores
# make gpu         on a machine with GPUs: run all that needs them, for a record to send
# make lint        ruff, codespell, oxlint and shellcheck alone
# make clean       remove what these targets have made, except data/ and timings/
#
# The first call of a target makes .venv and installs what it needs. On Linux without an NVIDIA GPU
# this is PyTorch's CPU build. On the login node of a cluster with GPUs write: make demo TORCH=default
#
# ARGS passes flags on, and then the tests in doctor/tests are left out:
# make demo ARGS="--only 01 03 -b 240"    make notebooks ARGS=03    make test ARGS="-k minimal"

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --dist worksteal --durations 5
.DELETE_ON_ERROR:
.PHONY: help demo notebooks figures site lint test test-all gpu clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: .venv/reader
	@echo "== compare.py: every stage that this machine can run"
	$(BIN)/python compare.py $(ARGS)

notebooks: .venv/maintainer
	@echo "== tools/build_notebooks.py: each in a fresh kernel, from top to bottom"
	$(BIN)/python tools/build_notebooks.py $(ARGS)

figures: .venv/maintainer
	@echo "== the records, then the measured commands on the pages, then the notebooks"
	$(BIN)/python -m benchmarks.run_all $(ARGS)
	$(BIN)/python tools/build_notebooks.py

# Everything is built each time, in half a minute, so no page is ever out of date.
site: .venv/maintainer
	@echo "== _site: pages, notebooks as they are committed, scripts; a warning is an error"
	rm -rf _site
	$(BIN)/sphinx-build -n -W --keep-going -q -d _site/.doctrees -c site . _site
	rm -r _site/.doctrees
	$(BIN)/python -m pagefind --site _site --silent
	@echo "run: python3 -m http.server --directory _site, then open http://localhost:8000"

lint: .venv/maintainer
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell -D - -D tools/words.txt  # the second: words of ours that readers stumble over
	$(BIN)/oxlint --deny-warnings site
	$(BIN)/shellcheck .ci/run 05_multinode/launch/*.sh 05_multinode/launch/*.sbatch

test: lint
	@echo "== quick tests"
	$(PYTEST) -m "not slow" -n 3 $(ARGS)
	$(if $(ARGS),,cd doctor && ../$(PYTEST) --timeout 300 tests -m "not slow" -n 3)

test-all: .venv/maintainer
	@echo "== the tests that take longer"
	$(PYTEST) -m slow -n 3 $(ARGS)
	$(if $(ARGS),,cd doctor && ../$(PYTEST) --timeout 300 tests -m slow -n 3)

# GPU_PYTHON=python3 takes an environment that is there: it needs the packages of requirements.txt,
# and those of requirements/dev.txt for the tests.
GPU_PYTHON ?=
gpu: $(if $(GPU_PYTHON),,.venv/maintainer)
	@$(or $(GPU_PYTHON),$(BIN)/python) -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "make gpu: PyTorch sees no GPU")'
	@echo "== tools/gpu_record.py: each step has a time limit, all together take less than 20 minutes"
	$(or $(GPU_PYTHON),$(BIN)/python) -m tools.gpu_record $(ARGS)
	@echo "Please commit or send this folder: \"You have GPUs\" in CONTRIBUTING.md says how."

clean:
	rm -rf .venv _site checkpoints runs .pytest_cache doctor/.pytest_cache .ruff_cache .hypothesis

# .venv/reader and .venv/maintainer are stamps: if younger than the requirements, all is installed.
TORCH ?= auto
GROUPS := $(wildcard requirements/*.txt)
.venv/reader: requirements.txt $(GROUPS)
	@$(PYTHON) tools/set_up.py requirements.txt --torch $(TORCH)
	@touch $@

.venv/maintainer: $(GROUPS) .venv/reader
	@$(PYTHON) tools/set_up.py requirements/dev.txt
	@touch $@
