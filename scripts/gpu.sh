#!/usr/bin/env bash
# What only a machine with a GPU can show: its tests, or its figures.
# It needs nothing but what is there. Where the environment was not made by `make setup` (a machine lent for
# half an hour, without a network), FOREBAY_WHEEL names a wheel, and the machine's own Python has torch.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TIMEOUT=480
# Requirements that a lent GPU may lack; `gpu` itself is none of them.
export FOREBAY_TESTS_MAY_SKIP="${FOREBAY_TESTS_MAY_SKIP-gpu-registration,gpu-pids}"
python=.venv/bin/python
if ! command -v nvidia-smi >/dev/null; then
    printf 'gpu: this machine has no NVIDIA driver (nvidia-smi is missing): nothing was run\n'
    exit 0
fi
if [ -n "${FOREBAY_WHEEL:-}" ]; then
    python=$(command -v python3)
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$FOREBAY_WHEEL"
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$PATH"
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

case "${1:-test}" in
test)
    timeout "$TIMEOUT" "$python" -m pytest -rs bindings/python/tests/test_gpu.py
    timeout "$TIMEOUT" "$python" -m pytest -rs cli/bench/contest/tests/test_model.py
    # Every access of the kernels is looked at, on a part of the tests: it is some fifty times slower.
    if command -v compute-sanitizer >/dev/null; then
        timeout "$TIMEOUT" compute-sanitizer --tool memcheck --error-exitcode 9 \
            "$python" -m pytest -q bindings/python/tests/test_gpu.py -k 'reason or bad_image'
    else
        printf 'gpu: compute-sanitizer is not installed: accesses of the kernels were not checked\n'
    fi
    ;;
bench)
    name=$(date -u +%Y-%m-%d)-$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 |
        tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' '-' | sed 's/-$//')
    mkdir -p "benches/results/$name"
    timeout "$TIMEOUT" "$python" benches/gpu/measure.py --rounds "${ROUNDS:-5}" \
        --json "benches/results/$name/gpu.json"
    ;;
*)
    printf 'usage: scripts/gpu.sh [test|bench]\n' >&2
    exit 2
    ;;
esac
