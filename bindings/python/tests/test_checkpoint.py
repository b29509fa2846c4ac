"""Checkpoints: torch's own saves and loads through the node, and what plain torch makes of them."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from conftest import END_BEFORE_GLOO
from forebay import Invalid, NotFound, checkpoint
from forebay.checkpoint import _distributed
from forebay.checkpoint._archives import without_checksums

# Seconds for an upload to a local folder on a busy machine.
PATIENCE = 120
# Whole slabs of 64 MiB for so many files exceed the memory of the tests' daemon.
OPEN_AT_ONCE = 100

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state(seed: int) -> dict[str, torch.Tensor]:
    """Return tensors of 20 MB, a scalar, and an empty one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.rand(5_000_000, generator=generator),
        "steps": torch.tensor(seed),
        "empty": torch.zeros(0),
    }


def blank() -> dict[str, torch.Tensor]:
    """Return tensors of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in state(0).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return True if all tensors are equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a checkpoint in a folder that does not exist yet."""
    return str(tmp_path / "run" / "step-1")


def test_torch_saves_and_loads_files(url):
    wanted = state(1)
    with checkpoint.open(url, "wb") as file:
        torch.save(wanted, file)
    # This node reads it at once; the object is there once it is uploaded.
    with checkpoint.open(url) as file:
        assert same(torch.load(file), wanted)
    checkpoint.wait(url, "published", PATIENCE)
    assert same(torch.load(url), wanted)


def test_stored_file_behaves_like_a_file(url):
    content = os.urandom(9_000_001)
    with checkpoint.open(url, "wb") as file:
        assert (file.readable(), file.writable()) == (False, True)
        for view in (
            content[:10],
            memoryview(content)[10:5_000_000],
            bytearray(content[5_000_000:]),
        ):
            assert file.write(view) == len(view)
        assert file.tell() == len(content)
    with pytest.raises(ValueError, match="closed"):
        file.write(b"")
    with checkpoint.open(url, "rb") as file:
        assert len(file) == len(content)
        assert file.read(3) == content[:3]
        assert file.seek(-5, io.SEEK_END) == len(content) - 5
        assert (file.read(), file.read(1)) == (content[-5:], b"")
        assert file.seek(4_194_300) == 4_194_300
        assert file.read(10) == content[4_194_300:4_194_310]
        file.seek(0)
        assert file.read() == content
        with pytest.raises(ValueError, match="negative"):
            file.seek(-1)
        # Asking for bytes moves nothing, and may go beyond the end.
        for offset, size in ((8_999_000, 1_001), (0, 2**62), (2**62, 1)):
            file.prefetch(offset, size)
        assert file.tell() == len(content)
        file.seek(-1_000, io.SEEK_END)
        assert file.read() == content[-1_000:]
    with pytest.raises(ValueError, match="closed"):
        file.prefetch(0, 1)
    with io.BufferedReader(checkpoint.open(url)) as buffered:
        assert buffered.read() == content


def test_short_files_take_little_memory(url):
    """Each open file has memory of the daemon: a short one no more than it needs."""
    with checkpoint.open(url, "wb") as file:
        file.write(b"short")
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(checkpoint.open(url)) for _ in range(OPEN_AT_ONCE)]
        assert {file.read() for file in files} == {b"short"}


def test_failed_save_leaves_nothing(url):
    def fail() -> None:
        with checkpoint.open(url, "wb") as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(NotFound):
        checkpoint.open(url)
    file = checkpoint.open(url, "wb")
    file.write(b"half")
    # Nobody closed it.
    del file
    with pytest.raises(NotFound):
        checkpoint.wait(url, "staged", PATIENCE)


def test_distributed_checkpoint_is_torchs_own(url):
    wanted, found = state(2), blank()
    dcp.save(wanted, storage_writer=checkpoint.Writer(url, step=2))
    checkpoint.wait(url, "published", PATIENCE)
    dcp.load(found, checkpoint_id=url)
    assert same(found, wanted)
    found = blank()
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert same(found, wanted)
    assert checkpoint.latest(os.path.dirname(url)) == url


def test_writer_takes_no_second_checksum(url):
    dcp.save(state(2), storage_writer=checkpoint.Writer(url))
    checkpoint.wait(url, "published", PATIENCE)
    metadata = checkpoint.Reader(url).read_metadata()
    stored = next(at for index, at in metadata.storage_data.items() if index.fqn == "weight")
    content = Path(url, stored.relative_path).read_bytes()
    archive = zipfile.ZipFile(io.BytesIO(content[stored.offset :][: stored.length]))
    assert {record.CRC for record in archive.infolist() if record.file_size > 1_000_000} == {0}
    # Other saves do.
    assert torch.serialization.get_crc32_options()


def test_setting_survives_saves_that_overlap():
    first, second = without_checksums(), without_checksums()
    begun, ended = threading.Event(), threading.Event()

    def save() -> None:
        with second:
            begun.set()
            ended.wait(PATIENCE)
        kept.append(torch.serialization.get_crc32_options())

    kept: list[bool] = []
    thread = threading.Thread(target=save)
    with first:
        thread.start()
        begun.wait(PATIENCE)
        assert not torch.serialization.get_crc32_options()
    assert torch.serialization.get_crc32_options()
    ended.set()
    thread.join()
    assert kept == [True]
    assert torch.serialization.get_crc32_options()


def test_checkpoint_of_plain_torch_is_restored(url):
    wanted, found = state(3), blank()
    dcp.save(wanted, checkpoint_id=url)
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert same(found, wanted)
    # It has no manifest.
    assert checkpoint.latest(os.path.dirname(url)) is None


def test_published_checkpoint_is_replaced_only_on_request(url):
    writer = checkpoint.Writer(url)
    dcp.save(state(4), storage_writer=writer)
    checkpoint.wait(url, "published", PATIENCE)
    with pytest.raises(dcp.api.CheckpointException) as raised:
        dcp.save(state(5), storage_writer=writer)
    (error, _) = raised.value.failures[0]
    assert isinstance(error, Invalid)
    assert error.places["reason"] == "exists"
    found = blank()
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert same(found, state(4))
    dcp.save(state(6), storage_writer=checkpoint.Writer(url, overwrite=True))
    checkpoint.wait(url, "published", PATIENCE)
    dcp.load(found, checkpoint_id=url)
    assert same(found, state(6))
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert same(found, state(6))


def test_writer_and_reader_can_be_pickled(url):
    writer = pickle.loads(pickle.dumps(checkpoint.Writer(url, step=7, thread_count=3)))
    dcp.save(state(7), storage_writer=writer)
    checkpoint.wait(url, "published", PATIENCE)
    found = blank()
    reader = pickle.loads(pickle.dumps(checkpoint.Reader(url, thread_count=2)))
    dcp.load(found, storage_reader=reader)
    assert same(found, state(7))


def test_descriptions_are_asked_for_ahead(url, monkeypatch):
    """Tensors longer than lent memory, beside short ones in one block."""
    wanted = {f"{n}": torch.full((items,), float(n)) for n, items in enumerate((18 << 20, 3, 9, 0))}
    dcp.save(wanted, storage_writer=checkpoint.Writer(url))
    asked: list[tuple[int, int]] = []
    own = checkpoint.StoredFile.prefetch

    def prefetch(file, offset, size):
        asked.append((offset, size))
        own(file, offset, size)

    monkeypatch.setattr(checkpoint.StoredFile, "prefetch", prefetch)
    checkpoint.wait(url, "published", PATIENCE)
    found = {name: torch.zeros_like(value) for name, value in wanted.items()}
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert same(found, wanted)
    # All but the first are asked for once, while the tensor before is read; the empty one is not.
    assert len(asked) == len(set(asked)) == len(wanted) - 2


def test_threads_share_what_a_rank_reads(url, monkeypatch):
    wanted = {f"layer{number}": torch.full((500_000,), float(number)) for number in range(9)}
    dcp.save(wanted, storage_writer=checkpoint.Writer(url))
    checkpoint.wait(url, "published", PATIENCE)
    own = _distributed.restore
    seen: set[int] = set()

    def restore(*arguments):
        seen.add(threading.get_ident())
        return own(*arguments)

    monkeypatch.setattr(_distributed, "restore", restore)
    for threads in (1, 2, 5, 64):
        found = {name: torch.zeros_like(value) for name, value in wanted.items()}
        seen.clear()
        dcp.load(found, storage_reader=checkpoint.Reader(url, thread_count=threads))
        assert same(found, wanted)
        # A thread that is done takes the next part.
        assert 1 <= len(seen) <= threads
        # Ctrl-C reaches the caller's thread, so that one restores, too.
        assert threading.get_ident() in seen


def test_folder_is_pushed_as_a_checkpoint(tmp_path, url):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    content = {"config.json": b"{}", "deep/model.bin": os.urandom(5_000_000), "empty": b""}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    checkpoint.push(folder, url, step=8)
    checkpoint.wait(url, "published", PATIENCE)
    for name, data in content.items():
        assert Path(url, name).read_bytes() == data
        with checkpoint.open(f"{url}/{name}") as file:
            assert file.read() == data
    assert checkpoint.latest(os.path.dirname(url)) == url
    with pytest.raises(NotFound):
        checkpoint.push(tmp_path / "none", url)
    (tmp_path / "none").mkdir()
    with pytest.raises(Invalid):
        checkpoint.push(tmp_path / "none", url)


def test_push_leaves_a_published_checkpoint_alone(tmp_path, url):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model").write_bytes(b"first")
    checkpoint.push(folder, url)
    checkpoint.wait(url, "published", PATIENCE)
    (folder / "model").write_bytes(b"second")
    with pytest.raises(Invalid) as raised:
        checkpoint.push(folder, url)
    assert raised.value.places["reason"] == "exists"
    assert Path(url, "model").read_bytes() == b"first"
    checkpoint.push(folder, url, overwrite=True)
    # It waits for this push, not for what is there.
    checkpoint.wait(url, "published", PATIENCE)
    assert Path(url, "model").read_bytes() == b"second"
    with checkpoint.open(f"{url}/model") as file:
        assert file.read() == b"second"


def test_checkpoint_is_restored_to_a_folder_and_removed(tmp_path, url):
    dcp.save(state(3), storage_writer=checkpoint.Writer(url))
    folder = tmp_path / "restored"
    checkpoint.wait(url, "published", PATIENCE)
    checkpoint.restore(url, folder)
    # It is torch's own, without Forebay's documents.
    found = blank()
    dcp.load(found, checkpoint_id=folder)
    assert same(found, state(3))
    assert not (folder / ".forebay").exists()
    with pytest.raises(Invalid):
        checkpoint.restore(url, folder)
    checkpoint.remove(url)
    assert not any(path.is_file() for path in Path(url).rglob("*"))
    for use in (checkpoint.Reader(url).read_metadata, lambda: checkpoint.remove(url)):
        with pytest.raises(NotFound):
            use()
    with pytest.raises(NotFound):
        checkpoint.restore(url, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_damaged_object_is_never_restored(url):
    dcp.save(state(9), storage_writer=checkpoint.Writer(url))
    checkpoint.wait(url, "published", PATIENCE)
    (data,) = Path(url).glob("*.distcp")
    damaged = bytearray(data.read_bytes())
    damaged[1_000_000] ^= 1
    data.write_bytes(damaged)
    found = blank()
    # This node has a right copy.
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert same(found, state(9))


def test_mistakes_are_told(url, tmp_path):
    for mistake in ("r", "w", "ab", None):
        with pytest.raises(Invalid, match="mode"):
            checkpoint.open(url, mode=mistake)
    # pathlib makes s3:/bucket/key of a URL, a path below the current folder.
    for mistake in ("", "/", "s3://bucket", Path("s3://bucket/key")):
        with pytest.raises(Invalid):
            checkpoint.open(mistake, "wb")
    with pytest.raises(Invalid, match="level"):
        checkpoint.wait(url, "durable")
    for wrong in ({"step": -1}, {"thread_count": 0}, {"overwrite": "no"}, {"timeout": 0}):
        with pytest.raises(Invalid):
            checkpoint.Writer(url, **wrong)
    with pytest.raises(Invalid):
        checkpoint.open("http://127.0.0.1:1/model.pt", "wb")
    with pytest.raises(Invalid):
        checkpoint.Reader(url, thread_count=0)
    with pytest.raises(NotFound):
        checkpoint.Reader(url).read_metadata()
    assert checkpoint.latest(tmp_path / "nowhere") is None


RANKS = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from forebay import checkpoint

verb, url, meet = sys.argv[1:4]
rank, world = map(int, sys.argv[4:])
dist.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=world)
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 8))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
if verb == "save":
    step(); step()
else:
    # Optimizers have no state before their first step.
    step()
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optimizer": moments}
if verb == "save":
    dcp.async_save(state, storage_writer=checkpoint.Writer(url, step=2)).result()
    checkpoint.wait(url, "published", 120)
else:
    assert checkpoint.latest(url.rsplit("/", 1)[0]) == url
    dcp.load(state, storage_reader=checkpoint.Reader(url))
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
moments = [of["exp_avg_sq"] for of in optimizer.state.values()]
squares = sum(moment.full_tensor().double().sum().item() for moment in moments)
if rank == 0:
    print(f"{total!r} {squares!r}")
dist.destroy_process_group()
"""


def ranks(verb: str, url: str, meet: Path, world: int) -> str:
    """Run a group of processes, and return what rank 0 says."""
    command = [sys.executable, "-W", "ignore", "-c", RANKS + END_BEFORE_GLOO, verb, url, str(meet)]
    processes = [
        subprocess.Popen([*command, str(rank), str(world)], stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world
    return said[0]


def test_four_ranks_save_and_two_restore(url, tmp_path):
    saved = ranks("save", url, tmp_path / "four", 4)
    restored = ranks("load", url, tmp_path / "two", 2)
    assert [float(x) for x in restored.split()] == pytest.approx(
        [float(x) for x in saved.split()], rel=1e-12
    )
