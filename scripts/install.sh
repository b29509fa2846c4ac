# Functions that both setup scripts install with. Sourced, never run.
# Everything installed is remembered by content, so a second run with no change does nothing.
# shellcheck shell=bash

readonly VENV=.venv
readonly PYTHON_MIN="3.10"
readonly TARGET=${CARGO_TARGET_DIR:-target}

say() { printf '%s\n' "$*"; }
step() { printf '\n==> %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$1" >&2
    shift
    printf '       %s\n' "$@" >&2
    exit 1
}

# Prints the first Python that is new enough.
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

# Prints a digest of the named files and folders: names and contents, without tests and caches.
digest() {
    find "$@" -type f ! -path '*/tests/*' ! -path '*/__pycache__/*' ! -name '*.so' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}

is_done() { [ "$(cat "$VENV/.stamps/$1" 2>/dev/null)" = "$2" ]; }
remember() {
    mkdir -p "$VENV/.stamps"
    printf '%s\n' "$2" >"$VENV/.stamps/$1"
}

# Prints the plan, or returns 1 if there is nothing to do.
announce() {
    [ $# -gt 0 ] || return 1
    say "setup will install:"
    printf '  * %s\n' "$@"
    say "with $("$python" --version) and $(cargo --version | cut -d ' ' -f 1,2); free here: $(
        df -h --output=avail . | tail -n 1 | xargs
    )"
}

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Installs system packages, if any are named.
install_packages() {
    [ $# -gt 0 ] || return 0
    step "system packages: $*"
    command -v apt-get >/dev/null || fail "this system has no apt-get" \
        "install these with its own package manager, then run setup again: $*"
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
        fail "installing needs root, and sudo is missing" "as root: apt-get install $*"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# Starts a build in the background; its output goes to a log until `await_build` shows it.
building=
start_build() {
    step "the build begins; its output follows once packages are installed"
    mkdir -p "$TARGET"
    cargo "$@" >"$TARGET/setup.log" 2>&1 &
    building=$!
    trap 'kill "$building" 2>/dev/null || true' EXIT
}
await_build() {
    [ -n "$building" ] || return 0
    step "the build"
    tail --pid="$building" -n +1 -f "$TARGET/setup.log"
    wait "$building" || fail "the build failed" "its output is above, and in $TARGET/setup.log"
    building=
    trap - EXIT
}

# Installs Python packages from a requirements file into the environment.
install_python() {
    "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar on -r "$1"
}

# Tools of tests, each in a folder of its own with a stamp that says which version it is.
readonly TOOLS=.tools
has_tool() { [ "$(cat "$TOOLS/$1/.stamp" 2>/dev/null)" = "$2" ]; }
remember_tool() { printf '%s\n' "$2" >"$TOOLS/$1/.stamp"; }

# Installs packages from PyPI, as one tool, into an environment of its own.
python_tool() {
    local name=$1
    shift
    has_tool "$name" "$*" && return
    step "$*"
    rm -rf "${TOOLS:?}/$name"
    "$python" -m venv "$TOOLS/$name"
    "$TOOLS/$name/bin/python" -m pip install --disable-pip-version-check --quiet "$@"
    remember_tool "$name" "$*"
}

# Downloads a Debian package and unpacks it into the folder `package` of a tool, without installing it.
unpack_package() {
    local folder=$TOOLS/$1/package name=$2
    command -v apt-get >/dev/null || fail "this system has no apt-get" \
        "put $1, a part of $name, into $TOOLS/$1," \
        "write '$3' into $TOOLS/$1/.stamp, then run setup again"
    rm -rf "${TOOLS:?}/$1"
    mkdir -p "$folder"
    download() { (cd "$folder" && apt-get download -q "$name"); }
    # Downloading needs no root, but a list of packages, which a fresh machine may lack.
    download || { [ "$(id -u)" -ne 0 ] || apt-get update -q; download; } ||
        fail "$name cannot be downloaded" "as root: apt-get update, then run setup again"
    dpkg-deb -x "$folder/$name"_*.deb "$folder"
}
