"""Rank and world size of this process."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from forebay import _native
from forebay.errors import Invalid

_log = logging.getLogger("forebay")

# Source of the rank of a process that nothing tells of others.
_NOBODY = "this process alone"


class Place(NamedTuple):
    """Rank of a process among those that share an epoch."""

    rank: int
    world_size: int
    source: str

    @property
    def is_alone(self) -> bool:
        """True if nothing tells of other processes."""
        return self.source == _NOBODY


def resolve(rank: int | None, world_size: int | None) -> Place:
    """Find this process's rank: from arguments, ``torch.distributed``, ``jax.distributed``,
    ``RANK`` and ``WORLD_SIZE``, the variables of an ``srun`` step, or else it is alone.

    Raises
    ------
    Invalid
        If only one of the two is known, or they contradict each other.
    """
    place = _arguments(rank, world_size) or _torch() or _jax() or _launcher(os.environ)
    place = place or _slurm(os.environ)
    place = place or Place(0, 1, _NOBODY)
    if place.world_size < 1 or not 0 <= place.rank < place.world_size:
        raise Invalid(
            f"rank {place.rank} is not below world_size {place.world_size} "
            f"(from {place.source}); ranks count from 0",
            {"rank": str(place.rank), "world_size": str(place.world_size)},
        )
    return place


def torch_worker() -> Any:
    """Return the worker of torch's loader that runs here; None outside of one."""
    # A worker has imported that module.
    loading = sys.modules.get("torch.utils.data")
    return None if loading is None else loading.get_worker_info()


def refuse_many_workers() -> None:
    """Reject reading a rank's whole share in each of several workers of torch's loader.

    Raises
    ------
    Invalid
        In such a worker.
    """
    worker = torch_worker()
    if worker is not None and worker.num_workers > 1:
        raise Invalid(
            f"each of the {worker.num_workers} workers of torch's DataLoader would read the whole "
            "share of this rank; iterate over forebay.DataLoader itself, which has threads of its "
            "own, or give torch's a forebay.torch.IterableDataset",
            {"option": "num_workers"},
        )


def in_step() -> str | None:
    """Return the mechanism that makes this job's ranks step together, if there is one."""
    for place in (_torch(), _jax()):
        if place is not None and place.world_size > 1:
            return place.source
    return None


# Variables that identify one start of a job: the first launcher whose first variables are all set.
_JOBS = (
    (
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
        ("TORCHELASTIC_RESTART_COUNT",),
    ),
    (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("SLURM_RESTART_COUNT",)),
    (("MASTER_ADDR", "MASTER_PORT"), ()),
)

# Identity of a process that is alone, for its lifetime.
_ALONE = secrets.token_hex(16)


def group(world_size: int, job: str | None, env: Mapping[str, str] | None = None) -> list[str]:
    """Return an identity shared by the ranks of this job alone: its name, and its launcher's
    identity (torchrun, a Slurm step, or the address at which ranks meet).

    Raises
    ------
    Invalid
        If several ranks have none of these.
    """
    env = os.environ if env is None else env
    named = [] if job is None else [job]
    for needed, more in _JOBS:
        if all(name in env for name in needed):
            return named + [f"{name}={env.get(name)}" for name in needed + more]
    if world_size == 1:
        return [*named, _ALONE, str(os.getpid())]
    if named:
        return named
    raise Invalid(
        f"nothing identifies the {world_size} ranks that share a queue; start them by torchrun or "
        "srun, set MASTER_ADDR and MASTER_PORT, or give job= a name that only this start of the "
        "job has",
        {"option": "job"},
    )


def is_spread(world_size: int, env: Mapping[str, str] | None = None) -> bool:
    """Return true if the launcher reports ranks on other nodes."""
    env = os.environ if env is None else env
    if "LOCAL_WORLD_SIZE" in env:
        return _number(env, "LOCAL_WORLD_SIZE") < world_size
    if "SLURM_STEP_ID" in env and "SLURM_STEP_NUM_NODES" in env:
        return _number(env, "SLURM_STEP_NUM_NODES") > 1
    return False


def log_once(place: Place) -> None:
    """Log the rank and its source."""
    _log.info("rank %d of %d (from %s)", place.rank, place.world_size, place.source)


def here(place: Place, env: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return the first rank on this node, and the number of ranks on it: as ``torchrun`` and others
    report, else this one alone.
    """
    env = os.environ if env is None else env
    if "LOCAL_RANK" not in env or "LOCAL_WORLD_SIZE" not in env:
        return place.rank, 1
    local, size = _number(env, "LOCAL_RANK"), _number(env, "LOCAL_WORLD_SIZE")
    first = place.rank - local
    # Variables of another launcher do not describe these ranks.
    if not (0 <= local < size and 0 <= first <= place.world_size - size):
        return place.rank, 1
    return first, size


def _arguments(rank: int | None, world_size: int | None) -> Place | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise Invalid("rank and world_size come together; give both or neither")
    return Place(rank, world_size, "arguments")


def _torch() -> Place | None:
    # A process group exists only if its module is imported.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    if not distributed.is_initialized():
        return None
    return Place(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _jax() -> Place | None:
    # As with torch: only a program that uses it has imported it.
    jax = sys.modules.get("jax")
    if jax is None or not _is_initialized(jax):
        return None
    return Place(jax.process_index(), jax.process_count(), "jax.distributed")


def _is_initialized(jax: Any) -> bool:
    asked = getattr(jax.distributed, "is_initialized", None)
    if asked is not None:
        return bool(asked())
    # Before JAX 0.5.1.
    state = sys.modules.get("jax._src.distributed")
    return state is not None and state.global_state.client is not None


def _launcher(env: Mapping[str, str]) -> Place | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    return Place(_number(env, "RANK"), _number(env, "WORLD_SIZE"), "RANK and WORLD_SIZE")


def _slurm(env: Mapping[str, str]) -> Place | None:
    # Without a step these describe the batch script, which is a single process.
    if "SLURM_STEP_ID" not in env or "SLURM_PROCID" not in env or "SLURM_NTASKS" not in env:
        return None
    tasks = _number(env, "SLURM_NTASKS")
    if tasks < 2:
        return None
    return Place(_number(env, "SLURM_PROCID"), tasks, "the Slurm step")


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise Invalid(
            f"{name} is {env[name]!r}, not a number; unset it, or give rank= and world_size="
        ) from None


def threads(env: Mapping[str, str] | None = None) -> int:
    """Return the number of decode threads of this process: its share of the cores that affinity and
    the control group's quota allow.

    ``FOREBAY_DECODE_THREADS`` overrides it.
    """
    env = os.environ if env is None else env
    if "FOREBAY_DECODE_THREADS" in env:
        return _number(env, "FOREBAY_DECODE_THREADS")
    beside = _number(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else 1
    return max(1, _native.cores() // max(1, beside))
