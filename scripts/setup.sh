#!/usr/bin/env bash
# Installs everything that `make run` needs: a C toolchain, .venv, the wheel, the example's S3 server.
# It prints what it will do and how large that is before it does anything.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh

# Measured on Linux x86-64 with the pinned requirements: wheels, and their size once unpacked.
readonly PACKAGES_DOWNLOAD="2.9 GB"
readonly PACKAGES_DISK="5.5 GB"
# Crates of Cargo.lock, and the optimised build tree.
readonly CRATES_DOWNLOAD="0.1 GB"
readonly TREE_DISK="1.5 GB"
# Packages, build tree and example data together, rounded up.
readonly DISK_NEEDED_KB=$((8 * 1024 * 1024))

# Prints the Debian packages of commands that the build needs and this machine lacks.
missing_packages() {
    command -v cc >/dev/null || printf '%s\n' build-essential
    command -v cmake >/dev/null || printf '%s\n' cmake
    command -v nasm >/dev/null || printf '%s\n' nasm
    "$python" -c 'import venv, ensurepip' 2>/dev/null || printf '%s\n' python3-venv
}

python=$(find_python)
check_rust
mapfile -t system < <(missing_packages)
# An environment that moved, or that lost its Python, is made anew.
"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || rm -rf "$VENV"
requirements=scripts/requirements.txt
packages=$(digest "$requirements")
sources=(Cargo.toml Cargo.lock rust-toolchain.toml cache loader daemon cli bindings benches/Cargo.toml)
wheel=$(digest pyproject.toml "${sources[@]}")
origin=$(digest tests/testkit "${sources[@]}")
has_wheel() { is_done wheel "$wheel" && [ -x "$VENV/bin/forebay" ]; }
has_origin() { is_done origin "$origin" && [ -x "$TARGET/release/forebay-origin" ]; }

plan=()
[ ${#system[@]} -eq 0 ] || plan+=("system packages by apt-get: ${system[*]}  (up to 0.3 GB)")
is_done packages "$packages" || plan+=("Python packages into $VENV: $(
    sed -n 's/^\([a-z-]*\)==.*/\1/p' "$requirements" | uniq | xargs
)  (about $PACKAGES_DOWNLOAD to download, $PACKAGES_DISK on disk; torch brings most of it)")
has_wheel || plan+=("the forebay wheel: an optimised Rust build into $TARGET, then into $VENV
    (the first one takes minutes; about $CRATES_DOWNLOAD of crates, $TREE_DISK on disk)")
has_origin || plan+=("forebay-origin, the S3 server of the example, into $TARGET")
if ! announce "${plan[@]}"; then
    say "setup: everything is up to date"
    exit 0
fi

install_packages "${system[@]}"
# Packages come over the network while processors compile. The native module is built here, so that
# maturin finds all but its last step done.
has_wheel && has_origin ||
    start_build build --release --locked --lib --bins -p forebay-python -p forebay-testkit
if ! is_done packages "$packages"; then
    free_kb=$(df --output=avail . | tail -n 1)
    [ "$free_kb" -ge "$DISK_NEEDED_KB" ] || [ -d "$VENV" ] || fail \
        "$((free_kb / 1024 / 1024)) GB are free; setup and data need $((DISK_NEEDED_KB / 1024 / 1024)) GB" \
        "free some space, or check out on another disk"
    step "Python packages"
    "$python" -m venv "$VENV"
    install_python "$requirements"
    remember packages "$packages"
    rm -f "$VENV/.stamps/wheel"
fi
await_build
remember origin "$origin"
if ! has_wheel; then
    step "the forebay wheel"
    rm -rf "$TARGET/wheels"
    "$VENV/bin/maturin" build --release --locked --interpreter "$VENV/bin/python" \
        --out "$TARGET/wheels"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps \
        --force-reinstall "$TARGET"/wheels/forebay-*.whl
    remember wheel "$wheel"
fi
say
say "setup: done; try: make run"
