"""Relative paths: they mean the folder in which their loader was made.

A loader that is used after ``os.chdir``, or is sent to a process elsewhere, reads the same files.
Commands (``pipe:``) are left as they are.
"""

from __future__ import annotations

import os
from typing import Any

_SOCKET = "unix:"


def here() -> str | None:
    """Return the current folder; None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def path(named: str, folder: str | None) -> str:
    """Return a path as absolute, without resolving links or ``..``."""
    return named if folder is None else os.path.join(folder, named)


def url(named: str, folder: str | None) -> str:
    """Return the URL of a shard; a path, also one after ``file:``, becomes absolute."""
    scheme, colon, rest = named.partition(":")
    if colon and (rest.startswith("//") or scheme == "hf" or scheme.strip().lower() == "pipe"):
        return named
    return path(rest if colon and scheme == "file" else named, folder)


def address(daemon: Any, folder: str | None) -> Any:
    """Return a daemon's address; a socket's path becomes absolute."""
    if isinstance(daemon, str) and daemon.startswith(_SOCKET) and len(daemon) > len(_SOCKET):
        return _SOCKET + path(daemon.removeprefix(_SOCKET), folder)
    return daemon


def file(named: Any, folder: str | None) -> Any:
    """Return the path of a file as absolute; URLs stay, and so do values that the check rejects."""
    found = os.fspath(named) if isinstance(named, os.PathLike) else named
    if not isinstance(found, str) or not found or "://" in found:
        return named
    return path(found, folder)


# Variables with a path that is read long after a loader was made, by this process or its daemon.
_VARIABLES = {"FOREBAY_TRACE": path, "FOREBAY_CACHE": path, "FOREBAY_DAEMON": address}


def settle_environment() -> None:
    """Make paths in variables absolute that are read later, also by processes started here."""
    for name, made in _VARIABLES.items():
        named = os.environ.get(name)
        settled = made(named, here()) if named else named
        if settled and settled != named:
            os.environ[name] = settled


def text(spec: str, folder: str | None) -> str:
    """Return a text that names shards, with its relative paths absolute and nothing expanded."""
    return "::".join(_part(part, folder) for part in spec.split("::"))


def _part(part: str, folder: str | None) -> str:
    # Braces at the start may hold absolute paths and schemes; such a part stays as it is.
    alternatives = part[1:].partition("}")[0].split(",") if part.startswith("{") else []
    if not part or any(one.startswith("/") for one in alternatives):
        return part
    return part if alternatives and "://" in part else url(part, folder)
