"""Fixtures: small shards, one embedded daemon per test session, and the cleanup at its end.

The session ends every daemon that it started, by process id, and fails if one survives.
"""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import select
import shutil
import signal
import struct
import subprocess
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from forebay import DataLoader
from forebay._launch import command

if TYPE_CHECKING:
    from selenium import webdriver

# Seconds that a process has to end after SIGTERM; then the session fails.
GONE_WITHIN = 30

# Last statement of a script with a process group, once the work is done. Gloo's threads outlive
# `destroy_process_group`, and a tensor that one of them frees while the interpreter ends aborts the
# process (pytorch/pytorch#179291), whatever else it runs.
END_BEFORE_GLOO = "import os, sys; sys.stdout.flush(); os._exit(0)"

Sample = dict[str, bytes]


def write_shard(path: Path, samples: list[tuple[str, Sample]]) -> str:
    """Write a tar of samples (key, fields) and return its path."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, fields in samples:
            for extension, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    """Start a real browser without a window."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium: `make setup-tests` installs one where it may")
    # Machines for GPU tests have neither a browser nor selenium.
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,1400")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


def save_picture(browser: webdriver.Chrome, name: str) -> None:
    """Save a screenshot for the documents in the folder `FOREBAY_PICTURES`, if it is set."""
    if folder := os.environ.get("FOREBAY_PICTURES"):
        browser.save_screenshot(f"{folder}/{name}.png")


def png(pixels: numpy.ndarray) -> bytes:
    """Encode uint8 pixels of shape (height, width, 3)."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def npy(array: numpy.ndarray) -> bytes:
    """Encode an array as a NumPy file."""
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def pixels(number: int) -> numpy.ndarray:
    """Return the image of sample `number`: 8 by 6 pixels that no other sample has."""
    return numpy.random.default_rng(number).integers(0, 256, (8, 6, 3), dtype=numpy.uint8)


def sample(number: int) -> tuple[str, Sample]:
    """Return the key and the fields of sample `number`, one field of every kind."""
    return f"s{number:05}", {
        "png": png(pixels(number)),
        "cls": str(number).encode(),
        "score": f"{number / 4}".encode(),
        "txt": f"text {number} é".encode(),
        "json": json.dumps({"number": number, "in": {"side": number * 2}}).encode(),
        "npy": npy(numpy.full((2, 3), number, dtype=numpy.int32)),
        "bin": bytes([number % 256]) * (number % 7 + 1),
    }


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Six shards of ten samples each; sample n is the nth sample of the list."""
    folder = tmp_path_factory.mktemp("shards")
    return [
        write_shard(folder / f"{shard:03}.tar", [sample(shard * 10 + n) for n in range(10)])
        for shard in range(6)
    ]


@pytest.fixture
def shard_of(tmp_path: Path) -> Callable[[list[tuple[str, Sample]]], str]:
    """A function that writes a shard for one test."""
    made: list[str] = []

    def write(samples: list[tuple[str, Sample]]) -> str:
        made.append(write_shard(tmp_path / f"own-{len(made)}.tar", samples))
        return made[-1]

    return write


def write_manifest(path: Path, listed: list[tuple[str, int]]) -> str:
    """Write a manifest as `forebay index` does, from URLs and sample counts; return its path."""
    from forebay import _native

    document = {
        "version": 1,
        "hash": _native.manifest_hash(listed),
        "shards": [{"url": url, "samples": samples} for url, samples in listed],
    }
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture(scope="session")
def manifest(shards: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A manifest of `shards`."""
    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    return write_manifest(path, [(url, 10) for url in shards])


def processes_in(runtime: Path) -> dict[int, list[str]]:
    """Return the command lines of the embedded daemons of `runtime`, by process id."""
    found = {}
    wanted = f"XDG_RUNTIME_DIR={runtime}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if wanted in environment and "--embedded" in command:
            found[int(entry.name)] = command
    return found


def wait_gone(pid: int) -> bool:
    """Wait until a process has ended; return False if it survives `GONE_WITHIN`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], GONE_WITHIN)[0])
    finally:
        os.close(handle)


class Home:
    """Directories and environment of a separate embedded daemon."""

    def __init__(self, folder: Path) -> None:
        self.runtime = folder / "runtime"
        self.cache = folder / "cache"
        self.runtime.mkdir(mode=0o700)
        self.environment = {
            "XDG_RUNTIME_DIR": str(self.runtime),
            "FOREBAY_CACHE": str(self.cache),
            "FOREBAY_CAPACITY": "256MiB",
            "FOREBAY_DAEMON": "embedded",
        }

    def daemons(self) -> list[int]:
        """Return the process ids of the daemons that run in these directories."""
        return sorted(processes_in(self.runtime))

    def end(self) -> None:
        """End the daemons of these directories, and check that they are gone."""
        for pid in self.daemons():
            os.kill(pid, signal.SIGTERM)
            assert wait_gone(pid), f"daemon {pid} ignores SIGTERM"
        assert not self.daemons()


@contextmanager
def node_daemon(config: Path) -> Iterator[None]:
    """Run a node's daemon from a configuration file, and end it afterwards."""
    arguments = [*command(), "daemon", "--config", str(config)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stderr is not None
            assert any("listening" in line for line in daemon.stderr)
            yield
        finally:
            daemon.terminate()
            daemon.communicate(timeout=GONE_WITHIN)
    assert daemon.returncode == 0


@pytest.fixture(scope="session", autouse=True)
def _daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The embedded daemon that most tests share."""
    home = Home(tmp_path_factory.mktemp("daemon"))
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                patch.delenv(name)
        for name, value in home.environment.items():
            patch.setenv(name, value)
        yield
        home.end()


@pytest.fixture(scope="module")
def ended_workers() -> Iterator[None]:
    """Collect unfinished iterations, and torch's workers: one that is left would start the next
    daemon.
    """
    torch = pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        # torch waits 5 s for each worker that raised before it ends the worker.
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
        yield
        gc.collect()
    for worker in multiprocessing.active_children():
        # It was told to end; a busy machine takes its time.
        worker.join(GONE_WITHIN)
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def closed_files(ended_workers: None) -> Iterator[None]:
    """Collect files that webdataset left open, before tests that fail on such warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Directories of a daemon for one test; the daemon does not run yet."""
    home = Home(tmp_path)
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    yield home
    home.end()


def steps(folder: Path) -> dict[int, list[str]]:
    """Return the samples of each step, of all ranks; of a repeated step, the last time."""
    found: dict[int, list[str]] = {}
    for path in folder.iterdir():
        rank = dict(json.loads(line) for line in path.open())
        for step, keys in rank.items():
            found[step] = sorted([*found.get(step, []), *keys])
    return found


def assert_each_sample_once(seen: dict[int, list[str]]) -> None:
    """Compare two epochs of ten steps with the 60 samples of `shards`."""
    for epoch in range(2):
        keys = [key for step in range(10) for key in seen[epoch * 10 + step]]
        assert sorted(keys) == [f"s{number:05}" for number in range(60)]


@dataclass
class Bucket:
    """A folder of a bucket of a real S3 server, and the same folder on the disk behind it."""

    url: str
    folder: Path
    environment: dict[str, str]

    def names(self) -> list[str]:
        """Return the names of the objects below the folder that are no documents of Forebay."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.folder)) for path in files]
        return sorted(name for name in names if not name.startswith(".") and "/." not in name)


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve a folder, whose folders are the buckets; yields the variables that lead there."""
    root = Path(__file__).resolve().parents[3]
    program = root / os.environ.get("CARGO_TARGET_DIR", "target") / "release/forebay-origin"
    keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests-secret"}
    named = ["--access-key", "tests", "--secret-key", "tests-secret"]
    with subprocess.Popen(
        [program, "--dir", folder, "--port", "0", "--until-eof", *named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            endpoint = server.stdout.readline().removeprefix("listening on ").strip()
            yield keys | {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """One S3 server for all tests, as s3fs remembers the first endpoint of a process."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "bucket").mkdir()
    with s3_server(folder) as environment:
        yield folder / "bucket", environment


@pytest.fixture
def bucket(
    store: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    """An empty folder of the S3 server for one test."""
    folder, environment = store
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return Bucket(f"s3://bucket/{tmp_path.name}", folder / tmp_path.name, environment)


@pytest.fixture
def make(shards: list[str]) -> Iterator[Callable[..., DataLoader]]:
    """A function that makes loaders and closes them; by default of `shards`, as NumPy arrays."""
    made: list[DataLoader] = []

    def make(urls: object = None, **options: object) -> DataLoader:
        settings: dict[str, object] = {"batch_size": 4, "framework": "numpy", "timeout": 60.0}
        made.append(DataLoader(shards if urls is None else urls, **(settings | options)))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
