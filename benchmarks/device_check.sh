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
  small=tiny large=tiny dtype=float32 small_rows=2 large_rows=2 repeats=1 prompts=1
  effort="--prompts 16 --group 8 --prefixes 1 --draws 200" exact="prompts=12"
  arms=plain,again,fixed,auto,auto+prefetch=device patience=10  # a busy CPU is no fault
else
  # Compiling takes most of the time: 12 programs for each number of rows.
  small=qwen3_0_6b large=qwen3_8b dtype=bfloat16 small_rows=1,8 large_rows=8 repeats=2 prompts=4
  effort="" exact=""
  arms=plain,again,lookup,fixed,auto,auto+prefetch=device patience=1
fi

"$PYTHON" -c 'import jax; print(jax.__version__, jax.devices())' | tee "$OUT/device.log"
step check 100 "$PYTHON" -m ngramrl_jax.check $effort --json "$OUT/check.json"
step exact 40 "$PYTHON" benchmarks/rollout/exact.py $exact json="$OUT/exact.json"
step costs 70 "$PYTHON" benchmarks/rollout/costs.py shape=$small dtype=$dtype rows=$small_rows \
  repeats=$repeats json="$OUT/costs.json"
for size in small large; do
  rows=${size}_rows
  step speed_$size 130 "$PYTHON" benchmarks/rollout/speed.py shape=${!size} dtype=$dtype \
    rows=${!rows} phases=warm arms=$arms trace="$TRACE" prompts=$prompts repeats=$repeats \
    json="$OUT/speed_$size.json"
done
echo "== all: $SECONDS s, results in $OUT"
exit $failed
