"""Forebay inside torch's own loaders: ``torch.utils.data.DataLoader``, torchdata's
``StatefulDataLoader`` and what wraps them.

`forebay.DataLoader` needs no other loader around it: it has threads and batches of its own. Where a
framework insists on one, `IterableDataset` goes in between.

One rule: worker w of n hands out batches w, w + n, w + 2n, … of its rank. torch takes one from each
worker in turn, so what comes out is the order that one process would have given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils import data

from forebay._values import whole
from forebay.errors import Invalid
from forebay.loader import DataLoader

__all__ = ["IterableDataset"]

# Workers of one loader, at most: each has a count of its own in shared memory. Nobody has a
# thousand cores to decode on beside one GPU.
_WORKERS_MAX = 1024

# What in Accelerate takes a dataset that every rank reads in part for one that every rank reads
# whole: the first deals its samples once more, the second hands on only what rank 0 reads.
_DEALS_AGAIN = frozenset({"IterableDatasetShard", "DataLoaderDispatcher"})

# Callers looked at to find one of these: they iterate over the dataset, or over what forks a worker
# that does, a dozen calls further down.
_CALLERS = 64

# What a signed number of torch's can count up from without an end.
_EPOCH_MAX = 2**62


class IterableDataset(data.IterableDataset[Any]):
    """The batches of a `forebay.DataLoader` as a dataset of torch's.

    >>> dataset = forebay.torch.IterableDataset(urls, batch_size=256)  # doctest: +SKIP
    >>> loader = torch.utils.data.DataLoader(
    ...     dataset, batch_size=None, num_workers=4
    ... )  # doctest: +SKIP

    Batches are made here: give ``batch_size=None`` to torch's loader. Epochs advance by
    themselves, whether its workers stay or not; `set_epoch` chooses another.

    `state_dict` inside a worker is that worker's own: ``StatefulDataLoader`` gathers them, and they
    are good for the same `num_workers` only. The state of a `forebay.DataLoader` without torch's
    around it is good for any.

    Parameters
    ----------
    *args, **kwargs
        As of `forebay.DataLoader`.

    Raises
    ------
    Invalid
        As of `forebay.DataLoader`; and at the first iteration, if what iterates would deal the
        batches of this rank to all ranks once more.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._loader = DataLoader(*args, **kwargs)
        # The epoch chosen last, and how many each worker has begun since: shared by all workers,
        # whenever they were started.
        self._shared: torch.Tensor = torch.zeros(1 + _WORKERS_MAX, dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        """Batches of the next epoch: all of them, or every n-th in one of n workers."""
        self._refuse_to_be_dealt_again()
        begun = self._stripe()
        self._loader.set_epoch(self._chosen + int(begun))
        begun += 1
        return iter(self._loader)

    def __len__(self) -> int:
        """Batches in an epoch for each rank; `TypeError` without sample counts."""
        return len(self._loader)

    def __getstate__(self) -> dict[str, Any]:
        # Workers that are started anew see neither who asks for batches nor the process group.
        self._refuse_to_be_dealt_again()
        return {"arguments": self._loader._arguments_here(), "shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._loader, self._shared = DataLoader(**state["arguments"]), state["shared"]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, in all workers.

        Parameters
        ----------
        epoch : int
            0 or more.
        """
        epoch = whole("epoch", epoch, 0, _EPOCH_MAX)
        self._shared.zero_()
        self._shared[0] = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands: in a worker its own place, else the loader's.

        Returns
        -------
        dict
            Fit for JSON.
        """
        self._stripe()
        worker, workers = _place()
        # At its end, too: a worker that is through with an epoch before the others says so to them.
        at = self._loader._saved(self._loader._at)
        return at | {"worker": worker, "num_workers": workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was saved, by the same worker of as many.

        Raises
        ------
        Invalid
            For another number of workers, and as `forebay.DataLoader.load_state_dict`.
        """
        here = _place()
        there = (state.get("worker"), state.get("num_workers"))
        if there != here:
            raise Invalid(
                f"the state was saved by worker {there[0]} of {there[1]}, this is worker {here[0]} "
                f"of {here[1]}: states of torch's workers are good for the same num_workers only; "
                "use that number, or forebay.DataLoader without torch's around it",
                {"option": "num_workers"},
            )
        begun = self._stripe()
        self._loader.load_state_dict(state)
        begun.fill_(self._loader.epoch - self._chosen)

    @property
    def _chosen(self) -> int:
        return int(self._shared[0])

    def _stripe(self) -> torch.Tensor:
        """Take this worker's batches; with the epochs it has begun since one was chosen."""
        worker, workers = _place()
        if workers > _WORKERS_MAX:
            raise Invalid(f"num_workers={workers} is above {_WORKERS_MAX}; use fewer")
        self._loader._take_every(worker, workers)
        begun: torch.Tensor = self._shared[1 + worker]
        return begun

    def _refuse_to_be_dealt_again(self) -> None:
        if self._loader._world_size() == 1:
            return
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_CALLERS):
            if frame is None:
                return
            caller = type(frame.f_locals.get("self"))
            if caller.__module__.startswith("accelerate") and caller.__name__ in _DEALS_AGAIN:
                raise Invalid(
                    f"Accelerate's {caller.__name__} would deal the batches of this rank to all "
                    "ranks once more, and most of them would be lost; iterate over the loader "
                    "without accelerator.prepare (or Trainer's), or give rank=0, world_size=1 and "
                    "let Accelerate deal",
                    {"option": "world_size"},
                )
            frame = frame.f_back


def _place() -> tuple[int, int]:
    """Which worker of torch's loader runs here, of how many."""
    worker = data.get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
