#!/usr/bin/env bash
# One look at a device, within eight minutes: are rollouts right, and what does drafting buy?
#
#   benchmarks/device_check.sh [FOLDER]     results go to FOLDER, runs/device_check by default
#   SMALL=1 benchmarks/device_check.sh      the same steps at toy size, to test the script on a CPU
#   TRACE=runs/traces/spider_tiny-0         a recorded run; made-up rollouts where it is not there
#   BUDGET=470                              seconds for everything
#
# Steps: the device's name; that no setting changes a token; the evidence that drafted rollouts are
# the policy's; the cost of a round by rows and draft length; rollout speed at the shapes of
# Qwen3-0.6B and 8B, bfloat16, random weights, forced replay. A step that fails or exceeds its limit
# is told and the others go on; the status is 1 then. FOLDER/steps.txt says how each one ended.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${1:-runs/device_check}
PYTHON=${PYTHON:-.venv/bin/python}
TRACE=${TRACE:-runs/traces/spider_tiny-0}
[ -e "$TRACE" ] || TRACE=synthetic

if [ -n "${SMALL:-}" ]; then
  small=tiny large=tiny dtype=float32 small_rows=2 large_rows=2 repeats=1 prompts=1
  effort="--prompts 16 --group 8 --prefixes 1 --draws 200" exact="prompts=12"
  budget=${BUDGET:-3600} patience=10  # a busy CPU is no fault
else
  # Compiling takes most of the time: 12 programs for each number of rows.
  small=qwen3_0_6b large=qwen3_8b dtype=bfloat16 small_rows=1,8 large_rows=8 repeats=2 prompts=4
  effort="" exact=""
  budget=${BUDGET:-470} patience=1
fi
arms=plain,again,fixed,auto,fixed+prefetch=device
mkdir -p "$OUT" || exit 2
: > "$OUT/steps.txt"
failed=0

step() {  # name, seconds at most, command
  local name=$1 limit=$(($2 * patience)) began=$SECONDS left=$((budget - SECONDS)) ended status
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  echo "== $name, $limit s at most: $*"
  if [ "$limit" -lt 1 ]; then
    ended="not run, no time left"
  else
    timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$OUT/$name.log"
    status=${PIPESTATUS[0]}
    case $status in
      0) ended=done ;;
      124 | 137) ended="timed out" ;;
      *) ended="failed with status $status" ;;
    esac
  fi
  [ "$ended" = done ] || failed=1
  echo "== $name: $ended after $((SECONDS - began)) s" | tee -a "$OUT/steps.txt"
}

step device 40 "$PYTHON" -c 'import jax; print(jax.__version__, jax.devices())'
step exact 60 "$PYTHON" benchmarks/rollout/exact.py $exact json="$OUT/exact.json"
step check 100 "$PYTHON" -m ngramrl_jax.check $effort --json "$OUT/check.json"
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
