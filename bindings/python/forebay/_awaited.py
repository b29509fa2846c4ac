"""Checkpoints that this process saved, and a bounded wait until all of them are published.

The faces for frameworks share it: an upload that fails or takes long never fails a training step;
its reason is told at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from forebay import checkpoint
from forebay._values import number
from forebay.errors import Closed, ForebayError, Invalid, Unavailable

_log = logging.getLogger("forebay")

# Seconds that a run waits at its end by default. Other ranks go on meanwhile, perhaps to a
# collective; the shortest default of torch's process groups lets them wait 600 s there.
PATIENCE = 300.0

# Seconds for asking if a checkpoint is published by now. A daemon answers within milliseconds;
# without an answer it counts as not published, and the next save asks again.
QUESTION = 0.05

# Kinds of a checkpoint that is still on its way: the store is slow or down, or the daemon ended and
# goes on once another process of this user starts it.
_ON_ITS_WAY = (Unavailable, Closed)


def time_at_end(timeout: Any) -> float:
    """Return the seconds that the end of a run waits at most; 0 is no wait.

    Raises
    ------
    Invalid
        For any other value.
    """
    seconds = number("timeout", timeout)
    if seconds < 0:
        raise Invalid(f"timeout={timeout!r}: give seconds, or 0", {"option": "timeout"})
    return seconds


class Awaited:
    """URLs of checkpoints that were not published when last asked for, in the order of their saves.

    Parameters
    ----------
    daemon
        Address of the daemon, as of `forebay.checkpoint.wait`.
    """

    def __init__(self, daemon: str | None) -> None:
        self._daemon = daemon
        self._urls: dict[str, None] = {}

    def urls(self) -> list[str]:
        """Return the URLs."""
        return list(self._urls)

    def add(self, url: str) -> None:
        """Add a saved checkpoint, and forget those that are published by now."""
        self._forget_published()
        self.discard(url)
        self._urls[url] = None

    def discard(self, url: str) -> None:
        """Forget a checkpoint."""
        self._urls.pop(url, None)

    def is_published(self, url: str) -> bool:
        """Return True if the daemon says at once that a checkpoint is published."""
        try:
            checkpoint.wait(url, "published", QUESTION, daemon=self._daemon)
        except ForebayError:
            return False
        return True

    def _forget_published(self) -> None:
        # Uploads end about in the order of the saves, so the first that is not done ends the look.
        for url in self.urls():
            if not self.is_published(url):
                break
            self.discard(url)

    def settle(self, timeout: float, *, bar: bool) -> dict[str, ForebayError]:
        """Wait until all are published.

        Parameters
        ----------
        timeout
            Seconds to wait for all of them together.
        bar
            Show a progress bar if it takes longer than a second.

        Returns
        -------
        dict of str to ForebayError
            The reason for each URL that is not published: `Unavailable` or `Closed` if it is still
            on its way. Those that fail for good are forgotten.
        """
        self._forget_published()
        if not self._urls:
            return {}
        _log.info("waiting %g s at most for %d checkpoints", timeout, len(self._urls))
        # Every framework that has a face brings it.
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        missing: dict[str, ForebayError] = {}
        end = time.monotonic() + timeout
        shown = tqdm(
            self.urls(), desc="publishing checkpoints", delay=1, leave=False, disable=not bar
        )
        for url in shown:
            left = end - time.monotonic()
            try:
                if left <= 0:
                    raise Unavailable(f"not published within {timeout:g} s", {"url": url})
                checkpoint.wait(url, "published", left, daemon=self._daemon)
            except ForebayError as error:
                missing[url] = error
            if not isinstance(missing.get(url), _ON_ITS_WAY):
                self.discard(url)
        return missing


def tell(missing: Mapping[str, Exception]) -> None:
    """Log the reason of each checkpoint that is not published."""
    for url, error in missing.items():
        if isinstance(error, _ON_ITS_WAY):
            _log.warning(
                "%s is not published yet; the daemon goes on, and `forebay checkpoint ls` shows "
                "it: %s",
                url,
                error,
            )
        else:
            _log.error("%s is not published: %s", url, error)
