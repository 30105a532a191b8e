# Everything starts here: `make help`. Needs Python 3.11 or later and make; all else goes into .venv and .tools.
.DEFAULT_GOAL := help
.PHONY: help venv run tools test check proto faults bench promises

BIN := .venv/bin
# Named, because ruff would format the programs in README.md too, which are laid out for reading.
CODE := agents deploy router services tests
# The first interpreter that runs and is new enough: a version manager's shim may be there and yet not run.
PICK := for python in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; done; \
	test -n "$$python" || { echo "no Python 3.11 or later found: install it or say make PYTHON=..." >&2; exit 1; }
# Tests start real servers and the command line itself.
TOOLED := PATH="$(CURDIR)/$(BIN):$(CURDIR)/.tools/bin:$$PATH"

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

# pip reads nothing and prints to standard error, so that `make run` can be fed and read.
$(BIN)/python:
	@echo "setting up .venv (once)" >&2
	@{ $(PICK); $$python -m venv .venv && $(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'; } >&2 </dev/null || \
		{ rm -rf .venv; exit 1; }

.venv/for-running: pyproject.toml | $(BIN)/python
	@echo "installing what running needs (once)" >&2
	@$(BIN)/python -m pip install -qq -e . >&2 </dev/null
	@touch $@

.venv/for-work: pyproject.toml | $(BIN)/python
	@echo "installing what work on the code needs (once)" >&2
	@$(BIN)/python -m pip install -qq -e . --group dev >&2 </dev/null
	@touch $@ .venv/for-running

venv: .venv/for-work  ## set up .venv with everything that work on the code needs

run: .venv/for-running  ## start the office mesh on the embedded defaults and open the chat
	@$(BIN)/retinue run agents/office --chat

tools: .venv/for-work  ## find or fetch the real Redis and Consul that tests use
	@PYTHON=$(BIN)/python scripts/install-tools

test: tools  ## run all tests
	@$(TOOLED) $(BIN)/pytest

check: .venv/for-work  ## format, lint, types, import floors, generated code unchanged
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	@PYTHON=$(BIN)/python scripts/proto
	git diff --exit-code --stat -- proto
	@test -z "$$(git ls-files --others --exclude-standard -- proto)" || \
		{ echo "generated files under proto/ are not committed" >&2; exit 1; }

proto: .venv/for-work  ## generate the code under proto/ from the .proto files
	@PYTHON=$(BIN)/python scripts/proto

faults: tools  ## run the end-to-end and fault tests alone, with every kill point
	@FAULTS=all $(TOOLED) $(BIN)/pytest tests/mesh

bench: tools  ## measure against a bare gRPC echo (under three minutes)
	@cd tests && $(TOOLED) $(CURDIR)/$(BIN)/python -m bench.bench

promises: tools  ## break a real mesh in each way that docs/promises.md speaks of, and print what was measured
	@cd tests && $(TOOLED) $(CURDIR)/$(BIN)/python -m bench.promises
