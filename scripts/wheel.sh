#!/usr/bin/env bash
# Builds the wheel that is published, into dist/: for any Linux with glibc 2.28 or newer.
# Usage: scripts/wheel.sh [TARGET], such as aarch64-unknown-linux-gnu; without it, this machine's;
#        scripts/wheel.sh --sdist for the source package, which compiles nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh
source scripts/portable.sh

if [ "${1:-}" = --sdist ]; then
    # It compiles nothing, so zig is not needed.
    python=$(find_python)
    check_rust
    python_tool maturin "$MATURIN"
    step "the source package"
    "$TOOLS/maturin/bin/maturin" sdist --out dist
    exit
fi
target=${1:-$(this_machine)}
set_up_portable "$target"
step "the wheel for $target, glibc $GLIBC"
# Level 9 is the smallest that every pip unpacks.
maturin build --profile "$PROFILE" --locked --zig --target "$target" --out dist \
    --compatibility "manylinux_${GLIBC/./_}" --compression-level 9
"$PORTABLE/bin/python" scripts/check_wheel.py --glibc "$GLIBC" \
    dist/forebay-*"manylinux_${GLIBC/./_}_${target%%-*}.whl"
