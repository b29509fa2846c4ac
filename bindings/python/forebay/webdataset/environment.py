"""The variables that webdataset reads, and what becomes of them here.

One rule: a variable that would change which bytes are read, or what runs, is honoured or refused
by name; it is never ignored.
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from forebay.errors import Invalid

# How often a variable's value may itself name a variable.
_NESTED = 10

# Variables about a cache or a gateway of webdataset's own, and our way to the same end.
_REFUSED = {
    "WDS_CACHE": (
        "the daemon caches, for all jobs of the node at once; unset it and give the directory as "
        "FOREBAY_CACHE"
    ),
    "WDS_CACHE_SIZE": "unset it and give the size as FOREBAY_CAPACITY, as in 200GiB",
    "USE_AIS_FOR": (
        "AIStore's own protocol is not spoken here; unset it and name its S3 address as "
        "AWS_ENDPOINT_URL_S3"
    ),
}


def check() -> None:
    """Refuse the variables that have another name here.

    Raises
    ------
    Invalid
        Naming the variable and ours.
    """
    for name, advice in _REFUSED.items():
        if os.environ.get(name):
            raise Invalid(f"{name} is set: {advice}", {"variable": name})
    if secure() and os.environ.get("GOPEN_REWRITE"):
        raise Invalid(
            "WDS_SECURE=1 forbids GOPEN_REWRITE; unset one of them", {"variable": "GOPEN_REWRITE"}
        )


def secure() -> bool:
    """Whether ``WDS_SECURE`` forbids commands, rewritten URLs and data that runs code."""
    return _flag("WDS_SECURE", default=False)


def weights_only() -> bool:
    """Whether ``.pth`` fields may hold tensors alone (``WDS_PYTORCH_WEIGHTS_ONLY``)."""
    return _flag("WDS_PYTORCH_WEIGHTS_ONLY", default=False)


def seed() -> int | None:
    """The seed of ``WDS_SEED``, if that is set."""
    text = os.environ.get("WDS_SEED")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise Invalid(
            f"WDS_SEED is {text!r}, no whole number; mend it, or give seed=",
            {"variable": "WDS_SEED"},
        ) from None


def filled(url: str) -> str:
    """`url` with each ``${var}`` replaced by the variable ``WDS_var``.

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
    """`url` as the first rule of ``GOPEN_REWRITE`` that fits its start makes it.

    A rule is ``expression=replacement``; ``;`` separates them. Paths are left as they are.

    Raises
    ------
    Invalid
        For a rule that is none.
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
                f"GOPEN_REWRITE has the rule {rule!r}, which is none ({error}); write "
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
