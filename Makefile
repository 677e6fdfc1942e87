# Everything a newcomer or CI runs. Each target makes the environment it needs and reuses it.
PYTHON3 ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# JAX 0.11 and later want Python 3.12: two locks, chosen by the interpreter.
LOCK := $(shell $(PYTHON3) -c 'import sys; print("requirements.lock" if sys.version_info < (3, 12) else "requirements-py312.lock")')
ACCELERATOR ?=  # cuda12, cuda13 or tpu: JAX's own extra, at the version of the lock
WORKLOADS := spider_tiny gsm_tiny bfcl_tiny
TRACED_ITEMS := 112
comma := ,
seeds = runs/traces/$(1)-0$(comma)runs/traces/$(1)-1

.PHONY: help quickstart test lint fast-test data checkpoint checkpoints traces spider bench \
  bench-peers draft-lengths bench-drafters bench-drafting ablations equivalence hostile faults coverage mutants parity plan lock docs clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

$(VENV)/.installed: $(LOCK)
	$(PYTHON3) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11) and "Python: found %d.%d, allowed: 3.11 or later" % sys.version_info[:2])'
	$(PYTHON3) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(if $(strip $(ACCELERATOR)),sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' $(LOCK) > $(VENV)/versions.txt)
	$(if $(strip $(ACCELERATOR)),$(PY) -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/versions.txt "jax[$(strip $(ACCELERATOR))]")
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
	$(PY) -m pytest -q -n 2 --dist loadfile

data: $(VENV)/.installed  ## Rebuild the embedded data set and tokenizer
	$(PY) data/build.py

checkpoint: $(VENV)/.installed  ## Rebuild the embedded tiny checkpoint (about 10 minutes)
	rm -rf data/checkpoints/tiny
	$(PY) train/sft.py configs/sft_tiny.yaml

spider: $(VENV)/.installed  ## Warm start and GRPO on ../shared/data/spider (about 40 minutes)
	$(PY) train/train.py configs/spider_tiny.yaml

checkpoints: $(VENV)/.installed  ## Warm-start a tiny policy for each workload, outside of git (about 30 minutes)
	for config in $(WORKLOADS); do test -e runs/checkpoints/$$config || $(PY) train/sft.py configs/$$config.yaml || exit 1; done

traces: checkpoints  ## Record five epochs of training on each workload, two seeds each (about 40 minutes)
	for seed in 0 1; do for config in $(WORKLOADS); do \
	  $(PY) train/train.py configs/$$config.yaml data.train_items=$(TRACED_ITEMS) seed=$$seed \
	    out=runs/traces/$$config-$$seed || exit 1; done; done

bench: bench-drafters bench-drafting  ## The README's tables, measured on this machine; make traces first
	$(PY) benchmarks/rollout/speed.py

bench-drafters: $(VENV)/.installed  ## Every drafter on the recorded traces
	$(PY) benchmarks/drafting/drafters.py $(foreach config,$(WORKLOADS),$(config)=$(call seeds,$(config))) \
	  json=runs/traces/drafters.json

bench-drafting: $(VENV)/.installed  ## What drafting costs the host
	$(PY) benchmarks/drafting/cost.py

ablations: $(VENV)/.installed  ## What each choice of the drafter is worth, on the recorded traces
	$(PY) benchmarks/drafting/ablations.py $(foreach config,$(WORKLOADS),runs/traces/$(config)-0)

equivalence: $(VENV)/.installed  ## Training with and without speculation: same run, same curves, time by stage
	$(PY) benchmarks/training/equivalence.py

hostile: $(VENV)/.installed  ## Ten thousand responses, some hostile: leaks, harm and calls per second
	$(PY) benchmarks/rewards/hostile_sql.py

faults: $(VENV)/.installed  ## Kill one run thirty times; it must end as if nobody had (10 minutes)
	$(PY) -m pytest -q -s tests/heavy/kill_nine.py

coverage: $(VENV)/.installed  ## Lines of the library that its tests run; kernels are run as plain Python for it
	$(PY) -m coverage erase
	NUMBA_DISABLE_JIT=1 $(PY) -m coverage run -m pytest -q -W "ignore:overflow encountered" \
	  $(filter-out %/test_history.py %/test_peers_trie.py %/test_peers_suffix_decoding.py \
	  %/test_peers_problem_tree.py,$(wildcard tests/ngramrl_jax/host/test_*.py))
	$(PY) -m coverage run -m pytest -q tests/ngramrl_jax
	$(PY) -m coverage combine -q
	$(PY) -m coverage report --skip-covered

mutants: $(VENV)/.installed  ## Small faults that tests must notice, MODULE=path or all (an hour)
	$(PY) tests/heavy/mutants.py $(MODULE)

.cache/parity/.installed:
	$(PYTHON3) -m venv .cache/parity
	.cache/parity/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
	touch $@

.cache/tunix/.installed:
	$(PYTHON3) -m venv .cache/tunix
	.cache/tunix/bin/pip install --quiet --disable-pip-version-check google-tunix==0.1.7 jax==0.10.2 flax==0.12.8
	touch $@

parity: $(VENV)/.installed .cache/parity/.installed  ## Import and export against transformers itself, in an environment of its own
	.cache/parity/bin/python benchmarks/parity.py

draft-lengths: $(VENV)/.installed  ## Acceptance and speed by draft length, k = 1, 3, 5, 7, 16; make traces first
	$(PY) benchmarks/rollout/lengths.py json=runs/draft_lengths.json

bench-peers: $(VENV)/.installed .cache/parity/.installed .cache/tunix/.installed  ## Rollouts a second beside transformers and google-tunix, in environments of their own
	test -d runs/checkpoints/smollm2_135m  # train/import_checkpoint.py makes it
	$(PY) benchmarks/peers/compare.py

docs: $(VENV)/.installed  ## Write docs/configuration.md from train/config.py
	$(PY) docs/make_configuration.py

plan: $(VENV)/.installed  ## Memory and operations of CONFIG=file on its mesh, ARGS="memory=80 key=value ..."
	$(PY) train/plan.py $(CONFIG) $(ARGS)

lock:  ## Resolve both locks again (needs uv)
	for version in 3.11 3.12; do \
	  uv pip compile pyproject.toml $(foreach extra,train math import test,--extra $(extra)) --generate-hashes \
	    --no-emit-index-url --no-header --python-version $$version --python-platform linux --quiet \
	    -o $$(test $$version = 3.11 && echo requirements.lock || echo requirements-py312.lock) || exit 1; done

clean:  ## Remove caches and the environment
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache
