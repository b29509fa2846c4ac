"""``split="dynamic"``: ranks share shards by leases, as real processes, some slow and some killed.

The tests cover states that resume in other worlds, and options that are rejected.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import forebay
from conftest import END_BEFORE_GLOO, wait_gone, write_manifest, write_shard
from forebay.torch import IterableDataset

COUNTS = (17, 5, 23, 1, 11, 19, 8, 14, 3, 12, 9, 10)

# One rank. Each line on stdin is a command: "step" prints the next batch and finishes the batch
# before, "state" prints the state, "end" prints all batches that are left.
RANK = """
import json, sys, forebay
job = json.loads(sys.stdin.readline())
state = json.loads(sys.stdin.readline())
loader = forebay.DataLoader(
    **job, split="dynamic", batch_size=4, shuffle=True, window=3, seed=5, framework="numpy",
    fields={"label": forebay.Int("cls")}, timeout=60.0, prefetch=1,
)
if state is not None:
    loader.load_state_dict(state)
batches = iter(loader)
def step():
    batch = next(batches, None)
    return None if batch is None else [
        [url, key] for url, key in zip(batch["__url__"], batch["__key__"])
    ]
for line in sys.stdin:
    if line == "state\\n":
        print(json.dumps(loader.state_dict()), flush=True)
    elif line == "end\\n":
        while (told := step()) is not None:
            print(json.dumps(told), flush=True)
        print("null", flush=True)
    else:
        print(json.dumps(step()), flush=True)
loader.close()
"""


class Rank:
    """A rank's process, and the samples that it received."""

    def __init__(self, job, state=None, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.done: list[tuple[str, str]] = []
        self.in_use: list[tuple[str, str]] = []
        self.send(json.dumps(job))
        self.send(json.dumps(state))

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        assert line, f"the rank ended: {self.process.wait(30)}"
        return json.loads(line)

    def record(self, told):
        self.done += self.in_use
        self.in_use = [tuple(sample) for sample in told or []]
        return told is not None

    def step(self):
        self.send("step")
        return self.record(self.receive())

    def state(self):
        self.send("state")
        state = self.receive()
        self.done += self.in_use
        self.in_use = []
        return state

    def finish(self):
        """Receive all batches that are left, after `send("end")`."""
        while self.record(self.receive()):
            pass
        self.close()
        return self.done

    def close(self):
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self):
        self.process.kill()
        self.process.communicate()
        return self.done


@pytest.fixture
def data(tmp_path: Path) -> dict[str, object]:
    """Shards and their manifest, as arguments of a loader."""
    urls = []
    for shard, count in enumerate(COUNTS):
        samples = [(f"{n:03}", {"cls": b"%d" % n}) for n in range(count)]
        urls.append(write_shard(tmp_path / f"{shard}.tar", samples))
    listed = list(zip(urls, COUNTS, strict=True))
    return {"urls": urls, "manifest": write_manifest(tmp_path / "manifest.json", listed)}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A Redis server for one test."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    server = subprocess.Popen([*command, "--dir", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if "Ready to accept connections" in line:
            break
    yield f"redis://127.0.0.1:{port}"
    server.kill()
    server.communicate()


def all_samples(data):
    return {
        (url, f"{n:03}")
        for url, count in zip(data["urls"], COUNTS, strict=True)
        for n in range(count)
    }


def assert_once(samples, data):
    twice = [sample for sample, times in Counter(samples).items() if times > 1]
    assert not twice
    assert set(samples) == all_samples(data)


@pytest.fixture
def world(data) -> Iterator[Callable[..., list[Rank]]]:
    """A function that starts the ranks of a job; each job has its own MASTER_PORT."""
    started: list[list[Rank]] = []

    def start(size, state=None, **environment):
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + len(started))}
        ranks = [
            Rank(data | {"rank": rank, "world_size": size}, state, **meeting, **environment)
            for rank in range(size)
        ]
        started.append(ranks)
        return ranks

    yield start
    for rank in (rank for ranks in started for rank in ranks):
        if rank.process.poll() is None:
            rank.kill()


@pytest.mark.parametrize("lease_store", ["daemon", "redis"])
def test_samples_of_a_killed_rank_are_read_by_the_others(data, world, lease_store, request):
    given = {} if lease_store == "daemon" else {"FOREBAY_LEASES": request.getfixturevalue("redis")}
    fast, slow, victim = world(3, **given)
    assert slow.step()
    for _ in range(3):
        assert victim.step()
    # Two batches count as done: the third was still in use.
    done = victim.kill()
    assert 0 < len(done) <= 8
    fast.send("end")
    slow.send("end")
    # Both ranks live to the end, and the fast one waits for the shards that the slow one holds.
    quick, lazy = fast.finish(), slow.finish()
    assert_once(done + quick + lazy, data)


def test_slow_rank_reads_less(data, world):
    fast, slow = world(2)
    assert slow.step()
    # The slow rank holds four shards at most, perhaps the largest; the fast one reads the others.
    while len(fast.done) < sum(COUNTS) - sum(sorted(COUNTS)[-4:]):
        assert fast.step()
    fast.send("end")
    slow.send("end")
    quick, lazy = fast.finish(), slow.finish()
    assert len(lazy) > 0
    assert_once(quick + lazy, data)


def test_state_resumes_in_other_worlds_with_daemons_killed(home, data, world):
    done, state = [], None
    for size, steps in [(2, 3), (3, 2), (1, 4)]:
        ranks = world(size, state)
        for step in range(steps):
            for rank in ranks:
                assert rank.step()
            if step == 1:
                for pid in home.daemons():
                    os.kill(pid, signal.SIGKILL)
                    assert wait_gone(pid)
        # Each state reports the rank's finished samples, so the last state includes all of them.
        for rank in ranks:
            state = rank.state()
        assert state["split"] == "dynamic"
        assert state["position"] > 0
        for rank in ranks:
            done += rank.kill()
    ranks = world(4, state)
    for rank in ranks:
        rank.send("end")
    for rank in ranks:
        done += rank.finish()
    assert_once(done, data)


def loader(data, **more):
    return forebay.DataLoader(
        **data,
        split="dynamic",
        fields={"label": forebay.Int("cls")},
        **{"batch_size": 4, "framework": "numpy", "rank": 0, "world_size": 1} | more,
    )


def samples(batches):
    return [
        pair for batch in batches for pair in zip(batch["__url__"], batch["__key__"], strict=True)
    ]


def test_each_epoch_of_one_process_has_every_sample_once(data):
    with loader(data, shuffle=True) as batches:
        assert batches.num_samples == sum(COUNTS)
        with pytest.raises(TypeError, match="num_samples"):
            len(batches)
        first, second = samples(batches), samples(batches)
        assert batches.epoch == 2
        assert_once(first, data)
        assert_once(second, data)
        assert first != second
        state = batches.state_dict()
        assert (state["epoch"], state["next"], state["open"]) == (2, 0, [])
        # A repeated epoch has every sample again.
        batches.set_epoch(0)
        assert_once(samples(batches), data)


def test_single_rank_without_shuffle_keeps_the_list_order(data):
    with loader(data) as batches:
        listed = [
            (url, f"{n:03}")
            for url, count in zip(data["urls"], COUNTS, strict=True)
            for n in range(count)
        ]
        assert samples(batches) == listed


@pytest.mark.parametrize("workers", [0, 2])
def test_state_after_a_break_resumes_at_the_next_batch(data, workers):
    with loader(data, shuffle=True, workers=workers, transform=dict) as batches:
        before = []
        for number, batch in enumerate(batches):
            before += samples([batch])
            if number == 5:
                break
        state = json.loads(json.dumps(batches.state_dict()))
    if workers:
        # So does one that is taken after the end.
        state = json.loads(json.dumps(batches.state_dict()))
    with loader(data, shuffle=True, batch_size=7) as rest:
        # The version before saved the same order.
        for order in (1, 2):
            rest.load_state_dict(state | {"order": order})
            assert rest.state_dict() == state
        rest.set_epoch(state["epoch"])
        assert_once(before + samples(rest), data)
        assert rest.epoch == state["epoch"] + 1


def test_raised_error_keeps_the_position(data, tmp_path):
    bad = write_shard(tmp_path / "bad.tar", [("bad", {"cls": b"x"})])
    urls = [*data["urls"][:3], bad, *data["urls"][3:]]
    answers = iter(["raise", "skip"])
    with loader({"urls": urls}, on_error=lambda error: next(answers)) as batches:
        found, iteration = [], iter(batches)
        while True:
            try:
                batch = next(iteration, None)
            except forebay.BadSample:
                continue
            if batch is None:
                break
            found += samples([batch])
        assert next(answers, None) is None
        assert_once(found, data)


def test_forked_child_cannot_continue_the_iteration(data):
    with loader(data) as batches:
        iteration = iter(batches)
        before = samples([next(iteration)])
        child = os.fork()
        if child == 0:
            try:
                next(iteration)
            except forebay.Invalid as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_once(before + samples(iteration), data)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("drop_last", True),
        ("pad_last", True),
        ("epoch_samples", 10),
        ("lanes", 2),
        ("shuffle", "global"),
    ],
)
def test_option_without_meaning_for_dynamic_split_is_rejected(data, option, value):
    with pytest.raises(forebay.Invalid, match=option):
        loader(data, **{option: value})


def test_mixtures_and_uneven_static_split_are_rejected(data):
    with pytest.raises(forebay.Invalid, match="mixture"):
        loader({"urls": [forebay.Stream(data["urls"][0]), forebay.Stream(data["urls"][1])]})
    with pytest.raises(forebay.Invalid, match="uneven"):
        forebay.DataLoader(data["urls"], uneven=True)


def test_dynamic_split_inside_torch_dataloader_is_rejected(data):
    given = data | {"split": "dynamic", "batch_size": 4, "rank": 0, "world_size": 1}
    for workers in (0, 1):
        around = DataLoader(
            IterableDataset(**given), batch_size=None, num_workers=workers, timeout=60 * workers
        )
        with pytest.raises(forebay.Invalid, match="torch's DataLoader"):
            next(iter(around))


def test_state_of_another_job_or_split_is_rejected(data):
    with loader(data, shuffle=True) as batches, loader(data, shuffle=True, seed=3) as other:
        state = batches.state_dict()
        with pytest.raises(forebay.Invalid, match="options"):
            other.load_state_dict(state)
        with pytest.raises(forebay.Invalid, match="state_dict"):
            batches.load_state_dict({**state, "open": [1]})
        with forebay.DataLoader(**data, rank=0, world_size=1) as static:
            with pytest.raises(forebay.Invalid, match="split"):
                static.load_state_dict(state)
            with pytest.raises(forebay.Invalid, match="split"):
                batches.load_state_dict(static.state_dict())


def test_ranks_without_a_common_job_name_are_rejected(data, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with loader(data, world_size=2) as batches, pytest.raises(forebay.Invalid, match="job="):
        iter(batches)
    with loader(data, world_size=2, job="alone") as batches:
        assert_once(samples(batches), data)


def test_ranks_on_several_nodes_require_a_lease_server(data, monkeypatch):
    for name, value in {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with (
        loader(data, world_size=2) as batches,
        pytest.raises(forebay.Invalid, match="FOREBAY_LEASES") as failed,
    ):
        next(iter(batches))
    # The daemon answers at once: no log has a place.
    with pytest.raises(forebay.Invalid) as unknown:
        batches.state_dict()
    assert str(unknown.value) == str(failed.value)


def test_torch_process_group_requires_uneven(data, tmp_path):
    code = """
import json, sys, torch, forebay
data, rank, meet = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=2)
given = data | {"split": "dynamic", "batch_size": 4, "fields": {"label": forebay.Int("cls")}}
try:
    iter(forebay.DataLoader(**given, job="torch"))
    sys.exit("even ranks were not rejected")
except forebay.Invalid as error:
    assert "uneven=True" in str(error) and "Join" in str(error), error
with forebay.DataLoader(**given, job="torch", uneven=True) as loader:
    pairs = [pair for batch in loader for pair in zip(batch["__url__"], batch["__key__"])]
print(json.dumps(pairs))
"""
    code += END_BEFORE_GLOO
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(data), str(rank), str(tmp_path / "meet")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert_once([tuple(pair) for lines in told for pair in json.loads(lines)], data)
