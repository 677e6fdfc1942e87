#!/usr/bin/env bash
# One look at a device, under eight minutes on a GPU: are rollouts right, and what does drafting buy?
#
#   benchmarks/device_check.sh [FOLDER]     results go to FOLDER, runs/device_check by default
#   SMALL=1 benchmarks/device_check.sh      the same steps at toy size, to test the script on a CPU
#   TRACE=runs/traces/spider_tiny-0         a recorded run; made-up rollouts where it is not there
#
# Steps: the evidence that drafted rollouts are the policy's; that no setting changes a token;
# the cost of a round by rows and draft length; rollout speed at the shapes of Qwen3-0.6B and 8B,
# bfloat16, random weights, forced replay. Every step has a limit; the status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${1:-runs/device_check}
PYTHON=${PYTHON:-.venv/bin/python}
TRACE=${TRACE:-runs/traces/spider_tiny-0}
[ -e "$TRACE" ] || TRACE=synthetic
mkdir -p "$OUT"
failed=0

step() {  # name, seconds at most, command
  local name=$1 limit=$(($2 * patience)) began=$SECONDS
  shift 2
  echo "== $name: $*"
  if timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.log"; then
    echo "== $name: done in $((SECONDS - began)) s"
  else
    echo "== $name: FAILED after $((SECONDS - began)) s"
    failed=1
  fi
}

if [ -n "${SMALL:-}" ]; then
  shapes="tiny" dtype=float32 rows=2 cost_rows=2 repeats=1 prompts=1
  effort="--prompts 16 --group 8 --prefixes 1 --draws 200" exact="prompts=12"
  arms=plain,again,fixed,auto,auto+prefetch=device patience=10  # a busy CPU is no fault
else
  shapes="qwen3_0_6b qwen3_8b" dtype=bfloat16 rows=1,8,32 cost_rows=1,8,32 repeats=2 prompts=4
  effort="" exact=""
  arms=plain,again,lookup,fixed,auto,auto+prefetch=device patience=1
fi

"$PYTHON" -c 'import jax; print(jax.__version__, jax.devices())' | tee "$OUT/device.log"
step check 120 "$PYTHON" -m ngramrl_jax.check $effort --json "$OUT/check.json"
step exact 60 "$PYTHON" benchmarks/rollout/exact.py $exact json="$OUT/exact.json"
for shape in $shapes; do
  step "costs_$shape" 60 "$PYTHON" benchmarks/rollout/costs.py shape="$shape" dtype=$dtype \
    rows=$cost_rows repeats=$repeats json="$OUT/costs_$shape.json"
  step "speed_$shape" 90 "$PYTHON" benchmarks/rollout/speed.py shape="$shape" dtype=$dtype \
    rows=$rows phases=warm arms=$arms trace="$TRACE" prompts=$prompts repeats=$repeats \
    json="$OUT/speed_$shape.json"
done
echo "== all: $SECONDS s, results in $OUT"
exit $failed
