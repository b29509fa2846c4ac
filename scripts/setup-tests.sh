#!/usr/bin/env bash
# Installs everything that only tests and lints need: servers, a browser, tools, Python packages.
# Rule: `make setup` ran before; it prints what it will do and how large that is first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh

# Emulators and tools.
readonly MOTO="moto[server,s3]==5.2.5"
readonly AZURITE="azurite@3.37.0"
# Checks the admin API against its OpenAPI document; Python 3.10 has the last version that supports it.
readonly SCHEMATHESIS="schemathesis==4.32.5" SCHEMATHESIS_310="schemathesis==4.30.1"
# Lints metrics and tests alert rules. The whole Debian package would start a server.
readonly PROMTOOL="promtool of prometheus, from the system's packages"
# The other server that keeps queues and member lists. Debian 12 has it in its backports only, and a
# package would start a service.
readonly VALKEY="valkey-server of valkey-tools, from the system's packages"
# The reference benchmark of MLPerf Storage with an MPI of its own; torch and forebay come from .venv.
readonly DLIO="dlio_benchmark==2.0.0"
readonly DLIO_NEEDS=(hydra-core==1.3.8 mpi4py==4.1.2 mpich==4.3.2 pandas==2.3.3 pillow
    psutil==7.2.2 pydftracer==1.0.2)
# Measured on Linux x86-64 with the pinned requirements.
readonly PACKAGES_DOWNLOAD="0.4 GB"
readonly PACKAGES_DISK="1.1 GB"

# Prints the Debian packages of programs that tests need and this machine lacks.
missing_packages() {
    # Tests make file systems hang with these (some 20 MB); without FUSE they are of no use.
    if [ -e /dev/fuse ]; then
        command -v nbdkit >/dev/null || printf '%s\n' nbdkit
        command -v nbdfuse >/dev/null || printf '%s\n' nbdfuse
    fi
    # Servers that tests read from.
    [ -x /usr/sbin/nginx ] || printf '%s\n' nginx-core
    [ -x /usr/bin/redis-server ] || printf '%s\n' redis-server
    command -v openssl >/dev/null || printf '%s\n' openssl
    command -v systemd-analyze >/dev/null || printf '%s\n' systemd
    command -v npm >/dev/null || printf '%s\n' npm
    # A browser for the status page (0.4 GB). Ubuntu ships it as a snap: the test is skipped there.
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

python=$VENV/bin/python
mapfile -t system < <(missing_packages)
requirements=scripts/requirements-tests.txt
packages=$(digest "$requirements")
schemathesis=$SCHEMATHESIS
"$python" -c 'import sys; sys.exit(sys.version_info >= (3, 11))' && schemathesis=$SCHEMATHESIS_310
# Its tracer comes as a wheel for these Pythons; on newer ones the test is skipped.
has_dlio() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))' ||
        has_tool dlio "$DLIO ${DLIO_NEEDS[*]}"
}

plan=()
[ ${#system[@]} -eq 0 ] || plan+=("system packages by apt-get: ${system[*]}  (up to 1 GB)")
has_tool moto "$MOTO" || plan+=("$MOTO, an S3 server, into $TOOLS/moto  (0.3 GB on disk)")
has_tool azurite "$AZURITE" ||
    plan+=("$AZURITE, an Azure emulator, into $TOOLS/azurite  (0.4 GB on disk)")
has_tool schemathesis "$schemathesis" ||
    plan+=("$schemathesis, a fuzzer of HTTP APIs, into $TOOLS/schemathesis  (0.1 GB on disk)")
has_dlio || plan+=("$DLIO, the benchmark of MLPerf Storage, into $TOOLS/dlio  (0.3 GB on disk)")
has_tool promtool "$PROMTOOL" ||
    plan+=("$PROMTOOL, into $TOOLS/promtool  (20 MB to download, 50 MB on disk)")
has_valkey() { [ -x /usr/bin/valkey-server ] || has_tool valkey "$VALKEY"; }
has_valkey || plan+=("$VALKEY, into $TOOLS/valkey  (1 MB to download, 3 MB on disk)")
is_done packages-tests "$packages" || plan+=("Python packages into $VENV: $(
    sed -n 's/^\([a-z0-9-]*\)==.*/\1/p' "$requirements" | uniq | xargs
)  (about $PACKAGES_DOWNLOAD to download, $PACKAGES_DISK on disk)")
if ! announce "${plan[@]}"; then
    say "setup: everything that tests need is up to date"
    exit 0
fi

install_packages "${system[@]}"
# Test binaries are compiled while packages come over the network.
start_build test --release --locked --workspace --no-run
python_tool moto "$MOTO"
python_tool schemathesis "$schemathesis"

if ! has_dlio; then
    step "$DLIO"
    rm -rf "${TOOLS:?}/dlio"
    "$python" -m venv "$TOOLS/dlio"
    # It requires TensorFlow, DALI and torch. Its PyTorch workloads import the first without using it,
    # so an empty module stands there; they never import the second; torch comes from .venv.
    "$TOOLS/dlio/bin/python" -m pip install --disable-pip-version-check --quiet "${DLIO_NEEDS[@]}"
    "$TOOLS/dlio/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps "$DLIO"
    site=$("$TOOLS/dlio/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '"""Stands in for TensorFlow, which DLIO imports and does not use here."""\n' \
        >"$site/tensorflow.py"
    printf '../../../../../%s/lib/%s/site-packages\n' "$VENV" "$(basename "$(dirname "$site")")" \
        >"$site/forebay.pth"
    remember_tool dlio "$DLIO ${DLIO_NEEDS[*]}"
fi

if ! has_tool azurite "$AZURITE"; then
    step "$AZURITE"
    rm -rf "$TOOLS/azurite"
    mkdir -p "$TOOLS/azurite"
    npm install --prefix "$TOOLS/azurite" --no-audit --no-fund --ignore-scripts "$AZURITE"
    remember_tool azurite "$AZURITE"
fi

if ! has_tool promtool "$PROMTOOL"; then
    step "$PROMTOOL"
    unpack_package promtool prometheus "$PROMTOOL"
    mv "$TOOLS/promtool/package/usr/bin/promtool" "$TOOLS/promtool/promtool"
    rm -rf "$TOOLS/promtool/package"
    remember_tool promtool "$PROMTOOL"
fi

if ! has_valkey; then
    step "$VALKEY"
    missing() {
        fail "valkey-tools cannot be downloaded" "put valkey-server at $TOOLS/valkey/valkey-server," \
            "write '$VALKEY' into $TOOLS/valkey/.stamp, then run setup again"
    }
    command -v apt-get >/dev/null || missing
    rm -rf "${TOOLS:?}/valkey"
    mkdir -p "$TOOLS/valkey/package/lists/partial" "$TOOLS/valkey/package/cache/archives/partial"
    # Lists of its own, where the system has no such package: nothing of the system changes.
    apt=()
    if [ -z "$(apt-cache search --names-only '^valkey-tools$')" ]; then
        codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-none}")
        printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
            "$codename-backports" /usr/share/keyrings/debian-archive-keyring.gpg \
            >"$TOOLS/valkey/package/backports.sources"
        folder=$PWD/$TOOLS/valkey/package
        apt=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$folder"
            -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder/cache")
        apt-get "${apt[@]}" update -q || missing
    fi
    (cd "$TOOLS/valkey/package" && apt-get "${apt[@]}" download -q valkey-tools) || missing
    dpkg-deb -x "$TOOLS"/valkey/package/valkey-tools_*.deb "$TOOLS/valkey/package"
    # Its libraries are those of redis-server. One program: the name by which it is called decides what it does.
    mv "$TOOLS/valkey/package/usr/bin/valkey-check-rdb" "$TOOLS/valkey/valkey-server"
    rm -rf "$TOOLS/valkey/package"
    remember_tool valkey "$VALKEY"
fi

if ! is_done packages-tests "$packages"; then
    step "Python packages"
    install_python "$requirements"
    remember packages-tests "$packages"
fi
await_build
say
say "setup: done; try: make test"
