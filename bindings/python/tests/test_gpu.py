"""Tests that need a real GPU; they are skipped without one, and `make gpu-test` runs them alone."""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import socket
import subprocess
import sys
import textwrap
import time

import numpy
import pytest

import forebay

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs gpu: torch finds none")

# nvJPEG's inverse transform may round differently: on average by less than one of 255 steps, as
# docs/PYTHON.md says, and by several steps at edges between colours.
MEAN_STEPS = 1.0
FAR_STEPS = 8
# Backends in the order in which a loader tries them: engines that read host memory, engines, cores.
BACKENDS = ("3", "5", "4")
CORES = "4"
# Room for a driver's and nvJPEG's own memory, and for no batch of large images.
LEFT = 1 << 30


def photo(rng, height: int, width: int) -> Image.Image:
    """Draw shades and edges, of which a photo has more than of noise."""
    y, x = numpy.mgrid[0:height, 0:width]
    picture = numpy.zeros((height, width, 3))
    for _ in range(4):
        wave = numpy.sin(
            rng.uniform(-0.2, 0.2) * x + rng.uniform(-0.2, 0.2) * y + rng.uniform(0, 6)
        )
        picture += wave[..., None] * rng.uniform(-50, 50, 3)
    cx, cy = rng.uniform(0, width), rng.uniform(0, height)
    picture[(x - cx) ** 2 + (y - cy) ** 2 < (height / 4) ** 2] += rng.uniform(-70, 70, 3)
    return Image.fromarray(numpy.clip(picture + 128, 0, 255).astype(numpy.uint8))


def encoded(image: Image.Image, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """2,048 photos of random sizes, samplings and qualities, in four shards."""
    from conftest import write_shard

    rng = numpy.random.default_rng(1)
    home = tmp_path_factory.mktemp("photos")
    urls = []
    for shard in range(4):
        samples = []
        for number in range(512):
            image = photo(rng, int(rng.integers(16, 400)), int(rng.integers(16, 400)))
            options = {"quality": int(rng.integers(40, 97)), "subsampling": int(rng.integers(0, 3))}
            if number % 16 == 0:
                image, options = image.convert("L"), {"quality": 80}
            elif number % 16 == 1:
                options["progressive"] = True
            samples.append(
                (
                    f"s{shard * 512 + number:05}",
                    {"jpg": encoded(image, format="JPEG", **options), "cls": str(number).encode()},
                )
            )
        urls.append(write_shard(home / f"{shard}.tar", samples))
    return urls


def fields(**options):
    crop = {"size": 64, "crop": "random", "flip": True} | options
    return {"image": forebay.Image("jpg;png", **crop), "label": forebay.Int("cls")}


def both(make, urls, **options):
    """Return the GPU's loader, and pairs of the same batch by the GPU and by the CPU."""
    gpu = make(urls, device="cuda", framework="torch", **options)
    cpu = make(urls, device="cpu", framework="torch", **options)
    return gpu, zip(gpu, cpu, strict=True)


def apart(keys, steps) -> dict[str, float]:
    """Return the images that are further off than rounding makes them: mean steps by key."""
    means = steps.float().flatten(1).mean(dim=1).tolist()
    return {key: mean for key, mean in zip(keys, means, strict=True) if not mean < MEAN_STEPS}


def assert_within_rounding(batches) -> None:
    """Assert that pairs of batches have the same samples, and uint8 images within the bound."""
    far = count = 0
    wrong = {}
    for found, expected in batches:
        assert found["image"].device.type == found["label"].device.type == "cuda"
        assert found["__key__"] == expected["__key__"]
        assert found["label"].tolist() == expected["label"].tolist()
        steps = (found["image"].cpu().int() - expected["image"].int()).abs()
        wrong |= apart(found["__key__"], steps)
        far += (steps > FAR_STEPS).sum().item()
        count += steps.numel()
    assert not wrong, "images by their steps on average"
    assert far / count < 1e-3, "elements that are far off"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gpu_images_equal_cpu_images_within_rounding(make, photos, layout):
    gpu, batches = both(make, photos, fields=fields(layout=layout), batch_size=256)
    assert_within_rounding(batches)
    decoders = gpu.stats()["decoders"]
    assert decoders["cpu"] == {"scans": 128}
    (name,) = set(decoders) - {"cpu"}
    assert name.startswith("nvjpeg_")
    assert decoders[name] == {"plain": 2048 - 128}


@pytest.mark.parametrize("backend", BACKENDS)
def test_pixels_of_each_backend_equal_those_of_the_cpu(make, photos, monkeypatch, backend):
    monkeypatch.setenv("FOREBAY_NVJPEG_BACKEND", backend)
    try:
        # Iterations open the device.
        gpu, batches = both(make, photos[:1], fields=fields(), batch_size=128)
    except forebay.Unavailable as error:
        # Not every GPU has engines; all have cores.
        if backend == CORES:
            raise
        pytest.skip(f"needs gpu-engines: backend {backend} does not start here: {error}")
    assert_within_rounding(batches)
    decoders = gpu.stats()["decoders"]
    kind = "nvjpeg_cores" if backend == CORES else "nvjpeg_engines"
    assert decoders.keys() == {"cpu", kind}
    assert decoders[kind] == {"plain": 512 - 32}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_types_and_views_equal_those_of_the_cpu(make, photos, dtype):
    options = {"dtype": dtype, "mean": (0.5,) * 3, "std": (0.25,) * 3, "views": 2}
    _, batches = both(make, photos[:1], fields=fields(**options), batch_size=128)
    for found, expected in batches:
        assert found["image"].shape[1:] == (2, 3, 64, 64)
        assert found["image"].dtype == expected["image"].dtype
        steps = (found["image"].cpu().float() - expected["image"].float()).abs() * 255 * 0.25
        assert not apart(found["__key__"], steps), "images by their steps on average"


def test_every_reason_for_the_cpu_is_counted(make, shard_of):
    rng = numpy.random.default_rng(2)
    image = photo(rng, 40, 50)
    jpeg = encoded(image, format="JPEG", quality=90, subsampling=2)
    # Both samplings have six blocks per unit, so a changed header turns one into the other.
    sampled = bytearray(jpeg)
    frame = sampled.index(b"\xff\xc0")
    sampled[frame + 5 : frame + 9] = (24).to_bytes(2, "big") + (128).to_bytes(2, "big")
    sampled[frame + 11] = 0x41
    files = {
        "format": ("png", encoded(image, format="PNG")),
        "scans": ("jpg", encoded(image, format="JPEG", progressive=True)),
        "colors": ("jpg", encoded(image.convert("CMYK"), format="JPEG")),
        "sampling": ("jpg", bytes(sampled)),
        "size": ("jpg", encoded(photo(rng, 8, 16_400), format="JPEG")),
    }
    samples = [
        (f"s{at}", {kind: data, "cls": b"0"}) for at, (kind, data) in enumerate(files.values())
    ]
    samples.append(("whole", {"jpg": jpeg, "cls": b"0"}))
    loader = make(
        shard_of(samples), device="cuda", framework="torch", fields=fields(), batch_size=6
    )
    assert len(next(iter(loader))["__key__"]) == 6
    decoders = loader.stats()["decoders"]
    assert decoders.pop("cpu") == dict.fromkeys(files, 1)
    assert list(decoders.values()) == [{"plain": 1}]


def test_gpu_gathers_arrays_beside_images(make, shard_of):
    rng = numpy.random.default_rng(4)

    def saved(array) -> bytes:
        stream = io.BytesIO()
        numpy.save(stream, array)
        return stream.getvalue()

    samples = [
        (
            f"s{number:03}",
            {
                "jpg": encoded(photo(rng, 50, 60), format="JPEG"),
                "npy": saved(rng.standard_normal((7, 33)).astype(numpy.float32)),
                # An odd size, which is aligned to nothing.
                "bin": rng.bytes(3 * 5),
                "mask.npy": saved(rng.integers(0, 2, (5, 5)).astype(bool)),
                "cls": b"1",
            },
        )
        for number in range(300)
    ]
    arrays = {
        "wide": forebay.Npy("npy"),
        "odd": forebay.Npy("bin", dtype="uint8", shape=(3, 5)),
        "mask": forebay.Npy("mask.npy"),
    }
    gpu, batches = both(make, shard_of(samples), fields=fields() | arrays, batch_size=64)
    for found, expected in batches:
        for name in arrays:
            assert found[name].device.type == "cuda"
            assert torch.equal(found[name].cpu(), expected[name])
    decoders = gpu.stats()["decoders"]
    assert decoders["gather"] == {"plain": 600}
    assert decoders["cpu"] == {"booleans": 300}


def test_a_bad_image_never_fails_its_batch(make, shard_of):
    jpeg = encoded(photo(numpy.random.default_rng(3), 60, 60), format="JPEG")
    samples = [(f"s{at}", {"jpg": jpeg, "cls": b"1"}) for at in range(8)]
    samples[3][1]["jpg"] = jpeg[: len(jpeg) // 2]
    # This image has a valid header and broken data.
    torn = bytearray(jpeg)
    torn[len(torn) // 2 : -2] = bytes(len(torn) // 2 - 2)
    samples[5][1]["jpg"] = bytes(torn)
    loader = make(
        shard_of(samples),
        device="cuda",
        framework="torch",
        fields=fields(),
        batch_size=8,
        on_error="skip",
    )
    batch = next(iter(loader))
    assert {"s0", "s1", "s2", "s4", "s6", "s7"} <= set(batch["__key__"])
    assert "s3" not in batch["__key__"]
    assert len(batch["image"]) == len(batch["__key__"])
    torch.cuda.synchronize()


def _by_cpu(make, photos):
    loader = make(photos, fields=fields(), batch_size=64, device="cpu", framework="torch")
    return [batch["image"] for batch in loader]


def test_late_consumer_on_a_side_stream_reads_its_own_batch(make, photos):
    expected = _by_cpu(make, photos)
    loader = make(photos, fields=fields(), batch_size=64, device="cuda", framework="torch")
    late = []
    for batch in loader:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late.append(batch["image"].float().mean(dim=(1, 2, 3)))
            batch["image"].record_stream(stream)
        del batch
    torch.cuda.synchronize()
    for found, images in zip(late, expected, strict=True):
        mean = images.float().mean(dim=(1, 2, 3))
        assert (found.cpu() - mean).abs().max() < MEAN_STEPS


def test_dlpack_memory_stays_valid_for_a_late_consumer(make, photos, monkeypatch):
    """A consumer other than torch drops the capsule while a kernel that reads it is queued."""
    from forebay import frameworks

    monkeypatch.setattr(frameworks._Torch, "tensor", lambda self, native: torch.from_dlpack(native))
    expected = _by_cpu(make, photos)
    loader = make(photos, fields=fields(), batch_size=64, device="cuda", framework="torch")
    late = []
    for batch in loader:
        torch.cuda._sleep(20_000_000)
        late.append(batch["image"].float().mean(dim=(1, 2, 3)))
        del batch
        gc.collect()
    torch.cuda.synchronize()
    for found, images in zip(late, expected, strict=True):
        mean = images.float().mean(dim=(1, 2, 3))
        assert (found.cpu() - mean).abs().max() < MEAN_STEPS


def test_gpu_out_of_memory_is_reported_and_later_jobs_run(make, photos):
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(0, free - LEFT), dtype=torch.uint8, device="cuda")
    big = {"image": forebay.Image("jpg", size=1024, dtype="float32")}
    loader = make(photos, fields=big, batch_size=512, device="cuda", framework="torch")
    with pytest.raises(forebay.ForebayError, match=r"memory"):
        next(iter(loader))
    del hog
    torch.cuda.empty_cache()
    small = make(photos, fields=fields(), batch_size=64, device="cuda", framework="torch")
    assert len(next(iter(small))["image"]) == 64


# Python 3.12 warns of forks beside threads; here the child's rejection is what is tested.
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_child_is_rejected_with_advice_to_spawn(make, photos):
    loader = make(photos, fields=fields(), batch_size=64, device="cuda", framework="torch")
    next(iter(loader))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(iter(loader))
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    assert "spawn" in said, said
    # The parent can still iterate.
    assert len(next(iter(loader))["image"]) == 64


@pytest.mark.parametrize("backend", ["", CORES])
def test_the_slab_is_registered(make, photos, caplog, monkeypatch, backend):
    if not _registers():
        pytest.skip("needs gpu-registration: this one registers no memory that is read-only")
    monkeypatch.setenv("FOREBAY_NVJPEG_BACKEND", backend)
    loader = make(photos, fields=fields(), batch_size=64, device="cuda", framework="torch")
    list(loader)
    loader.close()
    assert not [r for r in caplog.records if "pinned memory" in r.getMessage()]


def test_daemon_reports_gpus_and_their_trainers(make, photos):
    loader = make(photos, fields=fields(), batch_size=64, device="cuda", framework="torch")
    next(iter(loader))
    gpus = _forebay_status()["gpus"]
    assert "failing" not in gpus, gpus
    assert gpus["driver"]
    assert len(gpus["devices"]) >= torch.cuda.device_count()
    (here,) = [gpu for gpu in gpus["devices"] if gpu["index"] == _first_visible()]
    assert here["uuid"].startswith("GPU-")
    assert here["model"] == torch.cuda.get_device_name(0)
    assert 0 < here["memory_used_bytes"] <= here["memory_bytes"]
    for share in [here.get("sm_share", 0.0), *here["jpeg_shares"]]:
        assert 0.0 <= share <= 1.0
    if torch.cuda.get_device_capability(0) >= (9, 0):
        assert here["is_monitored"]
        assert here["over_seconds"] > 0
        # Photos cross the bus and keep the engines busy, longer than the daemon caches its figures.
        began = time.monotonic()
        while time.monotonic() - began < 1.0:
            list(loader)
        later = _forebay_status()["gpus"]["devices"]
        (later,) = [gpu for gpu in later if gpu["index"] == here["index"]]
        assert later["pcie_in_bytes_per_second"] > 0
        assert later["jpeg_shares"]
        # The figures of a moment ago may name the job before.
        here = later
    if str(os.getpid()) not in _computing():
        pytest.skip("needs gpu-pids: the driver sees another process id than this machine")
    (job,) = here["jobs"]
    labels = f'UUID="{here["uuid"]}"', f'session="{job["session"]}"'
    told = [line for line in _metrics() if line.startswith("forebay_gpu_job_info{")]
    assert [line for line in told if all(label in line for label in labels)], told


# The last: a driver that keeps a fault of it would fail others.
def test_destroyed_cuda_context_is_an_error_not_a_crash(photos):
    """Another process may reset the device; here the script resets it itself."""
    script = """
        import ctypes, os, sys
        import forebay, torch
        loader = forebay.DataLoader(
            sys.argv[1:], batch_size=64, device="cuda", framework="torch",
            fields={"image": forebay.Image("jpg", size=64)},
        )
        batches = iter(loader)
        next(batches)
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
        try:
            for _ in batches:
                pass
        except (forebay.ForebayError, RuntimeError) as error:
            print(type(error).__name__, flush=True)
            os._exit(0)
        os._exit(1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *photos],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _forebay_status() -> dict:
    command = (
        "import sys; from forebay._cli import main; sys.argv[1:] = ['status', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True)
    return json.loads(done.stdout)


def _metrics() -> list[str]:
    """Return the lines of the daemon's metrics."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"{os.environ['FOREBAY_CACHE']}/daemon/forebayd.sock")
        peer.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    return answer.decode().splitlines()


def _smi(query: str) -> list[str]:
    """Return the lines of nvidia-smi's answer."""
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")


def _computing() -> list[str]:
    """Return the ids of the processes that compute on GPUs, as the driver sees them."""
    return _smi("--query-compute-apps=pid")


def _first_visible() -> int:
    """Return the driver's number of torch's first device."""
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    (number,) = [line for line in _smi("--query-gpu=index,uuid") if uuid in line]
    return int(number.split(",")[0])


def _registers() -> bool:
    """Return True if the device can register read-only maps: attribute 113."""
    cuda, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), 113, 0)
    return value.value != 0
