"""The arguments of a loader, checked before anything is opened.

One rule: whatever can be known to be wrong here is refused here, naming the argument.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay import _native
from forebay.errors import ForebayError, Invalid
from forebay.fields import Field, specification
from forebay.frameworks import NAMES

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
OnError = str | Callable[[ForebayError], str]

ON_ERROR = ("raise", "skip", "stop")

# Batches that wait ahead cost slab and output memory each; more than this is a mistake in a unit.
_PREFETCH_MAX = 1024

# Threads that run a transform; the interpreter's lock makes more than this pointless.
_WORKERS_MAX = 256

_U32 = 2**32 - 1
_U64 = 2**64 - 1


@dataclass(frozen=True)
class Options:
    """Checked arguments; see `forebay.DataLoader` for their meaning."""

    urls: list[str]
    counts: list[int] | None
    batch_size: int
    fields: Mapping[str, Field] | None
    transform: Callable[[dict[str, Any]], Any] | None
    workers: int
    shuffle: str
    window: int
    seed: int
    drop_last: bool
    pad_last: bool
    epoch_samples: int | None
    on_error: OnError
    max_errors: int | None
    rank: int | None
    world_size: int | None
    lanes: int | None
    pin_memory: bool
    framework: str | None
    prefetch: int
    timeout: float
    daemon: str | None
    job: str

    def spec(self) -> list[dict[str, Any]] | None:
        """The fields as the native side reads them."""
        return None if self.fields is None else specification(self.fields)

    def views(self) -> list[str]:
        """Fields handed out as they lie in the slab."""
        fields = self.fields or {}
        return [name for name, field in fields.items() if getattr(field, "copy", True) is False]


def check(
    *,
    urls: Urls,
    batch_size: int,
    fields: Mapping[str, Field] | None,
    transform: Callable[[dict[str, Any]], Any] | None,
    workers: int,
    shuffle: bool | str,
    window: int,
    seed: int,
    drop_last: bool,
    pad_last: bool,
    epoch_samples: int | None,
    manifest: str | os.PathLike[str] | None,
    on_error: OnError,
    max_errors: int | None,
    rank: int | None,
    world_size: int | None,
    lanes: int | None,
    split: str,
    uneven: bool,
    device: Any,
    pin_memory: bool | None,
    framework: str | None,
    prefetch: int,
    timeout: float,
    daemon: str | None,
    job: str | None,
) -> Options:
    """Check every argument of a loader.

    Raises
    ------
    Invalid
        Naming the first one that makes no sense.
    """
    if drop_last and pad_last:
        raise Invalid("drop_last and pad_last exclude each other; choose one")
    if transform is not None and not callable(transform):
        raise Invalid(f"transform= takes a function of the batch, not {transform!r}")
    if not callable(on_error) and on_error not in ON_ERROR:
        raise _wrong("on_error", on_error, "use 'raise', 'skip', 'stop' or a function of the error")
    if framework is not None and framework not in NAMES:
        raise _wrong("framework", framework, "use 'torch', 'jax' or 'numpy', or leave it unset")
    if pin_memory and framework in ("jax", "numpy"):
        raise _wrong("pin_memory", pin_memory, f"{framework} cannot pin memory; leave it unset")
    _not_yet(split, uneven, device)
    if (rank is None) != (world_size is None):
        raise Invalid("rank and world_size come together; give both or neither")
    if fields is not None:
        _native.check_fields(json.dumps(specification(fields)))
    listed = _expand(urls)
    return Options(
        urls=listed,
        counts=None if manifest is None else _native.counts(os.fspath(manifest), listed),
        batch_size=_whole("batch_size", batch_size, 1, _U32),
        fields=None if fields is None else dict(fields),
        transform=transform,
        workers=_whole("workers", workers, 0, _WORKERS_MAX),
        shuffle=_shuffle(shuffle),
        window=_whole("window", window, 1, _U32),
        seed=_whole("seed", seed, 0, _U64),
        drop_last=bool(drop_last),
        pad_last=bool(pad_last),
        epoch_samples=_maybe("epoch_samples", epoch_samples, 1, _U64),
        on_error=on_error,
        max_errors=_maybe("max_errors", max_errors, 0, _U64),
        rank=_maybe("rank", rank, 0, _U32),
        world_size=_maybe("world_size", world_size, 1, _U32),
        lanes=_maybe("lanes", lanes, 1, _U32),
        pin_memory=bool(pin_memory),
        framework=framework,
        prefetch=_whole("prefetch", prefetch, 1, _PREFETCH_MAX),
        timeout=_seconds(timeout),
        daemon=_daemon(daemon),
        job=job or f"{os.path.basename(sys.argv[0] or 'python')}:{os.getpid()}",
    )


def _wrong(option: str, value: Any, advice: str) -> Invalid:
    return Invalid(f"{option}={value!r} is not known; {advice}", {"option": option})


def _not_yet(split: str, uneven: bool, device: Any) -> None:
    if split == "dynamic":
        raise Invalid("split='dynamic' is not in this release; leave split unset")
    if split != "static":
        raise _wrong("split", split, "use 'static', or leave it unset")
    if uneven:
        raise Invalid(
            "uneven=True belongs to split='dynamic', which is not in this release; leave it unset"
        )
    if device is not None and str(device) != "cpu":
        if str(device).split(":")[0] == "cuda":
            raise Invalid(
                f"device={str(device)!r}: decoding on a GPU is not in this release; leave device "
                "unset and move batches with .to()",
                {"option": "device"},
            )
        raise _wrong("device", device, "leave device unset")


def _whole(option: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise Invalid(f"{option}={value!r} is no whole number", {"option": option})
    number = int(value.__index__())
    if not low <= number <= high:
        raise Invalid(f"{option}={number} is out of range; use {low} to {high}", {"option": option})
    return number


def _maybe(option: str, value: Any, low: int, high: int) -> int | None:
    return None if value is None else _whole(option, value, low, high)


def _seconds(timeout: Any) -> float:
    good = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not good or not math.isfinite(timeout) or timeout <= 0:
        raise Invalid(f"timeout={timeout!r}; give seconds above 0", {"option": "timeout"})
    return float(timeout)


def _shuffle(shuffle: bool | str) -> str:
    if shuffle is True:
        return "window"
    if shuffle is False:
        return "none"
    if shuffle in ("none", "window", "global"):
        return shuffle
    raise _wrong("shuffle", shuffle, "use False ('none'), True ('window') or 'global'")


def _daemon(daemon: str | None) -> str | None:
    named = daemon or os.environ.get("FOREBAY_DAEMON") or None
    if named is None or named == "embedded":
        return named
    if isinstance(named, str) and named.startswith("unix:") and len(named) > len("unix:"):
        return named
    raise _wrong("daemon", named, "use 'embedded' or 'unix:/path/to/forebayd.sock', or leave it")


def _expand(urls: Urls) -> list[str]:
    if isinstance(urls, (str, os.PathLike)):
        return _native.expand(spec=os.fspath(urls))
    try:
        listed = [os.fspath(url) for url in urls]
    except TypeError:
        raise Invalid(f"urls={urls!r}: give a URL or a list of URLs", {"option": "urls"}) from None
    return _native.expand(urls=listed)
