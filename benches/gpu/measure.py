"""Cost and gain of decoding on a GPU: copies, images per second, starvation, training slowdown.

    make gpu-bench            # everything, in under eight minutes
    python benches/gpu/measure.py --rounds 5 --json result.json

Contenders take turns in one run, on the same photos. The report gives the median of their rounds
and the spread. The clock stops only when the device has finished. A part that fails is a line and
stops no other, and the figures are written after each. Without a GPU nothing is measured, and the
script says so.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = [ROOT / "examples", ROOT / "cli/bench/contest", HERE.parent / "rivals", HERE / "parts"]
sys.path[:0] = map(str, FOLDERS)

BATCH = 256
# Distinct photos, and how often each lies in the shards: 1.3 GB.
PHOTOS, COPIES = 512, 32
SHARDS = 16
# Names of each shard: an epoch of seconds, since its first batches are late on an idle device.
NAMES = 4
# A round of a decoder without epochs: some ten batches.
ROUND_SECONDS = 0.5
# Bytes of one copy: two batches of photos together.
COPY_BYTES, COPY_COUNT = 64 << 20, 24
# MLPerf Storage's ResNet-50 on an H100: samples of a step, and its seconds.
STEP_SAMPLES, STEP_SECONDS, STEPS = 400, 0.224, 60
# Steps left out: MLPerf Storage leaves out one, and the first use of memory lasts longer on a
# virtual machine, as in `cli/bench/contest/accelerator.py`.
WARM_UP = 6
# Images per second of that profile, beside which training is timed.
DEMAND = 1786
MATMUL_SIDE, MATMUL_COUNT = 8192, 400
# Seconds after which photos come at the profile's rate, those decoded ahead included.
SETTLED_SECONDS = 1.5
# Batches whose kernels are timed.
PROFILED = 40
FOREBAY, BARE = "decode: forebay", "decode: bare"
# The same shards without decoding: what decoding cannot be faster than.
DELIVERY = "delivery: forebay, files as they are"
# Threads below so many cores are not named.
NAMED_CORES = 0.02


@dataclass
class Figure:
    """One contender's rounds."""

    unit: str
    rounds: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    def report(self) -> dict[str, Any]:
        """Median and spread."""
        low, high = min(self.rounds), max(self.rounds)
        spread = {"median": self.median(), "min": low, "max": high, "rounds": self.rounds}
        return {"unit": self.unit, **spread, **self.more}


@dataclass
class Report:
    """Figures so far, their file, and the parts that failed."""

    rounds: int
    target: Path | None
    gpu: dict[str, str]
    figures: dict[str, Figure] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, unit: str, value: float) -> Figure:
        """Add a round to a contender's."""
        figure = self.figures.setdefault(name, Figure(unit))
        figure.rounds.append(value)
        return figure

    def fail(self, name: str, error: BaseException) -> None:
        """Say and keep that a part failed."""
        from probe_lines import failure

        self.failed[name] = failure(error)
        print(f"{name}: failed: {self.failed[name]}", flush=True)

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Measure a part, print its figures, and write all so far."""
        before = set(self.figures)
        begin = time.monotonic()
        try:
            work()
        except Exception as error:
            self.fail(name, error)
        for key, figure in self.figures.items():
            if key not in before and figure.rounds:
                cores = figure.more.get("cores")
                words = "" if cores is None else f", {cores:.2f} cores"
                print(f"{key:50} {figure.median():12,.2f} {figure.unit}{words}", flush=True)
        print(f"({name}: {time.monotonic() - begin:.0f} s)", flush=True)
        self.write()

    def write(self) -> None:
        """Write the figures so far to their file."""
        if self.target is None:
            return
        import machine

        figures = {name: one.report() for name, one in self.figures.items() if one.rounds}
        kept = {
            "machine": machine.describe(Path("/tmp")) | self.gpu,
            "figures": figures,
            "failed": self.failed,
        }
        self.target.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("parts", nargs="*", help="copies, decode, starvation, training")
    arguments = parser.parse_args()
    import make_photos
    import own_daemon
    import photo_shards
    import probe_inputs
    import torch

    names = ("copies", "decode", "starvation", "training")
    if unknown := set(arguments.parts) - set(names):
        parser.error(f"{sorted(unknown)} are none of {names}")
    if not torch.cuda.is_available():
        print("gpu-bench: torch sees no GPU here; nothing was measured")
        return 0
    gpu = {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    report = Report(arguments.rounds, arguments.json, gpu)
    with (
        tempfile.TemporaryDirectory(prefix="forebay-gpu-", dir=own_daemon.memory()) as name,
        own_daemon.environment() as environment,
    ):
        os.environ.update(environment)
        folder = Path(name)
        for _ in make_photos.make(folder / "photos", PHOTOS):
            pass
        files = probe_inputs.photos(folder / "photos")
        urls = photo_shards.write(folder, files, PHOTOS * COPIES, SHARDS)
        urls += photo_shards.link(urls, NAMES - 1)
        parts: dict[str, Callable[[], None]] = {
            "copies": lambda: copies(report),
            "decode": lambda: decoding(report, urls, files),
            "starvation": lambda: starvation(report, urls),
            "training": lambda: training(report, urls),
        }
        for part, work in parts.items():
            if not arguments.parts or part in arguments.parts:
                report.part(part, work)
    return 1 if report.failed else 0


def timed(work: Callable[[], None]) -> float:
    """Seconds of `work`, with what it put in line."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


# Copies


def copies(report: Report) -> None:
    """Copy from a registered read-only map, as the slab is, and from the driver's own memory."""
    import torch

    cuda = ctypes.CDLL("libcuda.so.1")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    memory = os.memfd_create("slab")
    os.ftruncate(memory, COPY_BYTES)
    with mmap.mmap(memory, COPY_BYTES) as writable:
        writable[:] = bytes(COPY_BYTES)
    view = mmap.mmap(memory, COPY_BYTES, prot=mmap.PROT_READ)
    registered = _address(view)
    # Portable, and read-only.
    status = cuda.cuMemHostRegister_v2(ctypes.c_void_p(registered), ctypes.c_size_t(COPY_BYTES), 9)
    pinned = ctypes.c_void_p()
    assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(COPY_BYTES), 0) == 0
    sources = {"registered slab": registered, "cudaHostAlloc": pinned.value or 0}
    if status:
        print(f"a read-only map cannot be registered here (error {status}): not measured")
        del sources["registered slab"]
    copy = cuda.cuMemcpyHtoDAsync_v2
    size = ctypes.c_size_t(COPY_BYTES)

    def run(source: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(COPY_COUNT):
                copy(ctypes.c_uint64(target.data_ptr()), ctypes.c_void_p(source), size, None)

        return work

    for turn in range(report.rounds + 1):
        for name, source in sources.items():
            seconds = timed(run(source))
            # The first turn warms up.
            if turn:
                report.add(f"copies: {name}", "GB/s", COPY_BYTES * COPY_COUNT / seconds / 1e9)
    if not status:
        cuda.cuMemHostUnregister(ctypes.c_void_p(registered))
    cuda.cuMemFreeHost(pinned)


def _address(view: mmap.mmap) -> int:
    """Address of a read-only map; ctypes gives that of writable memory only."""
    import numpy

    return int(numpy.frombuffer(view, dtype=numpy.uint8).ctypes.data)


# Decoding


def fields() -> dict[str, Any]:
    """The output every contender makes of a photo: float16, NCHW, 224 pixels."""
    import decoders

    import forebay

    image = forebay.Image(
        "jpg",
        size=decoders.SIZE,
        crop="random",
        flip=True,
        dtype="float16",
        mean=decoders.MEAN,
        std=decoders.STD,
    )
    return {"image": image, "label": forebay.Int("cls")}


def forebay_loader(urls: list[str], batch: int = BATCH) -> Any:
    """Forebay with its own daemon, on this GPU."""
    import forebay

    return forebay.DataLoader(
        urls, batch_size=batch, fields=fields(), device="cuda", framework="torch", seed=1
    )


def files_loader(urls: list[str]) -> Any:
    """Forebay without decoding: the files are views of the daemon's memory, made if looked at."""
    import forebay

    fields = {"file": forebay.Bytes("jpg", copy=False)}
    return forebay.DataLoader(urls, batch_size=BATCH, fields=fields, seed=1)


def decoding(report: Report, urls: list[str], files: list[bytes]) -> None:
    """Images per second, delivered; and the share of the best bare loop."""
    import decoders

    contenders: dict[str, decoders.Contender] = {}
    loaders: dict[str, Any] = {}
    for name, maker in ((FOREBAY, forebay_loader), (DELIVERY, files_loader)):
        try:
            loaders[name] = maker(urls)
            contenders[name] = _epochs(loaders[name])
        except Exception as error:
            report.fail(name, error)
    for name, contender in decoders.contenders(files, BATCH):
        contenders[f"decode: {name}"] = contender
    for turn in range(report.rounds + 1):
        for name, contender in list(contenders.items()):
            try:
                daemon = loaders[name].stats()["daemon_pid"] if name in loaders else None
                _round(report, name, contender, is_counted=turn > 0, daemon=daemon)
            except Exception as error:
                del contenders[name]
                report.fail(name, error)
    loader = loaders.get(FOREBAY)
    if loader is not None and FOREBAY in report.figures:
        more = report.figures[FOREBAY].more
        more.update(decoders=loader.stats()["decoders"], wait=loader.stats()["wait"])
        report.part("kernels", lambda: kernels(report, loader))
    for one in loaders.values():
        one.close()
    gc.collect()
    _compare(report)


def _epochs(loader: Any) -> Callable[[float], int]:
    """Return the loader as a contender: whole epochs, at least one."""
    import torch

    def run(seconds: float) -> int:
        images, begin = 0, time.perf_counter()
        while not images or time.perf_counter() - begin < seconds:
            for batch in loader:
                if "image" in batch:
                    batch["image"].amax()
                images += len(batch["__key__"])
        torch.cuda.synchronize()
        return images

    return run


def _round(
    report: Report,
    name: str,
    contender: Callable[[float], int],
    *,
    is_counted: bool,
    daemon: int | None = None,
) -> None:
    """Take a contender's turn: images per second, CPU time per image, and cores.

    A daemon's are counted too; of both, threads by name.
    """
    images = 0

    def work() -> None:
        nonlocal images
        images = contender(ROUND_SECONDS)

    import bare_loop
    import processes

    def spent_by_now() -> float:
        return bare_loop.cpu_seconds() + processes.cpu_seconds([daemon] if daemon else [])

    pids = [os.getpid(), daemon] if daemon else []
    before, threads = spent_by_now(), processes.thread_seconds(pids)
    seconds = timed(work)
    if not is_counted:
        return
    figure = report.add(name, "images/s", images / seconds)
    spent = spent_by_now() - before
    cores = {
        kind: round((now - threads.get(kind, 0.0)) / seconds, 3)
        for kind, now in processes.thread_seconds(pids).items()
    }
    named = {kind: used for kind, used in cores.items() if used > NAMED_CORES}
    figure.more.setdefault("threads", []).append(named)
    figure.more.setdefault("cpu_ms_per_image", []).append(spent * 1000 / images)
    figure.more.setdefault("rounds_cores", []).append(spent / seconds)
    figure.more["cores"] = statistics.median(figure.more["rounds_cores"])


def _compare(report: Report) -> None:
    """Add the best bare loop's name, and the share of its rate that Forebay reaches."""
    bare = {
        name: figure.median()
        for name, figure in report.figures.items()
        if name.startswith(BARE) and figure.rounds
    }
    if not bare or FOREBAY not in report.figures:
        return
    best = max(bare, key=lambda name: bare[name])
    share = 100 * report.figures[FOREBAY].median() / bare[best]
    report.add("decode: forebay by the best bare loop", "%", share).more["best"] = best
    print(f"best bare loop: {best}", flush=True)


def kernels(report: Report, loader: Any) -> None:
    """Milliseconds that the pixel kernel and torch's copy take the device per batch."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in zip(range(PROFILED), loader, strict=False):
            pass
    for event in profiled.key_averages():
        if str(event.device_type).endswith("CUDA") and "forebay" in event.key:
            ms = event.device_time_total / 1000 / event.count
            report.add(f"kernel: {event.key}", "ms", ms)


# Starvation


def starvation(report: Report, urls: list[str]) -> None:
    """AU_ideal of ResNet-50's profile: nominal compute time by what the steps took."""
    for consumers in (1, 4):
        loader = forebay_loader(urls, STEP_SAMPLES)
        # Several consumers ask for as many times the samples: each step is shorter.
        compute = STEP_SECONDS / consumers
        steps, begin, overslept = 0, 0.0, 0.0
        while steps < STEPS:
            for batch in loader:
                if steps == WARM_UP:
                    begin, overslept = time.perf_counter(), 0.0
                batch["image"].amax()
                slept = time.perf_counter()
                time.sleep(compute)
                overslept += time.perf_counter() - slept - compute
                steps += 1
                if steps == STEPS:
                    break
        wall = time.perf_counter() - begin
        share = 100 * (STEPS - WARM_UP) * compute / wall
        figure = report.add(f"AU_ideal: {consumers} consumers' demand", "%", share)
        figure.more.update(wait=loader.stats()["wait"], overslept_seconds=overslept)
        loader.close()


# Training beside it


def training(report: Report, urls: list[str]) -> None:
    """Slowdown of a loop of bf16 products while photos are decoded beside it."""
    import torch

    a = torch.randn(MATMUL_SIDE, MATMUL_SIDE, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)

    def products() -> None:
        for _ in range(MATMUL_COUNT):
            torch.mm(a, b)

    products()
    alone, beside = "training: products alone", "training: beside decoding"
    loader = forebay_loader(urls)
    for _ in range(report.rounds):
        report.add(alone, "ms", _beside(None, products) * 1000 / MATMUL_COUNT)
        report.add(beside, "ms", _beside(loader, products) * 1000 / MATMUL_COUNT)
    loader.close()
    slower = report.figures[beside].median() / report.figures[alone].median()
    report.add("training: slower by", "%", 100 * (slower - 1))


def _beside(loader: Any, products: Callable[[], None]) -> float:
    """Seconds of the products while a thread takes photos at the profile's rate, if at all.

    Raises
    ------
    Exception
        The loader's, should it fail meanwhile.
    """
    import torch

    stop = threading.Event()
    failed: list[Exception] = []

    def feed() -> None:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        begin, seen = time.perf_counter(), 0
        with torch.cuda.stream(stream):
            while not stop.is_set():
                for batch in loader:
                    seen += len(batch["image"])
                    ahead = seen / DEMAND - (time.perf_counter() - begin)
                    if stop.wait(max(0.0, ahead)):
                        return

    def guarded() -> None:
        try:
            if loader is not None:
                feed()
        except Exception as error:
            failed.append(error)

    feeding = threading.Thread(target=guarded)
    feeding.start()
    try:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            # The device is as warm and as busy before the clock starts as after.
            begin = time.perf_counter()
            while time.perf_counter() - begin < SETTLED_SECONDS:
                products()
                stream.synchronize()
            begin = time.perf_counter()
            products()
            stream.synchronize()
            seconds = time.perf_counter() - begin
    finally:
        stop.set()
        feeding.join()
    if failed:
        raise failed[0]
    return seconds


if __name__ == "__main__":
    sys.exit(main())
