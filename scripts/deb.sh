#!/usr/bin/env bash
# Builds the Debian package, into dist/: the daemon, the command line, the unit, the manual.
# Usage: scripts/deb.sh [TARGET], such as aarch64-unknown-linux-gnu; without it, this machine's.
# FOREBAY_BINARY=FILE packs a binary that is built already; FOREBAY_VERSION sets the version.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh
source scripts/portable.sh

target=${1:-$(this_machine)}
case "$target" in
x86_64-*) architecture=amd64 ;;
aarch64-*) architecture=arm64 ;;
*) fail "no Debian package is made for $target" "name x86_64- or aarch64-unknown-linux-gnu" ;;
esac
command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing" "apt-get install dpkg"

# Prints the path of the binary for a target, which is built.
build() {
    cargo zigbuild --profile "$PROFILE" --locked --target "$1.$GLIBC" -p forebay-cli \
        --bin forebay >&2
    printf '%s' "$TARGET/$1/$PROFILE/forebay"
}
binary=${FOREBAY_BINARY:-}
if [ -z "$binary" ]; then
    set_up_portable "$target"
    step "forebay for $target, glibc $GLIBC"
    binary=$(build "$target")
fi
# The manual and the completions are written by the program itself, as this machine runs it.
speaker=$binary
[ "$target" = "$(this_machine)" ] || speaker=${FOREBAY_SPEAKER:-$(build "$(this_machine)")}

found=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
version=${FOREBAY_VERSION:-$found-1}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 0755 "$tree"

put() { install -D -m "$1" "$2" "$tree/$3"; }
put 755 "$binary" usr/bin/forebay
ln -s forebay "$tree/usr/bin/forebayd"
put 644 deploy/systemd/forebayd.service usr/lib/systemd/system/forebayd.service
put 644 deploy/systemd/forebayd.sysusers.conf usr/lib/sysusers.d/forebayd.conf
put 644 deploy/systemd/forebayd.tmpfiles.conf usr/lib/tmpfiles.d/forebayd.conf
put 640 deploy/debian/forebay.toml etc/forebay/forebay.toml
put 644 deploy/debian/copyright usr/share/doc/forebay/copyright
put 644 CHANGELOG.md usr/share/doc/forebay/changelog
gzip -9n "$tree/usr/share/doc/forebay/changelog"
"$speaker" man "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*.1
ln -s forebay-daemon.1.gz "$tree/usr/share/man/man1/forebayd.1.gz"
completions=(
    bash:usr/share/bash-completion/completions/forebay
    zsh:usr/share/zsh/vendor-completions/_forebay
    fish:usr/share/fish/vendor_completions.d/forebay.fish
)
for completion in "${completions[@]}"; do
    file=$tree/${completion#*:}
    mkdir -p "$(dirname "$file")"
    "$speaker" completions "${completion%%:*}" >"$file"
    chmod 644 "$file"
done

for script in postinst prerm postrm; do
    put 755 "deploy/debian/$script" "DEBIAN/$script"
done
printf '/etc/forebay/forebay.toml\n' >"$tree/DEBIAN/conffiles"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@GLIBC@/$GLIBC/" \
    -e "s/@SIZE@/$(du -sk "$tree" | cut -f 1)/" deploy/debian/control.in >"$tree/DEBIAN/control"
(cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
find "$tree" -type d -exec chmod 0755 {} +
chmod 644 "$tree/DEBIAN"/{control,conffiles,md5sums}
mkdir -p dist
package=dist/forebay_${version}_${architecture}.deb
dpkg-deb --root-owner-group -Zxz --build "$tree" "$package" >/dev/null
say "$package: $(du -k "$package" | cut -f 1) kB"
