"""Lightning's checkpoints through the node: a ``CheckpointIO`` for ``Trainer`` and ``Fabric``.

>>> import lightning  # doctest: +SKIP
>>> from lightning.pytorch.callbacks import ModelCheckpoint  # doctest: +SKIP
>>> from forebay.lightning import CheckpointIO, existing  # doctest: +SKIP
>>> trainer = lightning.Trainer(  # doctest: +SKIP
...     plugins=[CheckpointIO()],
...     callbacks=[ModelCheckpoint(dirpath="s3://bucket/run", save_last=True)],
... )
>>> trainer.fit(model, ckpt_path=existing("s3://bucket/run/last.ckpt"))  # doctest: +SKIP

A save returns once it is durable on this node; the daemon uploads it behind the training. It works
with ``lightning`` and with ``pytorch_lightning``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forebay._awaited import PATIENCE, Awaited, tell, time_at_end
from forebay._values import flag
from forebay.checkpoint import open as open_file
from forebay.checkpoint import remove
from forebay.checkpoint._files import exists
from forebay.checkpoint._way import TIMEOUT, Way, checked, split
from forebay.errors import Invalid, NotFound

if TYPE_CHECKING:
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO as _Base
else:
    _Base = object

__all__ = ["CheckpointIO", "existing"]

_log = logging.getLogger("forebay")

# Packages of Lightning, and the module of the base class of each. They are different classes, and
# `pip install lightning` installs both packages.
_PACKAGES = {
    "lightning": "lightning.fabric.plugins.io.checkpoint_io",
    "pytorch_lightning": "lightning_fabric.plugins.io.checkpoint_io",
}

# Name by which a strategy that starts processes hands weights to its parent, on the node's disk.
_BETWEEN_PROCESSES = ".temp.ckpt"

# Seconds for a removal, which the training waits for: a few requests to a store that answers.
_REMOVAL = 10.0


def _on_cpu(storage: Any, _location: str) -> Any:
    """Keep a storage on the CPU: Lightning moves states to devices by itself."""
    return storage


class CheckpointIO(_Base):
    """Saves and loads the checkpoints of ``Trainer(plugins=[CheckpointIO()])``.

    ``ModelCheckpoint`` looks at the store through fsspec: for ``s3://`` install ``s3fs``. It does
    not see a checkpoint that is on its way, so give it names with ``{step}`` or ``{epoch}``, as its
    default has.

    Parameters
    ----------
    timeout
        Seconds that the end of a ``fit`` waits at most until its checkpoints are published; 0 for
        no wait. The daemon goes on afterwards. A run that fails or is interrupted never waits.
    strict
        Raise at the end of a ``fit`` if a checkpoint is not published, instead of a line in the
        log (``forebay``).
    progress
        Show a bar while it waits.
    daemon, job
        As of `forebay.checkpoint.open`.

    Raises
    ------
    Invalid
        If neither package of Lightning is installed, or for an argument out of range.
    """

    # Lightning gives `weights_only`.
    _is_told: bool

    def __new__(cls, *_: Any, **__: Any) -> CheckpointIO:
        """Become an instance of Lightning's class, in copies as well."""
        made = super().__new__(cls)
        made._is_told = all(tells(base) for base in _register(cls))
        return made

    def __init__(
        self,
        *,
        timeout: float = PATIENCE,
        strict: bool = False,
        progress: bool = True,
        daemon: str | None = None,
        job: str | None = None,
    ) -> None:
        self._timeout = time_at_end(timeout)
        self._strict = flag("strict", strict)
        self._progress = flag("progress", progress)
        self._daemon = Way.of(daemon, TIMEOUT).daemon
        self._job = job
        self._awaited = Awaited(self._daemon)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save a state; it is durable on this node afterwards.

        Parameters
        ----------
        checkpoint
            State, as Lightning makes it.
        path
            URL or path.
        storage_options
            None.

        Raises
        ------
        Invalid
            For ``storage_options`` and for a URL that nothing can be saved to.
        Full
            If there is no room.
        PermissionDenied
            If no ``[[checkpoint]]`` of the node lets this user save there.
        """
        if storage_options is not None:
            raise Invalid(
                "storage_options: the daemon has its own; give options to CheckpointIO",
                {"option": "storage_options"},
            )
        torch = importlib.import_module("torch")
        if _is_between_processes(path):
            torch.save(checkpoint, path)
            return
        url = checked(path)
        with open_file(url, "wb", daemon=self._daemon, job=self._job) as file:
            torch.save(checkpoint, file)
        self._awaited.add(url)
        _refresh(url)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = _on_cpu,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a state, from this node's disk or from the store.

        Parameters
        ----------
        path
            URL or path.
        map_location
            As of ``torch.load``; by default everything stays on the CPU.
        weights_only
            As of ``torch.load``, where None means True since torch 2.6. Give it to
            ``Trainer.fit``. Lightning before 2.6 does not say, and means False.

        Raises
        ------
        NotFound
            If there is no such checkpoint.
        Corrupt
            If its bytes are not those that were saved.
        """
        torch = importlib.import_module("torch")
        if weights_only is None and not self._is_told:
            weights_only = False
        options = {"map_location": map_location, "weights_only": weights_only}
        if _is_between_processes(path):
            return dict(torch.load(path, **options))
        with open_file(path, daemon=self._daemon) as file:
            state: dict[str, Any] = torch.load(file, **options)
            return state

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint that ``ModelCheckpoint`` does not keep, also one on its way.

        If that fails, the log (``forebay``) says so, and the object stays.
        """
        if _is_between_processes(path):
            os.remove(path)
            return
        url = checked(path)
        self._awaited.discard(url)
        try:
            try:
                remove(url, daemon=self._daemon, timeout=_REMOVAL)
            except (NotFound, Invalid):
                # Another node saved it, or another tool.
                _remove_object(url)
        except Exception as error:
            # Each store has errors of its own, and none may end the training.
            _log.warning("%s stays in the store: it cannot be removed: %s", url, error)

    def teardown(self) -> None:
        """Wait, bounded, until all checkpoints of this process are published.

        Raises
        ------
        Unavailable, Invalid, Corrupt, PermissionDenied
            With ``strict=True``, the reason of the first one that is not published.
        """
        # A run that ends by an exception must end now; Lightning ignores Ctrl-C from here on.
        failed = sys.exc_info()[0] is not None
        saved = self._awaited.urls()
        missing = self._awaited.settle(0 if failed else self._timeout, bar=self._progress)
        for url in saved:
            _refresh(url)
        tell(missing)
        if self._strict and missing and not failed:
            raise next(iter(missing.values()))


def existing(url: str, *, daemon: str | None = None, timeout: float = TIMEOUT) -> str | None:
    """Return the URL if a checkpoint is there, for ``ckpt_path=``; None starts anew.

    ``ckpt_path="last"`` finds nothing in object stores, and Lightning starts anew silently.

    Parameters
    ----------
    url
        URL of a checkpoint, such as ``s3://bucket/run/last.ckpt``. One that this node saved counts
        before it is published; all nodes of a run agree once it is.
    daemon, timeout
        As of `forebay.checkpoint.open`.

    Raises
    ------
    Unavailable, PermissionDenied
        If the store does not say.
    """
    return url if exists(split(url), Way.of(daemon, timeout)) else None


def tells(base: Any) -> bool:
    """Return True if a release of Lightning, by its base class, says if it trusts a state."""
    return "weights_only" in inspect.signature(base.load_checkpoint).parameters


def _register(cls: type[CheckpointIO]) -> list[type]:
    """Make `cls` a subclass of the base classes that this process may use, and return them.

    Raises
    ------
    Invalid
        If Lightning is not installed.
    """
    loaded = [name for name in _PACKAGES if name in sys.modules]
    used = loaded or [name for name in _PACKAGES if importlib.util.find_spec(name) is not None]
    if not used:
        raise Invalid(
            "forebay.lightning needs the package lightning or pytorch_lightning; install one",
            {"option": "plugins"},
        )
    bases = [importlib.import_module(_PACKAGES[name]).CheckpointIO for name in used]
    for base in bases:
        base.register(cls)
    return bases


def _is_between_processes(path: str | os.PathLike[str]) -> bool:
    return os.path.basename(os.fspath(path)) == _BETWEEN_PROCESSES


def _store(url: str) -> tuple[Any, str]:
    """Return the file system by which ``ModelCheckpoint`` looks at a URL, and its name there."""
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    store, name = url_to_fs(url)
    return store, name


def _refresh(url: str) -> None:
    """Forget remembered listings: the daemon wrote behind their back.

    By an old one ``ModelCheckpoint`` takes the name of an object for free, and overwrites it.
    """
    # Without its file system nobody looked at the store by it.
    with suppress(ImportError, ValueError):
        _store(url)[0].invalidate_cache()


def _remove_object(url: str) -> None:
    """Remove an object as ``ModelCheckpoint`` sees it, with this process's credentials."""
    store, name = _store(url)
    # One that is gone already is as wanted.
    with suppress(FileNotFoundError):
        store.rm_file(name)
