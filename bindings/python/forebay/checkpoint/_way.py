"""Way to the daemon that saves and restores."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from forebay import _launch, _paths
from forebay._options import daemon_address, time_limit
from forebay.errors import Invalid

# Seconds for one answer of the daemon. A block takes milliseconds; a store that is slow to answer a
# question takes its retries, a minute at most.
TIMEOUT = 120.0

# A URL that went through pathlib, which keeps one of its two slashes. `file:/path` is one as it is.
_SHORTENED = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


@dataclass(frozen=True)
class Way:
    """Address of the daemon, and the seconds it has for each answer."""

    daemon: str | None
    timeout: float

    @classmethod
    def of(cls, daemon: str | None, timeout: float) -> Way:
        """Check the arguments; paths become absolute."""
        _paths.settle_environment()
        return cls(daemon_address(daemon), time_limit(timeout))

    def native(self) -> tuple[str | None, list[str], float]:
        """Return the arguments of the native half."""
        return self.daemon, _launch.daemon(), self.timeout


def checked(url: str | os.PathLike[str]) -> str:
    """Return the URL of a checkpoint; a path becomes absolute, and a slash at the end goes."""
    named = os.fspath(url)
    if not isinstance(named, str) or not named.strip("/"):
        raise Invalid(f"a checkpoint needs a URL, not {url!r}", {"option": "url"})
    if _SHORTENED.match(named):
        raise Invalid(
            f"{named!r} lost a slash: give a URL as text, for pathlib.Path keeps one of the two",
            {"option": "url"},
        )
    return _paths.url(named.rstrip("/"), _paths.here())


def split(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Return folder and name of a file's URL."""
    folder, slash, name = checked(url).rpartition("/")
    if not slash or not folder or folder.endswith(":/") or not name:
        raise Invalid(f"{url!s} names no file", {"option": "url"})
    return folder, name
