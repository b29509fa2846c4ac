#!/usr/bin/env bash
# Makes a fresh checkout ready: system packages, .venv, the wheel, the test server.
# Its rule: it says what it will do and how large that is before it does anything, and a second run
# with nothing changed does nothing. What was done is remembered by content, not by time.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly PYTHON_MIN="3.10"
# Emulators of object stores, each in a folder of its own.
readonly TOOLS=.tools
readonly MOTO="moto[server,s3]==5.2.5"
readonly AZURITE="azurite@3.37.0"
# What holds the admin API against its own description; Python 3.10 has the last version that supports it.
readonly SCHEMATHESIS="schemathesis==4.32.5" SCHEMATHESIS_310="schemathesis==4.30.1"
# What lints metrics and tests alert rules: of Debian's package only the one program, since the whole starts a server.
readonly PROMTOOL="promtool of prometheus, from the system's packages"
# The reference benchmark of MLPerf Storage with an MPI of its own; torch and forebay it finds in the other environment.
readonly DLIO="dlio_benchmark==2.0.0"
readonly DLIO_NEEDS=(hydra-core==1.3.8 mpi4py==4.1.2 mpich==4.3.2 pandas==2.3.3 pillow psutil==7.2.2 pydftracer==1.0.2)
# Measured on Linux x86-64 with the pinned requirements: wheels, and what they unpack to.
readonly PACKAGES_DOWNLOAD="3.2 GB"
readonly PACKAGES_DISK="6.3 GB"
# Crates of Cargo.lock, and the optimised build tree.
readonly CRATES_DOWNLOAD="0.1 GB"
readonly TREE_DISK="3 GB"
# Packages, build tree and test data together, rounded up.
readonly DISK_NEEDED_KB=$((12 * 1024 * 1024))

say() { printf '%s\n' "$*"; }
step() { printf '\n==> %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$1" >&2
    shift
    printf '       %s\n' "$@" >&2
    exit 1
}

# --- what is there -------------------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "Python $PYTHON_MIN or newer is needed and none was found" \
        "on Debian or Ubuntu: apt-get install python3 python3-venv" \
        "or name one: make setup PYTHON=/path/to/python3"
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null || fail "the Rust toolchain is missing (cargo $wanted or newer)" \
        "install rustup as rust-lang.org/tools/install describes, or: apt-get install rustup" \
        "then: rustup toolchain install stable"
    found=$(cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/')
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        fail "cargo $found is too old; $wanted or newer is needed" "rustup update stable"
    fi
}

# Debian packages for commands that the build needs and this machine lacks.
missing_packages() {
    command -v cc >/dev/null || printf '%s\n' build-essential
    command -v cmake >/dev/null || printf '%s\n' cmake
    command -v nasm >/dev/null || printf '%s\n' nasm
    "$python" -c 'import venv, ensurepip' 2>/dev/null || printf '%s\n' python3-venv
    # Tests make file systems hang with these (some 20 MB with what they need); of no use without FUSE.
    if [ -e /dev/fuse ]; then
        command -v nbdkit >/dev/null || printf '%s\n' nbdkit
        command -v nbdfuse >/dev/null || printf '%s\n' nbdfuse
    fi
    # Servers that tests read from.
    [ -x /usr/sbin/nginx ] || printf '%s\n' nginx-core
    [ -x /usr/bin/redis-server ] || printf '%s\n' redis-server
    command -v openssl >/dev/null || printf '%s\n' openssl
    command -v npm >/dev/null || printf '%s\n' npm
    # A browser, in which the status page is tried (0.4 GB). Ubuntu's is no package, but a snap: there the test is skipped.
    if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then
        command -v chromium >/dev/null || printf '%s\n' chromium
        command -v chromedriver >/dev/null || printf '%s\n' chromium-driver
    fi
    # A storage cluster, which only root can start and mount (0.3 GB).
    if [ -e /dev/fuse ] && [ "$(id -u)" -eq 0 ]; then
        local program
        for program in ceph-mon ceph-osd ceph-mgr ceph-mds radosgw ceph-fuse; do
            command -v "$program" >/dev/null || printf '%s\n' "$program"
        done
        command -v ceph >/dev/null || printf '%s\n' ceph-common
    fi
}

# A digest of the named files and folders: names and contents, without tests and caches.
digest() {
    find "$@" -type f ! -path '*/tests/*' ! -path '*/__pycache__/*' ! -name '*.so' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}

is_done() { [ "$(cat "$VENV/.stamps/$1" 2>/dev/null)" = "$2" ]; }
remember() {
    mkdir -p "$VENV/.stamps"
    printf '%s\n' "$2" >"$VENV/.stamps/$1"
}

python=$(find_python)
check_rust
mapfile -t system < <(missing_packages)
# An environment that moved, or whose Python went away, is made anew.
"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || rm -rf "$VENV"
target=${CARGO_TARGET_DIR:-target}
packages=$(digest scripts/requirements.txt)
sources=(Cargo.toml Cargo.lock rust-toolchain.toml cache loader daemon bindings benches/Cargo.toml
    benches/src benches/contest examples/daemons.py)
wheel=$(digest pyproject.toml "${sources[@]}")
origin=$(digest tests/testkit "${sources[@]}")

plan=()
[ ${#system[@]} -eq 0 ] || plan+=("system packages by apt-get: ${system[*]}  (up to 1 GB)")
has_tool() { [ "$(cat "$TOOLS/$1/.stamp" 2>/dev/null)" = "$2" ]; }
has_tool moto "$MOTO" || plan+=("$MOTO, an S3 server for the tests, into $TOOLS/moto  (0.3 GB on disk)")
has_tool azurite "$AZURITE" ||
    plan+=("$AZURITE, Azure's emulator for the tests, into $TOOLS/azurite  (0.4 GB on disk)")
schemathesis=$SCHEMATHESIS
"$python" -c 'import sys; sys.exit(sys.version_info >= (3, 11))' && schemathesis=$SCHEMATHESIS_310
has_tool schemathesis "$schemathesis" ||
    plan+=("$schemathesis, a fuzzer of HTTP APIs for the tests, into $TOOLS/schemathesis  (0.1 GB on disk)")
# What it traces with comes as a wheel for these Pythons; elsewhere its test is skipped.
has_dlio() { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))' || has_tool dlio "$DLIO ${DLIO_NEEDS[*]}"; }
has_dlio || plan+=("$DLIO, the reference benchmark of MLPerf Storage for the tests, into $TOOLS/dlio  (0.3 GB on disk)")
has_tool promtool "$PROMTOOL" || plan+=("$PROMTOOL, for the tests, into $TOOLS/promtool  (20 MB to download, 50 MB on disk)")
is_done packages "$packages" || plan+=("Python packages into $VENV: $(
    sed -n 's/^\([a-z-]*\)==.*/\1/p' scripts/requirements.txt | uniq | xargs
)  (about $PACKAGES_DOWNLOAD to download, $PACKAGES_DISK on disk; torch brings most of it)")
is_done wheel "$wheel" && [ -x "$VENV/bin/forebay" ] ||
    plan+=("the forebay wheel: an optimised Rust build into $target, then into $VENV
    (the first one takes minutes; about $CRATES_DOWNLOAD of crates, $TREE_DISK on disk)")
is_done origin "$origin" && [ -x "$target/release/forebay-origin" ] ||
    plan+=("forebay-origin, the S3 server for the example and the tests, into $target")
if [ ${#plan[@]} -eq 0 ]; then
    say "setup: everything is up to date"
    exit 0
fi
say "setup will install:"
printf '  * %s\n' "${plan[@]}"
say "with $("$python" --version) and $(cargo --version | cut -d ' ' -f 1,2); free here: $(
    df -h --output=avail . | tail -n 1 | xargs
)"

# --- what has to be done -------------------------------------------------------------------------

if [ ${#system[@]} -gt 0 ]; then
    step "system packages: ${system[*]}"
    command -v apt-get >/dev/null || fail "this system has no apt-get" \
        "install these with its own package manager, then run setup again: ${system[*]}"
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "installing needs root, and sudo is missing" \
            "as root: apt-get install ${system[*]}"
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${system[@]}"
fi

# Everything is compiled while packages come: the one takes processors, the other the network. With the features of the
# whole workspace, so that the wheel and the tests find it and what it stands on built.
building=
if ! is_done wheel "$wheel" || [ ! -x "$VENV/bin/forebay" ] || ! is_done origin "$origin" ||
    [ ! -x "$target/release/forebay-origin" ]; then
    step "the optimised build begins; what it says comes when packages are here"
    mkdir -p "$target"
    cargo build --release --locked --workspace --bins >"$target/setup.log" 2>&1 &
    building=$!
    trap 'kill "$building" 2>/dev/null || true' EXIT
fi

# A tool from PyPI, in an environment of its own.
python_tool() {
    has_tool "$1" "$2" && return
    step "$2"
    rm -rf "${TOOLS:?}/$1"
    "$python" -m venv "$TOOLS/$1"
    "$TOOLS/$1/bin/python" -m pip install --disable-pip-version-check --quiet "$2"
    printf '%s\n' "$2" >"$TOOLS/$1/.stamp"
}
python_tool moto "$MOTO"
python_tool schemathesis "$schemathesis"

if ! has_dlio; then
    step "$DLIO"
    rm -rf "${TOOLS:?}/dlio"
    "$python" -m venv "$TOOLS/dlio"
    # It names TensorFlow, DALI and torch as its needs. The first it imports and does not use in its PyTorch workloads,
    # so that an empty module stands there; the second it does not even import; torch is in the other environment.
    "$TOOLS/dlio/bin/python" -m pip install --disable-pip-version-check --quiet "${DLIO_NEEDS[@]}"
    "$TOOLS/dlio/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps "$DLIO"
    site=$("$TOOLS/dlio/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '"""Stands where DLIO imports TensorFlow, which its PyTorch workloads do not use."""\n' >"$site/tensorflow.py"
    printf '../../../../../%s/lib/%s/site-packages\n' "$VENV" "$(basename "$(dirname "$site")")" >"$site/forebay.pth"
    printf '%s\n' "$DLIO ${DLIO_NEEDS[*]}" >"$TOOLS/dlio/.stamp"
fi

if ! has_tool azurite "$AZURITE"; then
    step "$AZURITE"
    rm -rf "$TOOLS/azurite"
    mkdir -p "$TOOLS/azurite"
    npm install --prefix "$TOOLS/azurite" --no-audit --no-fund --ignore-scripts "$AZURITE"
    printf '%s\n' "$AZURITE" >"$TOOLS/azurite/.stamp"
fi

if ! has_tool promtool "$PROMTOOL"; then
    step "$PROMTOOL"
    command -v apt-get >/dev/null || fail "this system has no apt-get" \
        "put promtool (part of Prometheus) at $TOOLS/promtool/promtool, write '$PROMTOOL' into $TOOLS/promtool/.stamp, then run setup again"
    rm -rf "${TOOLS:?}/promtool"
    mkdir -p "$TOOLS/promtool/package"
    download() { (cd "$TOOLS/promtool/package" && apt-get download -q prometheus); }
    # Downloading takes no root, but a list of packages, which a fresh machine may not have yet.
    download || { [ "$(id -u)" -ne 0 ] || apt-get update -q; download; } || fail "prometheus cannot be downloaded" \
        "as root: apt-get update, then run setup again"
    dpkg-deb -x "$TOOLS"/promtool/package/prometheus_*.deb "$TOOLS/promtool/package"
    mv "$TOOLS/promtool/package/usr/bin/promtool" "$TOOLS/promtool/promtool"
    rm -rf "$TOOLS/promtool/package"
    printf '%s\n' "$PROMTOOL" >"$TOOLS/promtool/.stamp"
fi

if ! is_done packages "$packages"; then
    free_kb=$(df --output=avail . | tail -n 1)
    [ "$free_kb" -ge "$DISK_NEEDED_KB" ] || [ -d "$VENV" ] || fail \
        "$((free_kb / 1024 / 1024)) GB are free here; setup, tests and data need about $((DISK_NEEDED_KB / 1024 / 1024)) GB" \
        "free some space, or check out on another disk"
    step "Python packages"
    "$python" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --disable-pip-version-check -r scripts/requirements.txt
    remember packages "$packages"
    rm -f "$VENV/.stamps/wheel"
fi

if [ -n "$building" ]; then
    step "the optimised build"
    tail --pid="$building" -n +1 -f "$target/setup.log"
    wait "$building" || fail "the optimised build failed" "what it said is above, and in $target/setup.log"
    trap - EXIT
    remember origin "$origin"
fi

if ! is_done wheel "$wheel" || [ ! -x "$VENV/bin/forebay" ]; then
    step "the forebay wheel"
    rm -rf "$target/wheels"
    "$VENV/bin/maturin" build --release --locked --interpreter "$VENV/bin/python" \
        --out "$target/wheels"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps \
        --force-reinstall "$target"/wheels/forebay-*.whl
    remember wheel "$wheel"
fi
printf '\n'
say "setup: done; try: make run"
