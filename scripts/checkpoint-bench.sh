#!/usr/bin/env bash
# Measures checkpoints with the wheel of `make setup`. FIGURES: more options; ROUNDS: rounds of each row.
# fio and, for the row against it, the S3 connector come first; what is installed is said.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/install.sh

if ! command -v fio >/dev/null; then
    say "fio, which measures the disk itself, is missing: apt-get install fio (about 10 MB)"
    install_packages fio
fi
requirements=benches/checkpoint/requirements.txt
if ! "$VENV/bin/python" -c 'import s3torchconnector' 2>/dev/null; then
    say "the S3 connector, which saves the same checkpoints, is missing: pip install -r $requirements (about 20 MB)"
    install_python "$requirements"
fi
read -ra options <<<"${FIGURES:-}"
[ -z "${ROUNDS:-}" ] || options+=(--rounds "$ROUNDS")
exec "$VENV/bin/python" benches/checkpoint/checkpoint_figures.py "${options[@]}"
