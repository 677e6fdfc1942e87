# Everything a newcomer or CI runs. Each target makes the environment it needs and reuses it.
PYTHON3 ?= python3
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: help quickstart test lint fast-test data checkpoint spider bench equivalence hostile faults lock clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

$(VENV)/.installed: requirements.lock
	$(PYTHON3) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11) and "Python: found %d.%d, allowed: 3.11 or later" % sys.version_info[:2])'
	$(PYTHON3) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	touch $@

quickstart: $(VENV)/.installed  ## GRPO on text-to-SQL with the embedded default, to a report
	$(PY) train/train.py configs/quickstart.yaml

test: lint fast-test  ## All tests and checks; .ci/run calls this

lint: $(VENV)/.installed  ## Format, lint, import contracts, types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	PYTHONPATH=. $(VENV)/bin/lint-imports
	$(VENV)/bin/basedpyright

fast-test: $(VENV)/.installed  ## The test suite alone
	$(PY) -m pytest -q

data: $(VENV)/.installed  ## Rebuild the embedded data set and tokenizer
	$(PY) data/build.py

checkpoint: $(VENV)/.installed  ## Rebuild the embedded tiny checkpoint (about 10 minutes)
	rm -rf data/checkpoints/tiny
	$(PY) train/sft.py configs/sft_tiny.yaml

spider: $(VENV)/.installed  ## Warm start and GRPO on ../shared/data/spider (about 40 minutes)
	$(PY) train/train.py configs/spider_tiny.yaml

bench: $(VENV)/.installed  ## The README's table, measured on this machine
	$(PY) benchmarks/rollout.py

equivalence: $(VENV)/.installed  ## Training with and without speculation: same run, same curves, time by stage
	$(PY) benchmarks/equivalence.py

hostile: $(VENV)/.installed  ## Ten thousand responses, some hostile: leaks, harm and calls per second
	$(PY) benchmarks/hostile_sql.py

faults: $(VENV)/.installed  ## Kill one run thirty times; it must end as if nobody had (10 minutes)
	$(PY) -m pytest -q -s tests/heavy/kill_nine.py

lock:  ## Resolve requirements.lock again (needs uv)
	uv pip compile pyproject.toml --all-extras --generate-hashes --no-emit-index-url --no-header \
	  --python-version 3.11 -o requirements.lock

clean:  ## Remove caches and the environment
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache
