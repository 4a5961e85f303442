# Two commands do everything, on a machine with make and Python 3.11 or newer:
#   make book     every notebook from a clean kernel, and every figure
#   make test     every test
# Without make, README says which lines do the same.

PYTHON ?= python3
VENV   := .venv
PEERS  := .venv-bench
SITE   := .venv-site
LITE   := .venv-lite
RUN    := $(VENV)/bin/python
READY  := $(VENV)/.ready
LOOPS  := $(VENV)/.loops
PIP    := $(RUN) -m pip --disable-pip-version-check -qq install --no-deps --no-compile

# packages of another project, such as ROS, would be found before those of .venv
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help book test test-all check browser corners experiments lint environment lock site pdf lite site-test bench bench-quick clean uninstalled

help:  ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 20

book: $(LOOPS)  ## run every notebook, and keep outputs and figures
	@$(RUN) -m minitransformer book
	@$(RUN) -m minitransformer equations --readme

test: $(LOOPS)  ## run every test on its quick grid, on two cores
	@$(RUN) -m pytest -q -n 2 --dist worksteal

test-all: $(LOOPS)  ## ... and with every combination that it can be tried with
	@$(RUN) -m pytest -q -n 2 --dist worksteal --all

check: $(LOOPS)  ## run the notebooks in a copy, and compare; find gaps in the equation map
	@$(RUN) -m minitransformer equations --check
	@$(RUN) -m minitransformer book --check

browser: $(READY)  ## open every chapter in JupyterLab and a browser, and look at figures, formulas and links
	@$(RUN) -m pytest -q -rs tests/browser/test_chapters.py

site: $(READY) $(SITE)/.ready  ## the book as pages for a browser, in _site, from the outputs that are kept
	@$(RUN) -m minitransformer site

pdf: $(READY) $(SITE)/.ready  ## the book as one PDF, _site/book.pdf, printed by Chromium
	@$(RUN) site/print.py _site/book.pdf

lite: site $(LITE)/.ready  ## the site, and in _site/lite the chapters as notebooks that run in a browser
	@$(RUN) site/run/lite.py _site/lite

site-test: site  ## open every page in Chromium, wide and narrow, light and dark, and look for what is wrong
	@$(RUN) -m pytest -q -rs tests/browser/test_site.py

experiments: $(LOOPS)  ## run what the records of the experiments lack, one core a trial
	@$(RUN) -m minitransformer experiment --all

corners:  ## book, test and check in fresh clones: without AVX-512, without Numba, lower bounds ... (hours)
	$(if $(FOUND),,$(error Python 3.11 or newer is needed; if yours has another name: make PYTHON=its-name))
	@"$(FOUND)" tests/corners.py

lint: $(READY)  ## style, types, spelling, and that imports go downwards
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@$(RUN) -m mypy
	@$(VENV)/bin/codespell
	@$(VENV)/bin/lint-imports --no-logo

environment: $(READY)  ## make .venv from requirements.lock, if it is not there or out of date

lock:  ## choose versions anew (needs uv)
	@uv lock --quiet
	@uv export --quiet --locked --all-groups --no-emit-project --no-header --no-annotate -o requirements.lock
	@rm uv.lock  # it holds the address of every file
	@uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  site/requirements.in -o site/requirements.txt
	@uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  site/run/lite.in -o site/run/lite.txt

bench: $(READY) $(PEERS)/.ready  ## measure every core beside PyTorch, which gets an environment of its own (an hour)
	@$(RUN) -m benchmarks.run --peer-python $(PEERS)/bin/python

bench-quick: $(READY) $(PEERS)/.ready  ## ... only what has a target (five minutes)
	@$(RUN) -m benchmarks.run --peer-python $(PEERS)/bin/python --quick

clean:  ## remove environments, the site and everything that was cached
	rm -rf $(VENV) $(PEERS) $(SITE) $(LITE) _site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough and can make environments; where there is none, one line that says so.
# The path of yours may have spaces, or begin with a ~.
FOUND   = $(shell for p in "$(PYTHON)" $(PYTHON) python3.11 python3.12 python3.13 python3.14; do \
            "$$p" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
CAPABLE = $(shell "$(FOUND)" -I -c 'import ensurepip, venv' 2>/dev/null && echo yes)

# and again if somebody has uninstalled the package
INSTALLED = $(wildcard $(VENV)/lib/python3*/site-packages/minitransformer-*.dist-info)

$(READY): requirements.lock pyproject.toml $(if $(INSTALLED),,uninstalled)
	$(if $(FOUND),,$(error Python 3.11 or newer is needed; if yours has another name: make PYTHON=its-name))
	$(if $(CAPABLE),,$(error $(FOUND) can't make environments; on Debian and Ubuntu: apt install python3-venv))
	@echo "Installing what requirements.lock names into $(VENV): a minute, and not again until that file changes ..."
	@$(RUN) -m pip --version >/dev/null 2>&1 || "$(FOUND)" -m venv --clear $(VENV)
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-build-isolation -e .
	@# a relative path: in an absolute one with an umlaut, Python 3.11 would fail to start under LC_ALL=C
	@echo ../../../.. | tee $(VENV)/lib/python3*/site-packages/_editable_impl_minitransformer.pth >/dev/null
	@touch $@

# every loop at once on all cores, before chapters and tests, side by side, would each wait for a compiler;
# in a copy that only its owner can write, the loops are kept elsewhere, and each time this looks whether they are there
$(LOOPS): $(READY) $(wildcard minitransformer/kernels/*.py)
	@$(RUN) -m minitransformer compile
	@touch $@ 2>/dev/null || :

$(SITE)/.ready: site/requirements.txt
	$(if $(CAPABLE),,$(error Python 3.11 or newer with venv is needed for the site's environment))
	@"$(FOUND)" -m venv --clear $(SITE)
	@$(SITE)/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes -r site/requirements.txt
	@touch $@

$(LITE)/.ready: site/run/lite.txt
	$(if $(CAPABLE),,$(error Python 3.11 or newer with venv is needed for JupyterLite's environment))
	@"$(FOUND)" -m venv --clear $(LITE)
	@$(LITE)/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes -r site/run/lite.txt
	@touch $@

$(PEERS)/.ready: benchmarks/requirements.txt
	$(if $(CAPABLE),,$(error Python 3.11 or newer with venv is needed for PyTorch's environment))
	@echo "Environment in $(PEERS), with PyTorch (the first time takes some minutes) ..."
	@"$(FOUND)" -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check -qq install -r benchmarks/requirements.txt
	@touch $@
