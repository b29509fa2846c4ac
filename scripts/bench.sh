#!/usr/bin/env bash
# Runs every benchmark and keeps the figures with the machine they were measured on.
# Nothing else should run meanwhile; what was installed for it is said.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v fio >/dev/null; then
    printf 'fio, which measures the disk itself, is missing: apt-get install fio (about 10 MB)\n'
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends fio
fi
# The benchmarks stand on the same photos, server and daemon as the example.
exec env PYTHONPATH=examples:cli/bench/contest .venv/bin/python benches/rivals/all.py --rounds "${ROUNDS:-5}"
