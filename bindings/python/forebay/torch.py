"""Forebay inside torch's own loaders: ``torch.utils.data.DataLoader``, torchdata's
``StatefulDataLoader`` and their wrappers.

`forebay.DataLoader` needs no other loader around it: it has threads and batches of its own. Where a
framework insists on one, use `IterableDataset`.

Worker w of n delivers batches w, w + n, w + 2n, … of its rank. torch takes one from each worker in
turn, so the result has the order of a single process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils import data

from forebay import _foreign, _lookahead
from forebay._values import whole
from forebay.errors import Invalid
from forebay.loader import DataLoader

__all__ = ["IterableDataset"]

# Largest number of workers of one loader: each has a counter in shared memory, and no GPU has a
# thousand cores beside it.
_WORKERS_MAX = 1024

# Ranks of a node that have counters of their own: those that a data set was made for before they
# were forked share its memory.
_RANKS = 64

# Classes of Accelerate that assume every rank reads the whole data set: the first splits its
# samples again, the second forwards only those of rank 0.
_DEALS_AGAIN = frozenset({"IterableDatasetShard", "DataLoaderDispatcher"})

# Callers searched for one of these: they iterate over the dataset, or over the parent of a worker
# that does, a dozen calls further up.
_CALLERS = 64

# Largest epoch that a signed torch number can count up from.
_EPOCH_MAX = 2**62


class IterableDataset(data.IterableDataset[Any]):
    """The batches of a `forebay.DataLoader` as a torch dataset.

    >>> dataset = forebay.torch.IterableDataset(urls, batch_size=256)  # doctest: +SKIP
    >>> loader = torch.utils.data.DataLoader(
    ...     dataset, batch_size=None, num_workers=4
    ... )  # doctest: +SKIP

    Batches are made here: give ``batch_size=None`` to torch's loader. Epochs advance by themselves,
    with persistent workers or not; `set_epoch` chooses another.

    `state_dict` inside a worker is that worker's own: ``StatefulDataLoader`` gathers them, and they
    are valid for the same `num_workers` only. The state of a `forebay.DataLoader` without torch's
    around it is valid for any.

    Parameters
    ----------
    *args, **kwargs
        As of `forebay.DataLoader`.

    Raises
    ------
    Invalid
        As of `forebay.DataLoader`; and at the first iteration, if the caller would split this
        rank's batches among all ranks again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._loader = DataLoader(*args, **kwargs)
        if self._loader._options.views():
            raise Invalid(
                "torch's loader turns the views of Bytes(copy=False) into lists of numbers; use "
                "copy=True, or forebay.DataLoader without torch's around it",
                {"option": "fields"},
            )
        # For each rank, the epoch chosen last, and the number each worker has begun since: shared
        # by all workers, whenever they start.
        self._shared: torch.Tensor = torch.zeros((_RANKS, 1 + _WORKERS_MAX), dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch: all of them, or every n-th in one of n workers."""
        _foreign.refuse_collation("forebay.torch.IterableDataset")
        self._refuse_to_be_dealt_again()
        begun = self._stripe()
        self._loader.set_epoch(self._chosen + int(begun))
        begun += 1
        return _Iteration(iter(self._loader), begun)

    def __len__(self) -> int:
        """Return the batches per epoch of each rank; `TypeError` without sample counts."""
        try:
            return len(self._loader)
        except TypeError:
            _lookahead.refuse_workers_ahead()
            raise

    def __getstate__(self) -> dict[str, Any]:
        # Spawned workers see neither the caller that requests batches nor the process group.
        self._refuse_to_be_dealt_again()
        return {"arguments": self._loader._arguments_here(), "shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._loader, self._shared = DataLoader(**state["arguments"]), state["shared"]
        # A copy by value has memory of its own, which its workers share.
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, in all workers.

        Parameters
        ----------
        epoch : int
            0 or more.
        """
        epoch = whole("epoch", epoch, 0, _EPOCH_MAX)
        # Before ranks are forked, the choice is for all of them.
        chosen = self._shared if self._loader._resolved().is_alone else self._own()
        chosen.zero_()
        chosen[..., 0] = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return this process's position: in a worker its own, else the loader's.

        Returns
        -------
        dict
            Fit for JSON.
        """
        self._stripe()
        worker, workers = _place()
        # Also at its end: a worker that finishes an epoch early reports it to the others.
        return self._loader._saved(self._loader._unheld()) | {
            "worker": worker,
            "num_workers": workers,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`, in the same worker of as many.

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
                f"of {here[1]}: states of torch's workers are valid for the same num_workers only; "
                "use that number, or forebay.DataLoader without torch's around it",
                {"option": "num_workers"},
            )
        begun = self._stripe()
        self._loader.load_state_dict(state)
        begun.fill_(self._loader.epoch - self._chosen)

    @property
    def _chosen(self) -> int:
        return int(self._own()[0])

    def _own(self) -> torch.Tensor:
        """Return the counters of this rank."""
        counters: torch.Tensor = self._shared[self._loader._resolved().rank % _RANKS]
        return counters

    def _stripe(self) -> torch.Tensor:
        """Take this worker's batches, with the epochs it has begun since one was chosen."""
        worker, workers = _place()
        if workers > _WORKERS_MAX:
            raise Invalid(f"num_workers={workers} is above {_WORKERS_MAX}; use fewer")
        self._loader._take_every(worker, workers)
        begun: torch.Tensor = self._own()[1 + worker]
        return begun

    def _refuse_to_be_dealt_again(self) -> None:
        if self._loader._resolved().world_size == 1:
            return
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_CALLERS):
            if frame is None:
                return
            caller = type(frame.f_locals.get("self"))
            if caller.__module__.startswith("accelerate") and caller.__name__ in _DEALS_AGAIN:
                raise Invalid(
                    f"Accelerate's {caller.__name__} would split the batches of this rank among "
                    "all ranks again, and most of them would be lost; iterate over the loader "
                    "without accelerator.prepare (or Trainer's), or give rank=0, world_size=1 and "
                    "let Accelerate split",
                    {"option": "world_size"},
                )
            frame = frame.f_back


class _Iteration(Iterator[Any]):
    """The batches of one epoch in one worker.

    The state tells, beside that of the data set, if all of them were taken: behind an iterator that
    was saved at its end, ``StatefulDataLoader`` makes another at once.
    """

    def __init__(self, batches: Iterator[Any], begun: torch.Tensor) -> None:
        self._batches, self._begun, self._over = batches, begun, False

    def __next__(self) -> Any:
        """Return the next batch."""
        if self._over:
            raise StopIteration
        try:
            return next(self._batches)
        except StopIteration:
            self._over = True
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return true as ``over`` behind the last batch."""
        return {"over": self._over}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have no batch if the saved iteration was over: the epoch is the next one's."""
        if state.get("over", False):
            self._over = True
            self._begun -= 1


def _place() -> tuple[int, int]:
    """Return the number of this worker of torch's loader, and the number of workers."""
    worker = data.get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
