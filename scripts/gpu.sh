#!/usr/bin/env bash
# What only a machine with a GPU can show: its tests, its figures, or all of it in one visit.
#
#   scripts/gpu.sh test|bench
#   scripts/gpu.sh visit [facts] [probe] [tests] [measure] [memcheck]
#
# It needs nothing but what is there. Where the environment was not made by `make setup` (a machine lent for
# half an hour, without a network), FOREBAY_WHEEL names a wheel, or several with blanks between, and the
# machine's own Python has torch. Results go to the folder FOREBAY_GPU_RESULTS, or one under benches/results.
set -euo pipefail
cd "$(dirname "$0")/.."

# Seconds of the steps: nine minutes with the grace of all, since a command on a lent machine has ten.
readonly FACTS=30 PROBE=110 TESTS=145 MEASURE=150 MEMCHECK=80
# Seconds of the figures alone, with more rounds.
readonly BENCH=480
# Seconds that a step has to end by itself once it was told to.
readonly GRACE=5
# Lines of a step that are shown at its end; its file has all of them.
readonly SHOWN=60
# One test of the GPU, which takes seconds.
readonly ONE_TEST=60
# A test that resets a context.
readonly RESETS=destroyed_cuda_context
# Requirements that a lent GPU may lack; `gpu` itself is none of them.
export FOREBAY_TESTS_MAY_SKIP="${FOREBAY_TESTS_MAY_SKIP-gpu-registration,gpu-pids}"
# A command killed at its limit has said everything until then.
export PYTHONUNBUFFERED=1

usage() {
    printf 'usage: scripts/gpu.sh test|bench|visit [facts] [probe] [tests] [measure] [memcheck]\n' >&2
    exit 2
}

# Runs a step under its limit, its output in a file, whose end is shown. A process that outlives its step may
# hold a pipe open for good, but no file.
step() {
    local name=$1 limit=$2 code=0 begin=$SECONDS
    shift 2
    timeout -k "$GRACE" "$limit" "$@" >"$results/$name.txt" 2>&1 </dev/null || code=$?
    [ "$code" != 124 ] || printf 'ended at its limit of %s s\n' "$limit" >>"$results/$name.txt"
    printf '\n==> %s: code %s after %s s; the end of %s:\n' "$name" "$code" $((SECONDS - begin)) "$results/$name.txt"
    tail -n "$SHOWN" "$results/$name.txt" | cut -c 1-240
    steps+=("$name: code $code, $((SECONDS - begin)) s")
    [ "$code" = 0 ] || failed=1
}

# Both files have a conftest of their own, so they are runs of their own.
run_tests() { # arguments of pytest
    local pytest=("$python" -m pytest -rs "$@")
    # A plugin where it is installed: one test that hangs leaves the others their time.
    if "$python" -c 'import pytest_timeout' 2>/dev/null; then pytest+=(--timeout "$ONE_TEST"); fi
    step tests "$TESTS" bash -c 'code=0
        "$@" bindings/python/tests/test_gpu.py || code=$?
        "$@" cli/bench/contest/tests/test_model.py || code=$?
        exit "$code"' - "${pytest[@]}"
}

run_step() {
    case "$1" in
    facts) step facts "$FACTS" bash scripts/gpu-facts.sh "$python" ;;
    probe) step probe "$PROBE" "$python" benches/gpu/probe.py --json "$results/probe.json" ;;
    tests)
        # A visit wants answers: what a library of the machine warns of fails no test, and no test resets a
        # context that others of the machine might share.
        if [ "$what" = visit ]; then run_tests -W default -k "not $RESETS"; else run_tests; fi
        ;;
    measure)
        local limit=$BENCH rounds=5
        if [ "$what" = visit ]; then limit=$MEASURE rounds=2; fi
        step measure "$limit" "$python" benches/gpu/measure.py --rounds "${ROUNDS:-$rounds}" \
            --json "$results/gpu.json"
        ;;
    memcheck)
        # Every access of the kernels is looked at, on a part of the tests: it is some fifty times slower.
        # Frameworks ask the driver for what it may lack; such an answer is no fault.
        if command -v compute-sanitizer >/dev/null; then
            step memcheck "$MEMCHECK" compute-sanitizer --tool memcheck --report-api-errors no \
                --error-exitcode 9 "$python" -m pytest -q bindings/python/tests/test_gpu.py \
                -k 'reason or bad_image'
        else
            printf 'gpu: compute-sanitizer is not installed: accesses of the kernels were not checked\n'
        fi
        ;;
    *) usage ;;
    esac
}

what=${1:-test}
shift || true
case "$what" in
test) chosen=(tests memcheck) ;;
bench) chosen=(measure) ;;
visit) chosen=("${@:-facts probe tests measure memcheck}") ;;
*) usage ;;
esac
read -ra chosen <<<"${chosen[*]}"
for name in "${chosen[@]}"; do
    case "$name" in facts | probe | tests | measure | memcheck) ;; *) usage ;; esac
done
if ! command -v nvidia-smi >/dev/null; then
    printf 'gpu: this machine has no NVIDIA driver (nvidia-smi is missing): nothing was run\n'
    exit 0
fi
python=.venv/bin/python
[ -x "$python" ] || python=$(command -v python3)
if [ -n "${FOREBAY_WHEEL:-}" ]; then
    python=$(command -v python3)
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    read -ra wheels <<<"$FOREBAY_WHEEL"
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "${wheels[@]}" ||
        printf 'gpu: the wheels were not installed: what needs Forebay will fail\n'
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$PATH"
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr '[:upper:]' '[:lower:]' |
    tr -cs 'a-z0-9' '-' | sed 's/-$//') || gpu=gpu
results=${FOREBAY_GPU_RESULTS:-benches/results/$(date -u +%Y-%m-%d)-$gpu}
mkdir -p "$results"
failed=0
steps=()
for name in "${chosen[@]}"; do run_step "$name"; done
printf '\n==> results in %s\n' "$results"
printf '%s\n' "${steps[@]}"
exit "$failed"
