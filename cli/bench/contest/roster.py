"""The contenders: packages, versions, and the settings swept for each.

Each contender is set up as its authors recommend. Where that depends on the machine, all ways are
tried and the fastest counts. A contender that is not installed is named, with the command to
install it.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handover import DIRECT, HANDOVER, THREAD, THREAD_UINT8, taken_ahead
from torch_workers import ahead

# Storage of a contender without a tier of its own.
PAGE_CACHE = "page_cache"
# Workers of torch's DataLoader and threads of other loaders; the number of usable cores is added if
# it is larger.
WORKERS = (2, 4, 1, 0)
THREADS = (2, 4, 1)
DECODERS = ("pillow", "torchvision")
# Another decoder, tried where it is installed.
TORCHCODEC = "torchcodec"
# A number of workers or threads is not tried if one on the way from it to the best one has less
# than this share of the best rate: it is further off.
HOPELESS = 0.5
# Batches that are ready at most before one is taken, of those who have no workers: four, and one
# for each thread that may be at work on another.
AHEAD = 4
# Present if the machine has an NVIDIA GPU and its driver.
GPU = Path("/dev/nvidia0")
# An interpreter that imports torch takes seconds; one that takes minutes hangs.
PROBE_S = 300
# Errors of libraries run to pages.
WHY_MAX = 200
# Probes at a time: most of one is waiting for files.
PROBES = 2

# Reports versions by distribution, and the first import that fails.
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
for name, is_wanted in (("isal", True), ("torchcodec.decoders", "torch" in modules)):
    found[name] = is_wanted
    try:
        if is_wanted:
            importlib.import_module(name)
    except Exception:
        # It may be there and find no libraries of FFmpeg.
        found[name] = False
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Rules:
    """Fixed facts about a contender."""

    modules: tuple[str, ...]
    # Distribution as `pip install` names it, and the names its version is found by.
    package: str
    distributions: tuple[str, ...]
    # Further imports for images.
    for_images: tuple[str, ...] = ()
    # The script that makes the data set in its own format.
    conversion: str | None = None
    # Code that fails if the package imports but cannot make images.
    check_images: str = ""
    # Remedy for that.
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
    "datasets": Rules(
        ("datasets", "torch"), "datasets torch", ("datasets", "torch"), TORCH_IMAGES, "datasets"
    ),
    "lancedb": Rules(
        ("lancedb.streaming", "lance", "torch"),
        "lancedb pylance torch",
        ("lancedb", "pylance", "torch"),
        TORCH_IMAGES,
        "lancedb",
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
# Imports of a contender whose batches a model trains on.
FOR_MODEL = """
import torch, torchvision
if not torch.cuda.is_available():
    raise RuntimeError("torch finds no GPU")
torchvision.models.get_model_builder(model)
"""
ON_TORCH = ("webdataset", "torch", "mosaic", "litdata", "datasets", "lancedb")


@dataclass
class Tried:
    """A tried configuration."""

    configuration: dict[str, Any]
    # Samples per second without computation; 0 if it could not be played.
    rate: float
    # Reason it could not be played.
    why: str | None = None
    # The last accelerator it was tried under: speed over the nominal one, and AU_ideal.
    speed: float | None = None
    au: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the figures by name."""
        under = {} if self.speed is None else {"speed": self.speed, "au": self.au}
        failed = {} if self.why is None else {"why": self.why}
        return {**self.configuration, "unlimited_samples_per_second": self.rate, **under, **failed}


@dataclass
class Contender:
    """A contender that takes part."""

    # Name in the report; kind names the script and the interpreter.
    name: str
    kind: str
    python: str
    version: str
    versions: dict[str, str]
    # Settings with the values to try, and the winners.
    settings: dict[str, tuple[Any, ...]]
    configuration: dict[str, Any] = field(default_factory=dict)
    # Storage of its bytes when they are warm.
    storage: str = PAGE_CACHE
    sweep: list[Tried] = field(default_factory=list)
    # The fastest accelerator short runs found it to feed, over the nominal one.
    speed: float | None = None
    # Figures so far.
    first_epoch: dict[str, Any] | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    sustained: dict[str, Any] | None = None


def probe(kind: str, python: str, images: bool, model: str | None) -> dict[str, Any]:
    """Ask `python` if contender `kind` can play there, and if it can train `model`."""
    rules = RULES[kind]
    modules = [*rules.modules, "numpy", *(rules.for_images if images else ())]
    names = [*rules.distributions, "torchvision", TORCHCODEC, "numpy"]
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
        return {"why": f"{python} could not be run: {error}", "absent": False}
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def why_not(kind: str, python: str, found: dict[str, Any]) -> str | None:
    """Return why contender `kind` cannot play, and the remedy."""
    if found["why"] is None:
        return None
    if found["absent"]:
        package = RULES[kind].package
        return f"{kind} is not installed for {python} ({found['why']}): pip install {package}"
    beside = RULES[kind].beside or "repair or replace that installation"
    return f"{kind} does not work in {python}: {found['why'][:WHY_MAX]}; {beside}"


def decoders(found: dict[str, Any]) -> tuple[str, ...]:
    """Return the decoders of the interpreter that a probe found them in."""
    return (*DECODERS, TORCHCODEC) if found["torchcodec.decoders"] else DECODERS


def settings(
    kind: str,
    images: bool,
    model: str | None,
    usable: int,
    decoders: tuple[str, ...] = DECODERS,
) -> dict[str, tuple[Any, ...]]:
    """Return the values to sweep by setting, the most likely best first."""
    if kind in ON_TORCH:
        decode = {"decode": decoders} if images else {}
        by: tuple[str, ...] = (THREAD_UINT8, THREAD) if images else (THREAD,)
        # Batches for a GPU are brought ahead, which takes a thread.
        by = by if model else (*by, DIRECT)
        return {**decode, "workers": numbers(WORKERS, usable), HANDOVER: by}
    if kind == "forebay":
        return {} if images else {"bytes": ("views",)}
    on_gpu = kind == "dali" and images and GPU.exists()
    device = {"device": ("gpu",)} if on_gpu else {}
    # A batch of bytes is some hundreds of objects to make; one of photos is there as a whole.
    views = {HANDOVER: (THREAD, DIRECT)} if kind == "dali" and not images else {}
    return {**device, "threads": numbers(THREADS, usable), **views}


def numbers(few: tuple[int, ...], usable: int) -> tuple[int, ...]:
    """Return `few` numbers of workers, and the number of usable cores if it is larger."""
    return (*few[:2], usable, *few[2:]) if usable > max(few) else few


def is_hopeless(number: int, rates: dict[int, float]) -> bool:
    """Return True if a number lies beyond one that is already much worse than the best."""
    if not rates or number == 0:
        # Without workers the behaviour differs.
        return False
    best = max(rates, key=lambda tried: rates[tried])
    between = [tried for tried in rates if number < tried < best or best < tried < number]
    return any(rates[tried] < HOPELESS * rates[best] for tried in between)


def most_ahead(kind: str, configuration: dict[str, Any]) -> int:
    """Return the most batches a contender has ready before one is taken."""
    if kind in ON_TORCH:
        workers: int = configuration["workers"]
        # Each of LanceDB's splits has almost another batch in its queues.
        in_queues = max(1, workers) if kind == "lancedb" else 0
        return ahead(configuration) + in_queues
    threads: int = configuration.get("threads", 0)
    return AHEAD + threads + taken_ahead(configuration)


def version(kind: str, found: dict[str, Any]) -> str:
    """Return the version of the contender's own package: other names may begin with it."""
    wanted = RULES[kind].distributions[0]
    versions: dict[str, str] = found["versions"]
    own = min((name for name in versions if name.startswith(wanted)), key=len, default=None)
    return "unknown" if own is None else versions[own]
