# The commands of a developer. Every target creates the virtual environment that it needs.

.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUN := $(VENV)/bin/python
# Tests wait for servers, processes and threads, so pytest runs one process more than there are processors; six at most, because a
# container may see more processors than it may use.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 6 ? n + 1 : 6)))
PARALLEL := --numprocesses $(WORKERS)

# Stamps: an environment is up to date if its stamp is newer than the files it was made from.
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.runtime
TOOLS := $(VENV)/.tools
# pip without its warnings: shows its errors, and a line for each package that it fetches.
INSTALL := set -o pipefail; $(RUN) -m pip install --disable-pip-version-check --root-user-action ignore --progress-bar off \
	2> >(grep -v ^WARNING >&2) -r
PROGRESS := | awk '/^Collecting / {sub(/[<>=!~;[(].*/, "", $$2); print "  fetching " $$2; fflush()} \
	/^Installing / {print "  installing ..."; fflush()}'
# Sphinx is never installed into the environment of the project.
DOCS := .venv-docs/.made
# The queues that the benchmarks compare with are never installed into the environment of the project.
PEERS := .venv-peers/.made

.PHONY: help demo test lint types checks docs format bench bench-peers clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## set up the demo shop, start its site and worker, print their addresses; MODEL=fixed and MODE=none choose how the worker receives
	$(RUN) -m project.demo $(if $(MODEL),--model $(MODEL)) $(if $(MODE),--mode $(MODE))

test: lint types checks docs ## lint, types, Django's checks, the documentation, then all tests (also on the newest Django if a Python >= 3.12 is found)
	@.ci/next-django find
	@# many tests start Python, which need not compile the code each time, even if PYTHONDONTWRITEBYTECODE is set
	-@$(RUN) -m compileall -q sqlqueue_app project tests benchmarks
	$(RUN) -m pytest $(PARALLEL) $(PYTEST)
	@.ci/next-django run $(PARALLEL) $(PYTEST)

lint: $(TOOLS) ## ruff: rules and format
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(TOOLS) ## mypy, strict
	$(RUN) -m mypy

checks: $(RUNTIME) ## Django's system checks and forgotten migrations
	$(RUN) manage.py check --fail-level WARNING
	$(RUN) manage.py makemigrations --check --dry-run

docs: $(DOCS) ## build the documentation site into site/; fails if a link is broken or a page is in no table of contents
	.venv-docs/bin/sphinx-build --builder dirhtml --fail-on-warning --keep-going --quiet docs site

format: $(TOOLS) ## fix and format the code with ruff
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: $(RUNTIME) ## measure speed and memory
	$(RUN) benchmarks/run.py

bench-peers: $(RUNTIME) $(PEERS) ## compare with other queues, 20 minutes; PEERS_OPTIONS=--quick checks in two minutes that everything runs
	$(RUN) -m benchmarks.peers $(PEERS_OPTIONS)
	$(RUN) -m benchmarks.peers.page

clean: ## remove environments and caches
	rm -rf $(VENV) .venv-next .venv-peers .venv-docs site .mypy_cache .ruff_cache .pytest_cache build dist

# a stamp, not bin/python, which exists already if creating the environment is interrupted
$(CREATED):
	@test -n "$(PYTHON)" || { echo "no python3 was found: install Python 3.11 or later, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): Python 3.11 or later is needed, run make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making the environment $(VENV), once ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUNTIME): requirements.txt | $(CREATED)
	@echo "fetching what the demo and the tests need, once: about 700 MB, most of it Spark ..."
	@$(INSTALL) requirements.txt $(PROGRESS)
	@touch $@

$(DOCS): requirements-docs.txt | $(CREATED)
	@$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# some of them need the Python that the newest Django needs; without it they are reported as missing
$(PEERS): benchmarks/peers/requirements.txt | $(CREATED)
	@python=$$(.ci/next-django python); "$${python:-$(PYTHON)}" -m venv --clear .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(TOOLS): requirements-lint.txt requirements.txt | $(RUNTIME)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-lint.txt
	@touch $@
