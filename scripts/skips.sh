#!/usr/bin/env bash
# Lists the tests that were skipped, by requirement: `scripts/skips.sh target/skips`.
set -euo pipefail

list=$1
touch "$list"
printf '\nskipped: %s\n' "$(wc -l < "$list")"
sort "$list" | while IFS=$'\t' read -r requirement test reason; do
    printf '  %-12s %s\n               %s\n' "$requirement" "$test" "$reason"
done
