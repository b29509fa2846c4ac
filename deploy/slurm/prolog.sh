#!/bin/sh
# Slurm's Prolog: a node on which Forebay would fail takes no job. Put it into slurm.conf:
#   Prolog=/etc/slurm/forebay/prolog.sh
#   PrologFlags=Alloc
# slurmd runs it as root before the first step of a job. If it fails, slurmctld drains the node and
# puts the job back into the queue.
set -u

# slurmd clears the environment.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
FOREBAY=/usr/bin/forebay
CONFIG=/etc/forebay/forebay.toml
# slurmd waits for the Prolog without an end of its own; doctor takes a second or two, and longer
# only where a disk or another node hangs.
LIMIT=60s

refuse() {
    logger --tag forebay-prolog "job ${SLURM_JOB_ID:-?}: $1" 2>/dev/null || :
    printf 'forebay: %s\n' "$1" >&2
    exit 1
}

[ -x "$FOREBAY" ] || refuse "$FOREBAY is missing: install it there, or edit FOREBAY in $0"

# It answers on its own socket, or the node's jobs would each start a daemon of their own.
status=$(timeout "$LIMIT" "$FOREBAY" status --json 2>/dev/null) ||
    refuse "no daemon answers on this node: systemctl status forebayd"

# Key files belong to the daemon's user, and to root they are another user's.
pid=$(printf '%s' "$status" | grep -o '"pid": *[0-9]*' | head -n 1 | tr -dc 0-9)
user=$(stat -c %U "/proc/$pid" 2>/dev/null)
# One of a container has no name here.
id "$user" >/dev/null 2>&1 || user=root

# Warnings let jobs through: they cost speed.
found=$(timeout "$LIMIT" runuser -u "$user" -- "$FOREBAY" doctor --config "$CONFIG" 2>&1) ||
    refuse "$(printf '%s\n' "$found" | grep '^wrong' || echo 'doctor did not end')"
