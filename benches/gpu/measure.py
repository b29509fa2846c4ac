"""Cost and gain of decoding on a GPU: images per second, pixels, training, starvation, copies.

    make gpu-bench            # everything, in under eight minutes
    python benches/gpu/measure.py --rounds 5 --json result.json

Contenders take turns in one run, on the same photos. The report gives the median of their rounds
and the spread. The clock stops only when the device has finished. A part that fails is a line and
stops no other. Rounds are printed and written as they come, so that a limit leaves those before it.
Without a GPU nothing is measured, and the script says so.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = [ROOT / "examples", ROOT / "cli/bench/contest", HERE.parent / "rivals", HERE / "parts"]
sys.path[:0] = map(str, FOLDERS)

from gpu_report import Report  # noqa: E402
from own_daemon import WAIT_SECONDS  # noqa: E402

DEVICE = "cuda"
BATCH = 256
# Distinct photos, and how often each lies in the shards: 1.3 GB.
PHOTOS, COPIES = 512, 32
SHARDS = 16
# Names of each shard: an epoch of seconds, since its first batches are late on an idle device.
NAMES = 4
# Batches of a second epoch before the first counted one. The first epoch teaches a loader its
# counts of samples, and the next one opens a session anew, which takes longer than a round varies.
RENEWING = 8
# A round of a decoder without epochs: twenty batches of the slowest bare loop and more.
ROUND_SECONDS = 1.0
# Bytes of one copy: two batches of photos together.
COPY_BYTES, COPY_COUNT = 64 << 20, 24
# MLPerf Storage's ResNet-50 on an H100: samples of a step, and its seconds.
STEP_SAMPLES, STEP_SECONDS, STEPS = 400, 0.224, 60
# Steps left out: MLPerf Storage leaves out one, and the first use of memory lasts longer on a
# virtual machine, as in `cli/bench/contest/accelerator.py`.
WARM_UP = 6
# Batches whose kernels are timed.
PROFILED = 40
FOREBAY, BARE = "decode: forebay", "decode: bare"
# The same shards without decoding: what decoding cannot be faster than.
DELIVERY = "delivery: forebay, files as they are"
# Threads below so many cores are not named.
NAMED_CORES = 0.02
# Decoders of others in this package's environment, and those in wheels of their own. The second
# come in a part of their own behind what is wanted most: their libraries share the process.
HERE_ANYWAY, APART = ("torchvision",), ("TorchCodec", "nvImageCodec")
ONE_THREAD = "one Python thread calls the rival"
# Figures of a loader that grow: percentiles have no difference.
GROWING = ("count", "total_seconds", "by_cause")


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="file for the figures")
    names = ("decode", "pixels", "training", "rivals", "starvation", "copies", "kernels")
    parser.add_argument("parts", nargs="*", help=", ".join(names))
    arguments = parser.parse_args()
    import own_daemon
    import torch

    if unknown := set(arguments.parts) - set(names):
        parser.error(f"{sorted(unknown)} are none of {names}")
    if not torch.cuda.is_available():
        print("gpu-bench: torch sees no GPU here; nothing was measured")
        return 0
    # A library that crashes says where.
    faulthandler.enable()
    # A limit ends the daemon, and removes what lies in memory, as an error does.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    gpu = {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)} | releases()
    with (
        own_daemon.storage() as place,
        tempfile.TemporaryDirectory(prefix="forebay-gpu-", dir=place.folder) as name,
        own_daemon.environment(place) as environment,
    ):
        print(f"shards and cache in {place}", flush=True)
        os.environ.update(environment)
        report = Report(arguments.rounds, arguments.json, gpu, place)
        measure(report, Path(name), arguments.parts or names)
    return report.code()


def releases() -> dict[str, str]:
    """Return the releases that rates depend on, as far as they can be asked for."""
    import cuda_driver
    import nvjpeg

    found: dict[str, str] = {}
    with contextlib.suppress(Exception):
        found["driver_cuda"] = str(cuda_driver.Device().version())
    with contextlib.suppress(Exception):
        library = nvjpeg.Library()
        found |= {"nvjpeg": library.version(), "nvjpeg_path": str(library.path)}
    return found


def measure(report: Report, folder: Path, chosen: Sequence[str]) -> None:
    """Make photos and shards, and measure the chosen parts, those wanted most first."""
    import beside
    import make_photos
    import photo_shards
    import pixel_steps
    import probe_inputs

    for _ in make_photos.make(folder / "photos", PHOTOS):
        pass
    files = probe_inputs.photos(folder / "photos")
    urls = photo_shards.write(folder, files, PHOTOS * COPIES, SHARDS)
    urls += photo_shards.link(urls, NAMES - 1)

    def training() -> None:
        with contextlib.closing(forebay_loader(urls)) as loader:
            beside.training(report, loader)

    parts: dict[str, Callable[[], None]] = {
        "decode": lambda: decoding(report, urls, files),
        "pixels": lambda: pixel_steps.pixels(report, folder, files),
        "training": training,
        "rivals": lambda: rivals(report, files),
        "starvation": lambda: starvation(report, urls),
        "copies": lambda: copies(report),
        "kernels": lambda: kernels(report, urls),
    }
    for part, work in parts.items():
        if part in chosen:
            report.part(part, work)


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
        urls,
        batch_size=batch,
        fields=fields(),
        device=DEVICE,
        framework="torch",
        seed=1,
        timeout=WAIT_SECONDS,
    )


def files_loader(urls: list[str]) -> Any:
    """Forebay without decoding: the files are views of the daemon's memory, made if looked at."""
    import forebay

    fields = {"file": forebay.Bytes("jpg", copy=False)}
    return forebay.DataLoader(urls, batch_size=BATCH, fields=fields, seed=1, timeout=WAIT_SECONDS)


def decoding(report: Report, urls: list[str], files: list[bytes]) -> None:
    """Images per second, delivered; and their ratios to bare loops and to torchvision."""
    loaders: dict[str, Any] = {}
    for name, maker in ((FOREBAY, forebay_loader), (DELIVERY, files_loader)):
        try:
            loaders[name] = maker(urls)
        except Exception as error:
            report.fail(name, error)
    try:
        try:
            _take_turns(report, loaders, _contenders(report, loaders, files))
        finally:
            _compare(report, HERE_ANYWAY)
            report.write()
    finally:
        for one in loaders.values():
            one.close()
        gc.collect()


def rivals(report: Report, files: list[bytes]) -> None:
    """Images per second of decoders in wheels of their own, and the ratios to them."""
    import decoders

    found = _started(report, lambda out: decoders.rivals(files, BATCH, APART, out))
    try:
        _take_turns(report, {}, found)
    finally:
        _compare_rivals(report, APART)


def _contenders(
    report: Report, loaders: dict[str, Any], files: list[bytes]
) -> dict[str, Callable[[float], int]]:
    """Return the loaders, the bare loops and torchvision, as far as they start."""
    import decoders

    found = {name: _epochs(loader) for name, loader in loaders.items()}
    found |= _started(report, lambda out: decoders.bare(files, out))
    return found | _started(report, lambda out: decoders.rivals(files, BATCH, HERE_ANYWAY, out))


def _started(
    report: Report, makers: Callable[[Any], Iterable[tuple[str, Callable[[float], int]]]]
) -> dict[str, Callable[[float], int]]:
    """Return the decoders that start, by their rows' names; others are failed lines."""
    found: dict[str, Callable[[float], int]] = {}
    try:
        for name, contender in makers(
            lambda name, error: report.leave_out(f"decode: {name}", error)
        ):
            found[f"decode: {name}"] = contender
    except Exception as error:
        report.fail("decode: other decoders", error)
    return found


def _take_turns(
    report: Report, loaders: dict[str, Any], contenders: dict[str, Callable[[float], int]]
) -> None:
    """Let each contender take its turns; the first is not counted."""
    begun: dict[str, dict[str, Any]] = {}
    for turn in range(report.rounds + 1):
        for name, contender in list(contenders.items()):
            loader = loaders.get(name)
            try:
                # A library that hangs is known by the last name.
                print(f"turn {turn}: {name}", flush=True)
                daemon = None if loader is None else loader.stats()["daemon_pid"]
                _round(report, name, contender, is_counted=turn > 0, daemon=daemon)
                if loader is not None and not turn:
                    _renew(loader)
                    begun[name] = loader.stats()
                elif loader is not None:
                    _keep(report, name, loader.stats(), begun[name])
            except Exception as error:
                del contenders[name]
                report.fail(name, error)
            report.write()


def _renew(loader: Any) -> None:
    """Take some batches of the next epoch, so that its session is there before a clock runs."""
    for _ in zip(range(RENEWING), loader, strict=False):
        pass


def _keep(report: Report, name: str, now: dict[str, Any], begun: dict[str, Any]) -> None:
    """Keep decoders and waits of a loader's counted rounds, and the place of its bytes."""
    wait = {key: since(now["wait"][key], begun["wait"].get(key)) for key in GROWING}
    more = report.figures[name].more
    more.update(
        wait=wait, decoders=since(now["decoders"], begun["decoders"]), cache=str(report.place)
    )


def since(now: Any, begun: Any) -> Any:
    """Return what counts have grown by, in dictionaries of any depth."""
    if isinstance(now, dict):
        before = begun or {}
        return {key: since(value, before.get(key)) for key, value in now.items()}
    return now - (begun or 0)


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

    Raises
    ------
    ValueError
        If no image came.
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
    if not images:
        raise ValueError("no image came")
    turn = "" if is_counted else ", not counted"
    print(f"{name}: {images / seconds:,.0f} images/s in {seconds:.2f} s{turn}", flush=True)
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


def _rates(report: Report) -> dict[str, float]:
    return {name: one.median() for name, one in report.figures.items() if one.rounds}


def _compare(report: Report, names: Sequence[str]) -> None:
    """Add the share of the best bare loop's rate that Forebay reaches, and ratios to rivals."""
    rates = _rates(report)
    bare = {name: rate for name, rate in rates.items() if name.startswith(BARE)}
    ours = rates.get(FOREBAY)
    if bare and ours:
        best = max(bare, key=lambda name: bare[name])
        share = report.add("decode: forebay by the best bare loop", "%", 100 * ours / bare[best])
        share.more["best"] = best
        print(f"best bare loop: {best}", flush=True)
    _compare_rivals(report, names)


def _compare_rivals(report: Report, names: Sequence[str]) -> None:
    """Add how many times a rival's rate Forebay reaches, in rounds of one run."""
    rates = _rates(report)
    ours = rates.get(FOREBAY)
    for rival in names:
        for way in ("alone", "with transforms"):
            if (rate := rates.get(f"decode: {rival} {way}")) and ours:
                ratio = report.add(f"decode: forebay by {rival} {way}", "x", ours / rate)
                ratio.more["note"] = ONE_THREAD
                print(f"{rival} {way}: {ONE_THREAD}", flush=True)


def kernels(report: Report, urls: list[str]) -> None:
    """Milliseconds that the pixel kernel takes the device per batch."""
    from torch.profiler import ProfilerActivity, profile

    with contextlib.closing(forebay_loader(urls)) as loader:
        _renew(loader)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in zip(range(PROFILED), loader, strict=False):
                pass
    events = [one for one in profiled.key_averages() if str(one.device_type).endswith("CUDA")]
    if not events:
        print("kernels: the profiler gave no events of the device: not measured", flush=True)
    for event in events:
        if "forebay" in event.key:
            ms = event.device_time_total / 1000 / event.count
            report.add(f"kernel: {event.key}", "ms", ms)


# Starvation


def starvation(report: Report, urls: list[str]) -> None:
    """AU_ideal of ResNet-50's profile: nominal compute time by what the steps took."""
    for consumers in (1, 4):
        with contextlib.closing(forebay_loader(urls, STEP_SAMPLES)) as loader:
            _starve(report, loader, consumers)


def _starve(report: Report, loader: Any, consumers: int) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
