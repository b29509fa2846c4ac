#!/bin/sh
# Slurm's TaskProlog: each task uses the node's daemon. Put it into slurm.conf:
#   TaskProlog=/etc/slurm/forebay/task-prolog.sh
# Lines `export NAME=value` of its output become the task's environment. With the daemon named, a
# task that cannot reach it fails, and starts none of its own.
SOCKET=/run/forebay/forebayd.sock

# A job may choose for itself.
[ -n "${FOREBAY_DAEMON:-}" ] || printf 'export FOREBAY_DAEMON=unix:%s\n' "$SOCKET"
