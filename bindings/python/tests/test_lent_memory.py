"""Samples of a memory tier, which batches read in place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

import forebay
from conftest import node_daemon, pixels, sample

FIELDS = {
    "image": forebay.Image("png", layout="NHWC"),
    "label": forebay.Int("cls"),
    "text": forebay.Text("txt"),
    "array": forebay.Npy("npy"),
    "bytes": forebay.Bytes("bin"),
    "view": forebay.Bytes("bin", optional=True, copy=False),
    "other": forebay.Bytes("npy", copy=False),
    "missing": forebay.Bytes("nix", optional=True, copy=False),
}


@contextmanager
def memory_daemon(folder: Path) -> Iterator[str]:
    """Run a daemon that caches in memory alone, and yield its socket."""
    socket, config = folder / "d.sock", folder / "forebay.toml"
    config.write_text(
        f'[daemon]\nsocket = "{socket}"\nmemory = "512MiB"\n'
        '[[tier]]\nname = "ram"\nclass = "memory"\ncapacity = "64MiB"\n'
    )
    with node_daemon(config):
        yield str(socket)


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    """Socket of a daemon that caches in memory alone."""
    with memory_daemon(tmp_path) as socket:
        yield socket


def lent_bytes(socket: str) -> int:
    """Return the bytes of shards that trainers read in place."""
    main = "from forebay._cli import main; main()"
    command = [sys.executable, "-c", main, "status", "--json", "--daemon", f"unix:{socket}"]
    status = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    (tier,) = status["tiers"]
    lent: int = tier["lent_bytes"]
    return lent


def check(batch: dict[str, Any]) -> None:
    """Check every field of a batch."""
    for row, key in enumerate(batch["__key__"]):
        number = int(key[1:])
        fields = sample(number)[1]
        assert (batch["image"][row] == pixels(number)).all()
        assert batch["label"][row] == number
        assert batch["text"][row] == fields["txt"].decode()
        assert (batch["array"][row] == number).all()
        assert batch["bytes"][row] == batch["view"][row] == fields["bin"]
        assert batch["view"][row].readonly
        assert numpy.frombuffer(batch["other"][row], "u1").tobytes() == fields["npy"]
        assert batch["missing"][row] is None
        assert (batch["view_present"][row], batch["missing_present"][row]) == (True, False)


@pytest.mark.parametrize("verify", ["arrival", "always"])
def test_every_field_is_right_whatever_memory_it_lies_in(
    make: Callable[..., Any], socket: str, verify: str
) -> None:
    """Batches come from arriving shards, from memory, and from the slab."""
    loader = make(batch_size=7, fields=FIELDS, daemon=f"unix:{socket}", verify=verify)
    for _ in range(3):
        batches = list(loader)
        assert sum(len(batch["label"]) for batch in batches) == 60
        # Kept batches stay right, beyond those that may be views.
        for batch in batches:
            check(batch)


def test_kept_views_outlive_their_loader(make: Callable[..., Any], socket: str) -> None:
    """Views keep the memory, and the shard stays on its tier meanwhile."""
    loader = make(batch_size=7, fields=FIELDS, daemon=f"unix:{socket}")
    assert sum(len(batch["label"]) for batch in loader) == 60
    # A shard is lent shortly after it has come.
    for _ in range(100):
        copies = loader.stats()["private_copies"]
        kept = next(iter(loader))
        assert loader.stats()["private_copies"] == copies
        if lent_bytes(socket) > 0:
            break
    views = list(kept["view"])
    loader.close()
    assert lent_bytes(socket) > 0
    check(kept)
    assert [bytes(view) for view in views] == [sample(number)[1]["bin"] for number in range(7)]


READING = """
import signal, sys, forebay
# As in a program that embeds Python without its signal handlers.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
view = forebay.Bytes("bin", copy=False)
address, *shards = sys.argv[1:]
loader = forebay.DataLoader(shards, fields={"view": view}, framework="numpy", daemon=address)
while sys.stdin.readline() == "read\\n":
    kept = next(iter(loader))
    print("kept", flush=True)
del kept
loader.close()
print("alive")
"""


def test_end_of_the_daemon_ends_no_process_that_reads_its_memory(
    tmp_path: Path, shards: list[str]
) -> None:
    with memory_daemon(tmp_path) as socket:
        command = [sys.executable, "-c", READING, f"unix:{socket}", *shards]
        reader = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert reader.stdin is not None
        assert reader.stdout is not None
        # A shard is lent shortly after it has come.
        for _ in range(100):
            reader.stdin.write("read\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "kept\n"
            if lent_bytes(socket) > 0:
                break
        assert lent_bytes(socket) > 0
    said, _ = reader.communicate("end\n", timeout=60)
    assert (reader.returncode, said) == (0, "alive\n")


def test_verify_takes_one_of_two_words(make: Callable[..., Any]) -> None:
    with pytest.raises(forebay.Invalid, match="verify"):
        make(verify="never")
