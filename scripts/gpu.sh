#!/usr/bin/env bash
# What only a machine with a GPU can show: its tests, its figures, or all of it in one visit.
#
#   scripts/gpu.sh test|bench
#   scripts/gpu.sh visit [facts] [measure] [tests] [memcheck] [probe]
#
# It needs nothing but what is there. Where the environment was not made by `make setup` (a machine lent for
# half an hour, without a network), FOREBAY_WHEEL names a wheel, or several with blanks between or as a pattern,
# and the machine's own Python has torch. Results go to the folder FOREBAY_GPU_RESULTS, else to that of OUT if
# there is one, else to one under benches/results.
set -euo pipefail
cd "$(dirname "$0")/.."

# Seconds of the steps: nine minutes with the grace of all, since a command on a lent machine has ten. The tenth
# is for wheels and the first import. In a visit a step also has what those before it left of theirs.
readonly COMMAND=595
readonly FACTS=30 MEASURE=185 TESTS=120 MEMCHECK=60 PROBE=105
# Seconds of the probe's questions; the rest is for its daemon's end.
readonly PROBE_ASKS=100
# Seconds of the figures, or of the tests, where they are all of it: with more rounds.
readonly ALONE=480
# Seconds of the tests of the model, which `test` runs and no visit.
readonly MODEL=300
# Seconds that a step has to end by itself once it was told to: a daemon ends, and memory is given back.
readonly GRACE=8
# Seconds of pip, for all wheels and for each alone, and of the first import.
readonly INSTALL=30 INSTALL_ONE=15 IMPORT=30
# Lines of a step that are shown at its end; its file has all of them.
readonly SHOWN=60
# One test of the GPU, which takes seconds. One under compute-sanitizer may take all but this of its step.
readonly ONE_TEST=60 CHECKED_REST=10
# Seconds that compute-sanitizer waits for the first use of a GPU: Python imports torch before.
readonly LAUNCH=120
# A test that resets a context.
readonly RESETS=destroyed_cuda_context
# Requirements that a lent GPU may lack; `gpu` itself is none of them.
export FOREBAY_TESTS_MAY_SKIP="${FOREBAY_TESTS_MAY_SKIP-gpu-registration,gpu-pids,gpu-engines}"
# A command killed at its limit has said everything until then.
export PYTHONUNBUFFERED=1

usage() {
    printf 'usage: scripts/gpu.sh test|bench|visit [facts] [measure] [tests] [memcheck] [probe]\n' >&2
    exit 2
}

# Runs a step under its limit, its output in a file, whose end is shown. A process that outlives its step may
# hold a pipe open for good, but no file.
step() {
    local name=$1 limit=$2 code=0 begin=$SECONDS
    shift 2
    if [ "$what" = visit ]; then limit=$(limit_of "$limit"); fi
    timeout -k "$GRACE" -s "$ends_by" "$limit" "$@" >"$results/$name.txt" 2>&1 </dev/null || code=$?
    if [ "$what" = visit ]; then spare=$((limit - SECONDS + begin)); fi
    if [ "$spare" -lt 0 ]; then spare=0; fi
    # The second is that of a step that did not end in its grace, and was killed.
    case "$code" in 124 | 137) printf 'ended at its limit of %s s\n' "$limit" >>"$results/$name.txt" ;; esac
    printf '\n==> %s: code %s after %s s; the end of %s:\n' "$name" "$code" $((SECONDS - begin)) "$results/$name.txt"
    tail -n "$SHOWN" "$results/$name.txt" | cut -c 1-240
    steps+=("$name: code $code, $((SECONDS - begin)) s")
    [ "$code" = 0 ] || failed=1
}

# Prints the limit of a step in a visit: its own and what is spare, as far as the command lasts.
limit_of() { # seconds of its own
    local limit=$(($1 + spare)) left=$((COMMAND - SECONDS - GRACE))
    if [ "$limit" -gt "$left" ]; then limit=$left; fi
    # `timeout` takes zero for no limit.
    if [ "$limit" -lt 1 ]; then limit=1; fi
    printf '%s' "$limit"
}

# Notes a step that failed whatever its code.
fail() { # name, why
    printf 'gpu: %s: %s\n' "$1" "$2" >>"$results/$1.txt"
    printf 'gpu: %s: %s\n' "$1" "$2"
    steps+=("$1: failed: $2")
    failed=1
}

# Makes `pytest` the command with these arguments. A plugin where it is installed: one test that hangs leaves the
# others their time.
pytest_with() { # seconds of one test, arguments …
    local one=$1
    shift
    pytest=("$python" -m pytest -v --tb=short -rs "$@")
    if "$python" -c 'import pytest_timeout' 2>/dev/null; then pytest+=(--timeout "$one"); fi
}

run_tests() {
    # Tests that are ended by Ctrl-C print what they know.
    local ends_by=INT
    if [ "$what" = visit ]; then
        # A visit wants answers: what a library of the machine warns of fails no test, and no test resets a
        # context that others of the machine might share.
        pytest_with "$ONE_TEST" -W default -k "not $RESETS"
        step tests "$TESTS" "${pytest[@]}" bindings/python/tests/test_gpu.py
    else
        pytest_with "$ONE_TEST"
        step tests "$ALONE" "${pytest[@]}" bindings/python/tests/test_gpu.py
        # A run of its own: both files have a conftest of their own.
        step model "$MODEL" "${pytest[@]}" cli/bench/contest/tests/test_model.py
    fi
}

# Every access of the kernels is looked at, on a part of the tests: it is some fifty times slower. Frameworks ask
# the driver for what it may lack; such an answer is no fault. Torch's own cache of memory would hide accesses
# past a tensor's end.
run_memcheck() {
    local sanitizer found said limit ends_by=INT
    sanitizer=$(command -v compute-sanitizer || true)
    for found in /usr/local/cuda*/bin/compute-sanitizer; do
        if [ -z "$sanitizer" ] && [ -x "$found" ]; then sanitizer=$found; fi
    done
    if [ -z "$sanitizer" ]; then
        fail memcheck 'compute-sanitizer is not installed: accesses of the kernels were not checked'
        return
    fi
    limit=$(limit_of "$MEMCHECK")
    pytest_with $((limit > CHECKED_REST ? limit - CHECKED_REST : limit)) -W default
    step memcheck "$MEMCHECK" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool memcheck \
        --launch-timeout "$LAUNCH" --report-api-errors no --error-exitcode 9 \
        "${pytest[@]}" bindings/python/tests/test_gpu.py -k 'reason or bad_image'
    said=$(<"$results/memcheck.txt")
    case "$said" in
    *' passed'*'ERROR SUMMARY: 0 errors'*) ;;
    *) fail memcheck 'no test passed that was checked without an error' ;;
    esac
}

run_step() {
    case "$1" in
    facts) step facts "$FACTS" bash scripts/gpu-facts.sh "$python" ;;
    probe)
        step probe "$PROBE" "$python" benches/gpu/probe.py --seconds "$PROBE_ASKS" --json "$results/probe.json"
        ;;
    tests) run_tests ;;
    measure)
        local limit=$ALONE rounds=5
        if [ "$what" = visit ]; then limit=$MEASURE rounds=3; fi
        step measure "$limit" "$python" benches/gpu/measure.py --rounds "${ROUNDS:-$rounds}" \
            --json "$results/gpu.json"
        ;;
    memcheck) run_memcheck ;;
    *) usage ;;
    esac
}

# Installs the wheels beside each other; where pip refuses them together, each in a folder of its own, so that one
# that does not fit costs no other.
install() {
    local wheels wheel number=0 folders=$site libraries=
    # Blanks and patterns are the user's.
    # shellcheck disable=SC2206
    wheels=($FOREBAY_WHEEL)
    local pip=("$python" -m pip install --quiet --no-index --no-deps --target)
    if ! timeout "$INSTALL" "${pip[@]}" "$site" "${wheels[@]}"; then
        printf 'gpu: pip refused the wheels together: each is installed alone\n'
        folders=
        for wheel in "${wheels[@]}"; do
            number=$((number + 1))
            if timeout "$INSTALL_ONE" "${pip[@]}" "$site/$number" "$wheel"; then
                folders+=${folders:+:}$site/$number
                # Wheels look for NVIDIA's libraries beside themselves.
                libraries+=:$site/$number/nvidia/cu13/lib
            else
                printf 'gpu: not installed: %s\n' "$wheel"
            fi
        done
    fi
    folders=${folders:-$site}
    if [ -n "$libraries" ]; then
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${libraries#:}"
    fi
    export PYTHONPATH="$folders${PYTHONPATH:+:$PYTHONPATH}"
    export PATH="${folders//://bin:}/bin:$PATH"
}

what=${1:-test}
shift || true
case "$what" in
test) chosen=(tests memcheck) ;;
bench) chosen=(measure) ;;
# Figures are wanted most, and have been lost before.
visit) chosen=("${@:-facts measure tests memcheck probe}") ;;
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
    install
fi
if ! timeout "$IMPORT" "$python" -c 'import forebay'; then
    printf 'gpu: Forebay does not import in %s: nothing was run\n' "$python"
    exit 1
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr '[:upper:]' '[:lower:]' |
    tr -cs 'a-z0-9' '-' | sed 's/-$//') || gpu=gpu
results=benches/results/$(date -u +%Y-%m-%d)-$gpu
# A lent machine brings back one folder.
if [ -n "${OUT:-}" ] && [ -d "${OUT:-}" ]; then results=$OUT; fi
results=${FOREBAY_GPU_RESULTS:-$results}
mkdir -p "$results"
failed=0
# Seconds that steps before left of theirs, and the signal that ends a step.
spare=0
ends_by=TERM
steps=()
for name in "${chosen[@]}"; do run_step "$name"; done
printf '\n==> results in %s\n' "$results"
printf '%s\n' "${steps[@]}"
exit "$failed"
