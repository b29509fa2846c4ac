# Builds for machines other than this one: zig as C compiler and linker, which carries the symbols of
# any release of glibc. Sourced, after install.sh, by what makes the wheel and the Debian package.
# shellcheck shell=bash

# Debian 10, RHEL 8, Ubuntu 18.10 and everything newer.
# shellcheck disable=SC2034 # Used by those that source this.
readonly GLIBC=2.28
readonly PORTABLE=$TOOLS/portable
# zig itself, in a Python package, and what calls it for cargo; pyelftools reads what was built.
readonly MATURIN=maturin==1.16.0
readonly PORTABLE_PACKAGES=("$MATURIN" cargo-zigbuild==0.24.1 ziglang==0.17.1 pyelftools==0.33)

# Profile of what is published, in Cargo.toml.
# shellcheck disable=SC2034
readonly PROFILE=published

# Prints the target of this machine.
this_machine() { printf '%s-unknown-linux-gnu' "$(uname -m)"; }

# Installs what builds for a target need, and puts it on the path.
set_up_portable() {
    local target=$1 missing=() python
    python=$(find_python)
    check_rust
    command -v cmake >/dev/null || missing+=(cmake)
    command -v nasm >/dev/null || missing+=(nasm)
    # Build scripts are of this machine.
    command -v cc >/dev/null || missing+=(build-essential)
    "$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    install_packages "${missing[@]}"
    has_tool portable "${PORTABLE_PACKAGES[*]}" ||
        say "what builds for other machines comes into $PORTABLE  (90 MB to download, 420 MB on disk)"
    python_tool portable "${PORTABLE_PACKAGES[@]}"
    PATH="$PWD/$PORTABLE/bin:$PATH"
    [ -d "$(rustc --print target-libdir --target "$target")" ] || {
        step "Rust's standard library for $target"
        rustup target add "$target"
    }
}
