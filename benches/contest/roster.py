"""Who can take part: packages, versions, and what is swept of each contender.

Its rule: each is set up as its authors recommend, and where that depends on the machine all ways
are tried and the fastest counts. Who is not installed is named, with what would mend it.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handover import DIRECT, HANDOVER, THREAD, THREAD_UINT8, taken_ahead
from torch_workers import ahead

# Where a contender's files are, unless it has a tier of its own.
PAGE_CACHE = "page_cache"
# Workers of torch's DataLoader, and threads of those that have some; beside them as many as there
# are usable cores, if these are more.
WORKERS = (2, 4, 1, 0)
THREADS = (2, 4, 1)
DECODERS = ("pillow", "torchvision")
# A number of workers or threads is not tried if one on the way from it to the best one has less
# than this share of the best rate: it is further off.
HOPELESS = 0.5
# Batches that are ready at most before one is taken, of those who have no workers: four, and one
# for each thread that may be at work on another.
AHEAD = 4
# There if the machine has a GPU of NVIDIA's and its driver.
GPU = Path("/dev/nvidia0")
# An interpreter that imports torch takes seconds; one that takes minutes hangs.
PROBE_S = 300
# Errors of libraries run to pages.
WHY_MAX = 200
# Probes at a time: most of one is waiting for files.
PROBES = 2

# Says what is there: versions by distribution, and the first thing that cannot be imported.
PROBE = """
import importlib, json, sys
from importlib import metadata
modules, distributions, check = json.load(sys.stdin)
found = {"why": None, "versions": {}}
try:
    for module in modules:
        importlib.import_module(module)
    exec(check)
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}"
    found["absent"] = isinstance(error, ModuleNotFoundError)
for one in metadata.distributions():
    name = one.metadata["Name"]
    if name and name.lower().startswith(tuple(distributions)):
        found["versions"][name.lower()] = one.version
try:
    import isal
    found["isal"] = True
except ImportError:
    found["isal"] = False
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Rules:
    """What is known of a contender before it is looked for."""

    modules: tuple[str, ...]
    # What `pip install` wants, and by which names its version is found.
    package: str
    distributions: tuple[str, ...]
    # What is imported beside it if images are made.
    for_images: tuple[str, ...] = ()
    # The script that makes the data set in its own format.
    conversion: str | None = None
    # What fails if it cannot make images although it can be imported.
    check_images: str = ""
    # What mends that.
    beside: str = ""


TORCH_IMAGES = ("torchvision", "PIL")
RULES = {
    "forebay": Rules(("forebay", "torch"), "forebay torch", ("forebay", "torch"), (), "forebay"),
    "webdataset": Rules(
        ("webdataset", "torch"), "webdataset torch", ("webdataset", "torch"), TORCH_IMAGES
    ),
    "torch": Rules(("torch",), "torch", ("torch",), TORCH_IMAGES, "files"),
    "mosaic": Rules(
        ("streaming", "torch"),
        "mosaicml-streaming",
        ("mosaicml-streaming", "torch"),
        TORCH_IMAGES,
        "mosaic",
    ),
    "litdata": Rules(
        ("litdata", "torch"), "litdata", ("litdata", "torch"), TORCH_IMAGES, "litdata"
    ),
    "spdl": Rules(
        ("spdl.io", "spdl.pipeline"),
        "spdl",
        ("spdl",),
        # It finds FFmpeg's libraries when it first needs them.
        check_images="import spdl.io.utils; spdl.io.utils.get_ffmpeg_versions()",
        beside="it needs FFmpeg's shared libraries: apt-get install ffmpeg",
    ),
    "dali": Rules(("nvidia.dali",), "nvidia-dali-cuda120", ("nvidia-dali",), (), "dali"),
}
# What a contender needs whose batches a model trains on.
FOR_MODEL = """
import torch, torchvision
if not torch.cuda.is_available():
    raise RuntimeError("torch finds no GPU")
torchvision.models.get_model_builder(model)
"""
ON_TORCH = ("webdataset", "torch", "mosaic", "litdata")


@dataclass
class Tried:
    """A configuration that was tried."""

    configuration: dict[str, Any]
    # Samples per second where nobody computes; 0 of what could not be played.
    rate: float
    # Why it could not.
    why: str | None = None
    # The last accelerator that it was tried under: its speed over the nominal one, and AU_ideal.
    speed: float | None = None
    au: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the figures by name."""
        under = {} if self.speed is None else {"speed": self.speed, "au": self.au}
        failed = {} if self.why is None else {"why": self.why}
        return {**self.configuration, "unlimited_samples_per_second": self.rate, **under, **failed}


@dataclass
class Contender:
    """One that takes part."""

    # Its name in the report, and whose script and interpreter it has.
    name: str
    kind: str
    python: str
    version: str
    versions: dict[str, str]
    # What there is to set, with the values that are tried, and what won.
    settings: dict[str, tuple[Any, ...]]
    configuration: dict[str, Any] = field(default_factory=dict)
    # Where its bytes lie when they are warm.
    storage: str = PAGE_CACHE
    sweep: list[Tried] = field(default_factory=list)
    # The fastest accelerator that short runs found it to feed, over the nominal one.
    speed: float | None = None
    # Its figures so far.
    first_epoch: dict[str, Any] | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    sustained: dict[str, Any] | None = None


def probe(kind: str, python: str, images: bool, model: str | None) -> dict[str, Any]:
    """Ask `python` whether contender `kind` can play there, and `model` train if one is named."""
    rules = RULES[kind]
    modules = [*rules.modules, "numpy", *(rules.for_images if images else ())]
    names = [*rules.distributions, "torchvision", "numpy"]
    check = rules.check_images if images else ""
    if model is not None:
        check += f"\nmodel = {model!r}{FOR_MODEL}"
    try:
        answer = subprocess.run(
            [python, "-c", PROBE],
            input=json.dumps([modules, names, check]),
            stdout=subprocess.PIPE,
            text=True,
            timeout=PROBE_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"why": f"{python} cannot be asked: {error}", "absent": False}
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def why_not(kind: str, python: str, found: dict[str, Any]) -> str | None:
    """Return why contender `kind` does not play, with what would mend it."""
    if found["why"] is None:
        return None
    if found["absent"]:
        package = RULES[kind].package
        return f"{kind} is not installed for {python} ({found['why']}): pip install {package}"
    beside = RULES[kind].beside or "mend or replace that installation"
    return f"{kind} does not work in {python}: {found['why'][:WHY_MAX]}; {beside}"


def settings(kind: str, images: bool, model: str | None, usable: int) -> dict[str, tuple[Any, ...]]:
    """Return what is swept, setting by setting, what is most likely to be best first."""
    if kind in ON_TORCH:
        decoders = {"decode": DECODERS} if images else {}
        by: tuple[str, ...] = (THREAD_UINT8, THREAD) if images else (THREAD,)
        # To a GPU batches are brought ahead, which takes a thread.
        by = by if model else (*by, DIRECT)
        return {**decoders, "workers": numbers(WORKERS, usable), HANDOVER: by}
    if kind == "forebay":
        return {} if images else {"bytes": ("views",)}
    on_gpu = kind == "dali" and images and GPU.exists()
    device = {"device": ("gpu",)} if on_gpu else {}
    # A batch of bytes is some hundreds of objects to make; one of photos is there as a whole.
    views = {HANDOVER: (THREAD, DIRECT)} if kind == "dali" and not images else {}
    return {**device, "threads": numbers(THREADS, usable), **views}


def numbers(few: tuple[int, ...], usable: int) -> tuple[int, ...]:
    """Return `few` numbers of workers, and that of the usable cores if it is more."""
    return (*few[:2], usable, *few[2:]) if usable > max(few) else few


def is_hopeless(number: int, rates: dict[int, float]) -> bool:
    """Whether a number is further from the best one than one that is much worse."""
    if not rates or number == 0:
        # Without workers all is different.
        return False
    best = max(rates, key=lambda tried: rates[tried])
    between = [tried for tried in rates if number < tried < best or best < tried < number]
    return any(rates[tried] < HOPELESS * rates[best] for tried in between)


def most_ahead(kind: str, configuration: dict[str, Any]) -> int:
    """Return the batches that a contender has ready at most before one is taken."""
    if kind in ON_TORCH:
        return ahead(configuration)
    threads: int = configuration.get("threads", 0)
    return AHEAD + threads + taken_ahead(configuration)


def version(kind: str, found: dict[str, Any]) -> str:
    """Return the version of the contender's own package: others' names may begin with its name."""
    wanted = RULES[kind].distributions[0]
    versions: dict[str, str] = found["versions"]
    own = min((name for name in versions if name.startswith(wanted)), key=len, default=None)
    return "unknown" if own is None else versions[own]
