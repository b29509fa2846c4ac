"""Settings of a job, as the native side reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay import ranks
from forebay._launch import daemon as launch
from forebay._options import Options
from forebay.schedule import Change


def of(
    options: Options,
    place: ranks.Place,
    order: tuple[int | None, int, list[int] | None],
    step: int,
    changes: Sequence[Change],
) -> dict[str, Any]:
    """Return the settings of a loader's job.

    Parameters
    ----------
    options : Options
        Checked arguments.
    place : Place
        Rank of this process.
    order : tuple
        Lanes in use, if known; the version of the order, which gives unset lanes; the samples of
        each shard, if known.
    step : int
        Number of loaders that take turns at the batches of this rank.
    changes : sequence
        Weights of a mixture that were set while the job ran.
    """
    tail = "Drop" if options.drop_last else "Pad" if options.pad_last else "Even"
    lanes, version, samples = order
    mixture: dict[str, Any] = {"streams": [], "phases": []}
    if options.mixture is not None:
        mixture = options.mixture.native(options.epoch_samples, changes)
    joined, is_dynamic = options.joined, options.split == "dynamic"
    return {
        "urls": options.urls + ([] if joined is None else joined.urls),
        "joined": [] if joined is None else joined.groups,
        "counts": samples,
        # With a shared queue a rank has no window of its own. A manifest has the sizes of one part.
        "bytes": options.sizes if joined is None and not is_dynamic else None,
        "ranks": ranks.here(place),
        "mixture": mixture,
        "order": {
            "shuffle": options.shuffle.capitalize(),
            "window": options.window,
            "seed": options.seed,
            "lanes": lanes,
            "batch_size": options.batch_size,
            # The queue distributes shards, not the rank.
            "rank": 0 if is_dynamic else place.rank,
            "world_size": 1 if is_dynamic else place.world_size,
            "tail": tail,
            "epoch_samples": options.epoch_samples,
        },
        "order_version": version,
        "fields": options.spec(),
        "views": options.views(),
        "prefetch": options.prefetch,
        "threads": max(1, ranks.threads() // step),
        "timeout": options.timeout,
        "serves_changes": options.on_change == "serve",
        "borrows": options.verify == "arrival",
        "allow_pipe": options.allow_pipe,
        "leases": is_dynamic,
        "job": options.job,
        "daemon": options.daemon,
        "command": launch(),
    }
