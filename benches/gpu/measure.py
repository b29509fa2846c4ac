"""Cost and gain of decoding on a GPU: copies, images per second, starvation, training slowdown.

    make gpu-bench            # everything, in under eight minutes
    python benches/gpu/measure.py --rounds 5 --json result.json

Contenders take turns in one run, on the same photos. The report gives the median of their rounds
and the spread. The clock stops only when the device has finished. Without a GPU nothing is
measured,
and the script says so.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import json
import mmap
import os
import resource
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = [ROOT / "examples", ROOT / "cli/bench/contest", HERE.parent / "rivals"]
sys.path[:0] = map(str, FOLDERS)

BATCH = 256
# Distinct photos, and how often each lies in the shards: an epoch of some seconds.
PHOTOS, COPIES = 512, 32
SHARDS = 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Bytes of one copy: two batches of photos together.
COPY_BYTES, COPY_COUNT = 64 << 20, 24
# MLPerf Storage's ResNet-50 on an H100: samples of a step, and its seconds.
STEP_SAMPLES, STEP_SECONDS, STEPS = 400, 0.224, 60
# Images per second of that profile, beside which training is timed.
DEMAND = 1786
MATMUL_SIDE, MATMUL_COUNT = 8192, 150


@dataclass
class Figure:
    """One contender's rounds."""

    unit: str
    rounds: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Median and spread."""
        low, high = min(self.rounds), max(self.rounds)
        median = statistics.median(self.rounds)
        spread = {"median": median, "min": low, "max": high, "rounds": self.rounds}
        return {"unit": self.unit, **spread, **self.more}


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    import daemons
    import stage
    import torch

    if not torch.cuda.is_available():
        print("gpu-bench: torch sees no GPU here; nothing was measured")
        return 0
    figures: dict[str, Figure] = {}
    environment = dict(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="forebay-gpu-") as name,
        stage.private_cache() as cache,
        daemons.private_daemon(environment, cache),
    ):
        os.environ.update(environment)
        files = photos()
        urls = shards(Path(name), files)
        copies(figures, arguments.rounds)
        decoding(figures, arguments.rounds, urls, files)
        starvation(figures, urls)
        training(figures, arguments.rounds, urls)
    report = {name: figure.report() for name, figure in figures.items()}
    for name, figure in report.items():
        print(f"{name:44} {figure['median']:12,.2f} {figure['unit']}")
    if arguments.json:
        import machine

        described = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        kept = {"machine": machine.describe(Path("/tmp")) | described, "figures": report}
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


def photos() -> list[bytes]:
    """JPEG files of photos, 500 pixels by 375."""
    import make_photos

    images = (make_photos.photo(number, number % 10) for number in range(PHOTOS))
    files = []
    for image in images:
        stream = io.BytesIO()
        image.resize((500, 375)).save(stream, format="JPEG", quality=90)
        files.append(stream.getvalue())
    return files


def shards(folder: Path, files: list[bytes]) -> list[str]:
    """The files as shards."""
    each = PHOTOS * COPIES // SHARDS
    urls = []
    for shard in range(SHARDS):
        path = folder / f"{shard:03}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * each, (shard + 1) * each):
                for suffix, data in (("jpg", files[number % PHOTOS]), ("cls", b"1")):
                    member = tarfile.TarInfo(f"s{number:06}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        urls.append(str(path))
    return urls


def timed(work: Callable[[], None]) -> float:
    """Seconds of `work`, with what it put in line."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


# Copies


def copies(figures: dict[str, Figure], rounds: int) -> None:
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
    if status:
        print(f"a read-only map cannot be registered here (error {status}): not measured")
        return
    pinned = ctypes.c_void_p()
    assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(COPY_BYTES), 0) == 0
    sources = {"registered slab": registered, "cudaHostAlloc": pinned.value or 0}
    copy = cuda.cuMemcpyHtoDAsync_v2
    size = ctypes.c_size_t(COPY_BYTES)

    def run(source: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(COPY_COUNT):
                copy(ctypes.c_uint64(target.data_ptr()), ctypes.c_void_p(source), size, None)

        return work

    for turn in range(rounds + 1):
        for name, source in sources.items():
            seconds = timed(run(source))
            # The first turn warms up.
            if turn:
                figure = figures.setdefault(f"copies: {name}", Figure("GB/s"))
                figure.rounds.append(COPY_BYTES * COPY_COUNT / seconds / 1e9)
    cuda.cuMemHostUnregister(ctypes.c_void_p(registered))
    cuda.cuMemFreeHost(pinned)


def _address(view: mmap.mmap) -> int:
    """Address of a read-only map; ctypes gives that of writable memory only."""
    import numpy

    return int(numpy.frombuffer(view, dtype=numpy.uint8).ctypes.data)


# Decoding


def fields() -> dict[str, Any]:
    """The output every contender makes of a photo: float16, NCHW, 224 pixels."""
    import forebay

    image = forebay.Image(
        "jpg", size=224, crop="random", flip=True, dtype="float16", mean=MEAN, std=STD
    )
    return {"image": image, "label": forebay.Int("cls")}


def forebay_loader(urls: list[str], batch: int = BATCH) -> Any:
    """Forebay with its own daemon, on this GPU."""
    import forebay

    return forebay.DataLoader(
        urls, batch_size=batch, fields=fields(), device="cuda", framework="torch", seed=1
    )


def decoding(figures: dict[str, Figure], rounds: int, urls: list[str], files: list[bytes]) -> None:
    """Images per second, delivered."""
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms import v2

    total = PHOTOS * COPIES
    loader = forebay_loader(urls)
    tensors = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    crop = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])
    finish = v2.Compose([v2.ToDtype(torch.float16, scale=True), v2.Normalize(MEAN, STD)])

    def whole_epoch() -> None:
        for batch in loader:
            batch["image"].amax()

    def batches() -> Iterator[list[torch.Tensor]]:
        for begin in range(0, total, BATCH):
            yield [tensors[at % PHOTOS] for at in range(begin, begin + BATCH)]

    def bare() -> None:
        for batch in batches():
            decode_jpeg(batch, device="cuda")

    def torchvision() -> None:
        for batch in batches():
            images = decode_jpeg(batch, device="cuda")
            finish(torch.stack([crop(image) for image in images])).amax()

    contenders: dict[str, Callable[[], None]] = {
        "decode: forebay": whole_epoch,
        "decode: nvJPEG batches alone (torchvision)": bare,
        "decode: torchvision with transforms": torchvision,
    }
    codec = _codec()
    if codec is not None:

        def nvimagecodec() -> None:
            for begin in range(0, total, BATCH):
                batch = [files[at % PHOTOS] for at in range(begin, begin + BATCH)]
                images = [torch.as_tensor(image, device="cuda") for image in codec.decode(batch)]
                cropped = [crop(image.permute(2, 0, 1)) for image in images]
                finish(torch.stack(cropped)).amax()

        contenders["decode: nvImageCodec with transforms"] = nvimagecodec
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            before = _cpu_seconds()
            seconds = timed(work)
            if turn:
                figure = figures.setdefault(name, Figure("images/s"))
                figure.rounds.append(total / seconds)
                spent = figure.more.setdefault("cpu_ms_per_image", [])
                spent.append((_cpu_seconds() - before) * 1000 / total)
                figure.more["cores"] = statistics.median(spent) * total / seconds / 1000
    figures["decode: forebay"].more["decoders"] = loader.stats()["decoders"]
    loader.close()
    gc.collect()


def _codec() -> Any:
    try:
        from nvidia import nvimgcodec
    except ImportError:
        return None
    return nvimgcodec.Decoder()


def _cpu_seconds() -> float:
    """CPU seconds of this process; the daemon's part is in its own `stats`."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# Starvation


def starvation(figures: dict[str, Figure], urls: list[str]) -> None:
    """AU_ideal of ResNet-50's profile: nominal compute time by what the steps took."""
    for consumers in (1, 4):
        loader = forebay_loader(urls, STEP_SAMPLES)
        # Several consumers ask for as many times the samples: each step is shorter.
        compute = STEP_SECONDS / consumers
        steps, begin = 0, 0.0
        while steps < STEPS:
            for batch in loader:
                if steps == 1:
                    # The first step is not counted, as MLPerf has it.
                    begin = time.perf_counter()
                batch["image"].amax()
                time.sleep(compute)
                steps += 1
                if steps == STEPS:
                    break
        wall = time.perf_counter() - begin
        figure = figures.setdefault(f"AU_ideal: {consumers} consumers' demand", Figure("%"))
        figure.rounds.append(100 * (STEPS - 1) * compute / wall)
        figure.more["wait"] = loader.stats()["wait"]
        loader.close()


# Training beside it


def training(figures: dict[str, Figure], rounds: int, urls: list[str]) -> None:
    """Slowdown of a loop of bf16 products while photos are decoded beside it."""
    import threading

    import torch

    a = torch.randn(MATMUL_SIDE, MATMUL_SIDE, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)

    def products() -> None:
        for _ in range(MATMUL_COUNT):
            torch.mm(a, b)

    products()
    alone = figures.setdefault("training: products alone", Figure("ms"))
    beside = figures.setdefault("training: beside decoding", Figure("ms"))
    loader = forebay_loader(urls)
    for _ in range(rounds):
        alone.rounds.append(timed(products) * 1000 / MATMUL_COUNT)
        stop = threading.Event()

        def feed(stop: threading.Event = stop) -> None:
            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            begin, seen = time.perf_counter(), 0
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    for batch in loader:
                        seen += len(batch["image"])
                        ahead = seen / DEMAND - (time.perf_counter() - begin)
                        if stop.wait(max(0.0, ahead)):
                            return

        feeding = threading.Thread(target=feed)
        feeding.start()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            products()
            stream.synchronize()
            begin = time.perf_counter()
            products()
            stream.synchronize()
            beside.rounds.append((time.perf_counter() - begin) * 1000 / MATMUL_COUNT)
        stop.set()
        feeding.join()
    loader.close()
    slower = statistics.median(beside.rounds) / statistics.median(alone.rounds)
    figures["training: slower by"] = Figure("%", [100 * (slower - 1)])


if __name__ == "__main__":
    sys.exit(main())
