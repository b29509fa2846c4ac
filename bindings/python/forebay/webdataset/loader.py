"""`WebLoader`: torch's loader with the fluent chain after it.

Each iteration of torch's loader plays the data set's next epoch in every worker.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from forebay import _foreign
from forebay._stop import Guarded
from forebay.errors import Invalid
from forebay.webdataset.pipeline import Pipeline
from forebay.webdataset.place import Epoch

# Arguments that are functions of the user.
_CALLED = ("collate_fn", "worker_init_fn")


class WebLoader(Pipeline):
    """torch's ``DataLoader`` with the stages of `WebDataset` after it.

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
        known = list(inspect.signature(loading.DataLoader.__init__).parameters)[1:]
        for name in kw:
            if name not in known:
                raise _foreign.unknown_argument("WebLoader", name, known, _foreign.WEBLOADER)
        # torch takes a StopIteration of these for the end of the data.
        args = tuple(map(_guarded, known, args)) + args[len(known) :]
        kw = {name: _guarded(name, value) for name, value in kw.items()}
        self._loader = loading.DataLoader(*args, **kw)
        dataset = self._loader.dataset
        super().__init__(dataset._seed if isinstance(dataset, Pipeline) else None)
        # The data set's epoch at the start of the current iteration.
        self._dataset_epoch = self._its_epoch()

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue the loaded one."""
        self._dataset_epoch = self._its_epoch()
        return super().__iter__()

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

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch, after those that this object delivered.

        Returns
        -------
        dict
            Numbers and text only: fit for JSON, pickle and ``torch.save``.
        """
        epoch = self._its_epoch() if self._at is None else self._dataset_epoch
        return super().state_dict() | {"dataset_epoch": epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`: the next iteration plays its epoch, in the data set
        too, and skips the delivered part.

        Parameters
        ----------
        state : dict
            From `state_dict` of the same loader.

        Raises
        ------
        Invalid
            Naming the difference.
        """
        super().load_state_dict(state)
        dataset = self._loader.dataset
        if isinstance(dataset, Pipeline):
            dataset.set_epoch(state.get("dataset_epoch"))  # type: ignore[arg-type]

    def _its_epoch(self) -> int:
        dataset = self._loader.dataset
        return dataset.epoch if isinstance(dataset, Pipeline) else 0

    def _described(self) -> dict[str, Any]:
        dataset = self._loader.dataset
        its = dataset._described() if isinstance(dataset, Pipeline) else None
        return super()._described() | {"dataset": its, "num_workers": self._loader.num_workers}

    def _source(self, epoch: Epoch) -> Iterator[Any]:
        dataset, workers = self._loader.dataset, self._loader.num_workers > 0
        if workers and isinstance(dataset, Pipeline):
            # Workers are copies: they receive the epoch, and this one counts for them.
            dataset.set_epoch(dataset.epoch)
            batches: Iterator[Any] = iter(self._loader)
            dataset.set_epoch(dataset.epoch + 1)
            return batches
        return iter(self._loader)

    def __repr__(self) -> str:
        return f"<forebay.WebLoader {self._loader!r}: {len(self._stages)} steps>"


def _guarded(name: str, value: Any) -> Any:
    return value if name not in _CALLED or value is None else Guarded(value)
