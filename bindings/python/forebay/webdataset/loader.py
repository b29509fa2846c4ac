"""`WebLoader`: torch's loader, with the fluent chain behind it.

One rule: each time that torch's loader is begun, its data set plays the next epoch in every worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from forebay.errors import Invalid
from forebay.webdataset.pipeline import Pipeline
from forebay.webdataset.place import Epoch


class WebLoader(Pipeline):
    """torch's ``DataLoader`` with the steps of `WebDataset` behind it.

    Parameters
    ----------
    *args, **kw
        As for ``torch.utils.data.DataLoader``. Let the data set make batches and give
        ``batch_size=None``.

    Raises
    ------
    Invalid
        Without torch.
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        try:
            loading: Any = importlib.import_module("torch.utils.data")
        except ImportError as error:
            raise Invalid(
                f"WebLoader is torch's loader, and torch cannot be imported ({error}); install it, "
                "or iterate over the WebDataset itself"
            ) from error
        self._loader = loading.DataLoader(*args, **kw)
        dataset = self._loader.dataset
        super().__init__(dataset._seed if isinstance(dataset, Pipeline) else None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, here and in the data set.

        Parameters
        ----------
        epoch : int
            0 or more.
        """
        super().set_epoch(epoch)
        dataset = self._loader.dataset
        if isinstance(dataset, Pipeline):
            dataset.set_epoch(epoch)

    def _source(self, epoch: Epoch) -> Iterator[Any]:
        dataset, workers = self._loader.dataset, self._loader.num_workers > 0
        if workers and isinstance(dataset, Pipeline):
            # Workers are copies: they are told the epoch, and this one counts for them.
            dataset.set_epoch(dataset.epoch)
            batches: Iterator[Any] = iter(self._loader)
            dataset.set_epoch(dataset.epoch + 1)
            return batches
        return iter(self._loader)

    def __repr__(self) -> str:
        return f"<forebay.WebLoader {self._loader!r}: {len(self._stages)} steps>"
