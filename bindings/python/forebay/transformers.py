"""Hugging Face's Trainer: checkpoints go to a store through the node, and come back on any machine.

>>> from forebay.transformers import CheckpointCallback, restore  # doctest: +SKIP
>>> url = "s3://bucket/run"  # doctest: +SKIP
>>> trainer = Trainer(model, args, callbacks=[CheckpointCallback(url)], ...)  # doctest: +SKIP
>>> trainer.train(resume_from_checkpoint=restore(url, args.output_dir))  # doctest: +SKIP

The Trainer writes ``output_dir/checkpoint-N`` as ever. The callback publishes each such folder as
one checkpoint, ``url/checkpoint-N``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable
from typing import Any

from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from forebay import checkpoint, ranks
from forebay._awaited import PATIENCE, Awaited, tell, time_at_end
from forebay._values import flag
from forebay.checkpoint._way import TIMEOUT, Way, checked
from forebay.errors import ForebayError, Invalid, NotFound

__all__ = ["CheckpointCallback", "restore"]

_log = logging.getLogger("forebay")

# State of the loader, beside the Trainer's files.
_LOADER = "forebay_loader.json"

# State of a rank's random numbers. The Trainer resumes without those of other nodes' ranks.
_OF_A_RANK = re.compile(r"rng_state_\d+\.pth")


class CheckpointCallback(TrainerCallback):
    """Publishes each checkpoint that the Trainer saves: ``callbacks=[CheckpointCallback(url)]``.

    A save returns once the folder's files are durable on the node of rank 0, which saves them all.
    So with several nodes ``output_dir`` is a shared folder; one node's disk suffices where rank 0
    writes everything that a resume needs, as with DDP. A failed push or upload never fails the
    training: the log (``forebay``) says so at once and at the end.

    Parameters
    ----------
    url
        URL of the run, such as ``s3://bucket/run``. Each run needs one of its own.
    loader
        A `forebay.DataLoader`, the one that ``get_train_dataloader`` returns. Its state goes with
        each checkpoint, for `restore`. It needs ``TrainingArguments(ignore_data_skip=True)``.
    strict
        Raise if a push fails, and at the end of the training if a checkpoint is not published.
    overwrite
        Replace checkpoints of the same step that are published. A reader of the old one may find
        files of both meanwhile.
    timeout
        Seconds that the end of the training waits at most until all checkpoints are published; 0
        for no wait. The daemon goes on afterwards.
    progress
        Show a bar while it waits, unless ``disable_tqdm`` says otherwise.
    daemon, job
        As of `forebay.checkpoint.open`.

    Attributes
    ----------
    failures : dict of str to Exception
        URLs of checkpoints that are not published, each with the reason. On rank 0 only.
    """

    def __init__(
        self,
        url: str,
        *,
        loader: Any = None,
        strict: bool = False,
        overwrite: bool = False,
        timeout: float = PATIENCE,
        progress: bool = True,
        daemon: str | None = None,
        job: str | None = None,
    ) -> None:
        self._url = checked(url)
        self._loader = loader
        self._strict = flag("strict", strict)
        self._overwrite = flag("overwrite", overwrite)
        self._timeout = time_at_end(timeout)
        self._progress = flag("progress", progress)
        self._daemon = Way.of(daemon, TIMEOUT).daemon
        self._job = job
        self._awaited = Awaited(self._daemon)
        self.failures: dict[str, Exception] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Reject a Trainer that would skip batches of a loader that stands behind them.

        Raises
        ------
        Invalid
            With ``loader=`` and without ``ignore_data_skip=True``.
        """
        if self._loader is not None and not args.ignore_data_skip:
            raise Invalid(
                "loader= resumes where it was, so the Trainer must not skip batches: set "
                "TrainingArguments(ignore_data_skip=True)",
                {"option": "ignore_data_skip"},
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Publish the folder that the Trainer saved.

        Raises
        ------
        ForebayError, OSError
            With ``strict=True``, if that fails. `Full` if there is no room.
        """
        name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        assert args.output_dir is not None
        folder, url = os.path.join(args.output_dir, name), f"{self._url}/{name}"
        try:
            elsewhere = self._complete(folder, state)
            if not state.is_world_process_zero:
                return
            self._push(folder, url, elsewhere, state.global_step)
        except (ForebayError, OSError) as error:
            self.failures[url] = error
            _log.error("%s is not published: %s", url, error)
            if self._strict:
                raise

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Wait, bounded, until all checkpoints are published, and tell which are not.

        Raises
        ------
        ForebayError, OSError
            With ``strict=True``, the reason of the first one that is not published.
        """
        if not state.is_world_process_zero:
            return
        is_shown = self._progress and not args.disable_tqdm
        self.failures |= self._awaited.settle(self._timeout, bar=is_shown)
        tell(self.failures)
        if self._strict and self.failures:
            raise next(iter(self.failures.values()))

    def _complete(self, folder: str, state: TrainerState) -> list[str]:
        """Wait until all ranks have written; return names that only other nodes have.

        Raises
        ------
        ForebayError, OSError
            If the loader's state cannot be had or written, after all ranks have met.
        """
        is_alone = not (distributed.is_available() and distributed.is_initialized())
        failure: ForebayError | OSError | None = None
        position = None
        try:
            # A state of a shared queue is whole once every rank was asked.
            position = None if self._loader is None else self._loader.state_dict()
        except ForebayError as error:
            failure = error
        if not is_alone:
            distributed.barrier()
        if position is not None and state.is_world_process_zero and os.path.isdir(folder):
            try:
                with open(os.path.join(folder, _LOADER), "w") as file:
                    json.dump(position if is_alone else self._loader.state_dict(), file)
            except (ForebayError, OSError) as error:
                failure = error
        mine = _names(folder) if state.is_local_process_zero else set()
        all_names = [mine]
        if not is_alone:
            all_names *= distributed.get_world_size()
            distributed.all_gather_object(all_names, mine)
        if failure is not None:
            raise failure
        return sorted(set().union(*all_names) - mine)

    def _push(self, folder: str, url: str, elsewhere: list[str], step: int) -> None:
        needed = [name for name in elsewhere if not _OF_A_RANK.fullmatch(name)]
        if needed:
            raise Invalid(
                f"{folder} lacks {needed[0]} and {len(needed) - 1} more, which other nodes have on "
                "disks of their own: let output_dir be a folder that all nodes share",
                {"option": "output_dir", "path": folder},
            )
        checkpoint.push(
            folder, url, step=step, overwrite=self._overwrite, daemon=self._daemon, job=self._job
        )
        self.failures.pop(url, None)
        self._awaited.add(url)


def restore(
    url: str,
    output_dir: str | os.PathLike[str],
    *,
    loader: Any = None,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
) -> str | None:
    """Bring the newest published checkpoint of a run to this node: ``output_dir/checkpoint-N``.

    A folder of that name is replaced as a whole. Call it on all ranks, once ``TrainingArguments``
    are made: of the ranks that share a folder, the first restores it.

    Parameters
    ----------
    url
        URL of the run, as of `CheckpointCallback`.
    output_dir
        Folder of the run, that of ``TrainingArguments``.
    loader
        Loader that continues where the checkpoint was saved, as of `CheckpointCallback`.
    daemon, timeout
        As of `forebay.checkpoint.open`.

    Returns
    -------
    str or None
        Local folder for ``resume_from_checkpoint=``; None if nothing was published, to start anew.

    Raises
    ------
    Invalid
        If this process is one of several and their process group is not there.
    NotFound
        If the checkpoint has no state of a loader.
    Corrupt
        If the bytes are not those that were saved.
    """
    place = ranks.resolve(None, None)
    is_group = distributed.is_available() and distributed.is_initialized()
    if place.world_size > 1 and not is_group:
        raise Invalid(
            f"this is one of {place.world_size} ranks, which agree by torch.distributed: make "
            "TrainingArguments before",
            {"option": "output_dir"},
        )
    newest = checkpoint.latest(url, daemon=daemon, timeout=timeout)
    if newest is None:
        return None
    folder = os.path.join(os.path.abspath(output_dir), newest.rpartition("/")[2])
    if is_group:
        _bring_to_all(newest, folder, daemon, timeout)
    else:
        _bring(newest, folder, daemon, timeout)
    if loader is not None:
        try:
            with open(os.path.join(folder, _LOADER)) as file:
                loader.load_state_dict(json.load(file))
        except FileNotFoundError:
            raise NotFound(
                f"{newest} has no state of a loader: save it with CheckpointCallback(loader=…)",
                {"url": newest, "option": "loader"},
            ) from None
    return folder


def _bring(url: str, folder: str, daemon: str | None, timeout: float) -> None:
    """Restore a checkpoint aside, and rename its folder when it is whole."""
    parent, name = os.path.split(folder)
    # The Trainer takes any folder called checkpoint-N for a whole one.
    aside = os.path.join(parent, f".{name}.restoring")
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(aside)
    try:
        fresh = os.path.join(aside, "fresh")
        checkpoint.restore(url, fresh, daemon=daemon, timeout=timeout)
        if os.path.lexists(folder):
            os.rename(folder, os.path.join(aside, "replaced"))
        os.rename(fresh, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _bring_to_all(url: str, folder: str, daemon: str | None, timeout: float) -> None:
    """Restore a checkpoint on all nodes, once where ranks share the folder.

    Raises
    ------
    ForebayError, OSError
        On all ranks, if one fails.
    """
    rank = distributed.get_rank()
    drawn = [secrets.token_hex(8)]
    distributed.broadcast_object_list(drawn, src=0)

    def sign(of: int) -> str:
        return os.path.join(os.path.dirname(folder), f".{drawn[0]}.{of}")

    def place_sign() -> None:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        open(sign(rank), "x").close()

    def restore_if_first() -> None:
        # Ranks that see a sign see the folder of the rank that placed it.
        if not any(os.path.exists(sign(other)) for other in range(rank)):
            _bring(url, folder, daemon, timeout)

    def together(step: Callable[[], None]) -> None:
        failed: Exception | None = None
        try:
            step()
        except (ForebayError, OSError) as error:
            failed = error
        outcomes: list[Exception | None] = [None] * distributed.get_world_size()
        distributed.all_gather_object(outcomes, failed)
        for outcome in filter(None, outcomes):
            raise outcome

    try:
        together(place_sign)
        together(restore_if_first)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(sign(rank))


def _names(folder: str) -> set[str]:
    """Return the files below a folder, by their paths in it."""
    return {
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder)
        for name in names
    }
