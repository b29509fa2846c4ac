"""webdataset's environment variables, and their treatment here.

A variable that would change the bytes read, or the code run, is honoured or rejected by name,
never ignored; one that only places a cache is answered by a warning.
"""

from __future__ import annotations

import os
import re
import warnings
from urllib.parse import urlsplit

from forebay.errors import Invalid

# Depth to which a variable's value may name further variables.
_NESTED = 10

# Variables about webdataset's own cache, and the alternative here.
_NEEDLESS = {
    "WDS_CACHE": (
        "the daemon caches, for all jobs of the node at once; give the directory as FOREBAY_CACHE"
    ),
    "WDS_CACHE_SIZE": "give the size as FOREBAY_CAPACITY, as in 200GiB",
}

# Variables about webdataset's gateway, and the alternative here.
_REFUSED = {
    "USE_AIS_FOR": (
        "AIStore's own protocol is not supported; unset it and name its S3 address as "
        "AWS_ENDPOINT_URL_S3"
    ),
}


def check() -> None:
    """Reject variables that have another name here, and warn of those without effect.

    Raises
    ------
    Invalid
        Naming the variable and ours.
    """
    for name, advice in _NEEDLESS.items():
        if os.environ.get(name):
            warnings.warn(f"{name} has no effect: {advice}", stacklevel=2)
    for name, advice in _REFUSED.items():
        if os.environ.get(name):
            raise Invalid(f"{name} is set: {advice}", {"variable": name})
    if secure() and os.environ.get("GOPEN_REWRITE"):
        raise Invalid(
            "WDS_SECURE=1 forbids GOPEN_REWRITE; unset one of them", {"variable": "GOPEN_REWRITE"}
        )


def secure() -> bool:
    """Return true if ``WDS_SECURE`` forbids commands, rewritten URLs and data that runs code."""
    return _flag("WDS_SECURE", default=False)


def weights_only() -> bool:
    """Return true if ``.pth`` fields may hold only tensors (``WDS_PYTORCH_WEIGHTS_ONLY``)."""
    return _flag("WDS_PYTORCH_WEIGHTS_ONLY", default=False)


def seed() -> int | None:
    """Return the seed of ``WDS_SEED``, if that is set."""
    text = os.environ.get("WDS_SEED")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise Invalid(
            f"WDS_SEED is {text!r}, not a whole number; mend it, or give seed=",
            {"variable": "WDS_SEED"},
        ) from None


def filled(url: str) -> str:
    """Return `url` with each ``${var}`` replaced by the variable ``WDS_var``.

    Raises
    ------
    Invalid
        If one is not set.
    """
    for _ in range(_NESTED):
        was, url = url, re.sub(r"\$\{(\w+)\}", _value, url)
        if url == was:
            break
    return url


def rewritten(url: str) -> str:
    """Rewrite `url` by the first rule of ``GOPEN_REWRITE`` that matches its start.

    A rule is ``expression=replacement``; ``;`` separates them. Paths stay as they are.

    Raises
    ------
    Invalid
        For an invalid rule.
    """
    rules = os.environ.get("GOPEN_REWRITE")
    if not rules or urlsplit(url).scheme in ("", "file"):
        return url
    for rule in filter(None, rules.split(";")):
        old, equals, new = rule.partition("=")
        try:
            if not equals:
                raise re.error("no '='")
            made = re.sub(f"^{old}", new, url)
        except (re.error, IndexError) as error:
            raise Invalid(
                f"GOPEN_REWRITE has the invalid rule {rule!r} ({error}); write "
                "expression=replacement, with ';' between rules",
                {"variable": "GOPEN_REWRITE"},
            ) from None
        if made != url:
            return made
    return url


def _value(found: re.Match[str]) -> str:
    name = f"WDS_{found[1]}"
    try:
        return os.environ[name]
    except KeyError:
        raise Invalid(
            f"the URL names ${{{found[1]}}}, and {name} is not set; set it", {"variable": name}
        ) from None


def _flag(name: str, *, default: bool) -> bool:
    text = os.environ.get(name)
    if not text:
        return default
    if text not in ("0", "1"):
        raise Invalid(f"{name} is {text!r}; use 0 or 1", {"variable": name})
    return text == "1"
