"""Every sample is read exactly once, in worlds of any size and across kills.

Real processes resume at many positions while daemons are killed; then ranks of
``torch.distributed`` are killed. Shard and key together identify a sample: shards repeat keys.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from conftest import END_BEFORE_GLOO, wait_gone, write_manifest, write_shard

# Uneven shards, one of them with a single sample; 20 positions to resume at.
COUNTS = (17, 5, 23, 1, 11, 19, 8, 14, 3)
PLACES = 20
# Shard and row of a sample that does not decode.
BAD = (2, 7)

# One rank: resumes from each state on stdin, and prints the samples of its batches without padding.
RANK = """
import json, sys, forebay
job = json.loads(sys.stdin.readline())
loader = forebay.DataLoader(
    **job, fields={"label": forebay.Int("cls")}, framework="numpy", timeout=60.0, on_error="skip"
)
for state in sys.stdin:
    loader.load_state_dict(json.loads(state))
    told = []
    for batch in loader:
        rows = zip(batch["__url__"], batch["__key__"], batch["__valid__"].tolist())
        told.append([[url, key] for url, key, valid in rows if valid])
    print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Shards and their manifest, as arguments of a loader."""
    folder = tmp_path_factory.mktemp("elastic")
    urls = []
    for shard, count in enumerate(COUNTS):
        samples = [
            (f"{n:03}", {"cls": b"x" if (shard, n) == BAD else b"%d" % n}) for n in range(count)
        ]
        urls.append(write_shard(folder / f"{shard}.tar", samples))
    listed = list(zip(urls, COUNTS, strict=True))
    return {"urls": urls, "manifest": write_manifest(folder / "manifest.json", listed)}


def samples_of(batch: dict[str, object]) -> list[list[str]]:
    return [[url, key] for url, key in zip(batch["__url__"], batch["__key__"], strict=True)]


def whole(job: dict[str, object]) -> list[list[str]]:
    """Return the global sequence of the first epoch."""
    with forebay.DataLoader(
        **job | {"batch_size": 7}, fields={"label": forebay.Int("cls")}, on_error="skip"
    ) as loader:
        return [sample for batch in loader for sample in samples_of(batch)]


def saved(job: dict[str, object], dice: random.Random) -> Iterator[tuple[dict[str, object], int]]:
    """Yield states after some steps of jobs of several sizes, and the number of samples before.

    All ranks of a job have the same state.
    """
    for _ in range(PLACES):
        world, batch_size = dice.choice([(1, 1), (1, 13), (2, 3), (3, 4), (4, 5)])
        steps = dice.randrange(sum(COUNTS) // (world * batch_size) + 1)
        states, before = [], 0
        for rank in range(world):
            with forebay.DataLoader(
                **job | {"batch_size": batch_size, "rank": rank, "world_size": world},
                fields={"label": forebay.Int("cls")},
                on_error="skip",
            ) as loader:
                batches = iter(loader)
                before += sum(len(next(batches)["__key__"]) for _ in range(steps))
                states.append(json.loads(json.dumps(loader.state_dict())))
        assert all(state == states[0] for state in states)
        yield states[0], before


@pytest.mark.parametrize(
    "order",
    [
        {"shuffle": True, "window": 3, "lanes": 1},
        {"shuffle": True, "window": 4, "lanes": 4},
        {"shuffle": "global"},
    ],
    ids=["window", "lanes", "global"],
)
def test_every_position_resumes_in_every_world_size(home, data, order):
    dice = random.Random(5)
    job = data | order | {"seed": 11}
    sequence = whole(job)
    assert len(sequence) == sum(COUNTS) - 1
    places = list(saved(job, dice))
    for world in (1, 2, 3, 4):
        batch_size = dice.randrange(2, 9)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(world)
        ]
        for number, rank in enumerate(ranks):
            given = job | {"rank": number, "world_size": world, "batch_size": batch_size}
            rank.stdin.write(json.dumps(given) + "\n")
            for state, _ in places:
                rank.stdin.write(json.dumps(state) + "\n")
            rank.stdin.close()
        for number, (state, before) in enumerate(places):
            if number % 7 == 3:
                for pid in home.daemons():
                    os.kill(pid, signal.SIGKILL)
                    assert wait_gone(pid)
            told = [json.loads(rank.stdout.readline()) for rank in ranks]
            assert len({len(batches) for batches in told}) == 1, "a rank would wait for ever"
            rest, at = sequence[before:], 0
            for step in zip(*told, strict=True):
                together = [sample for part in step for sample in part]
                expected = rest[at : at + len(together)]
                assert sorted(together) == sorted(expected), (world, state)
                # The bad sample keeps its place, and its batch is one sample shorter.
                full = world * batch_size
                is_last = at + len(together) == len(rest)
                assert len(together) in (full, full - 1) or is_last
                at += len(together)
            assert at == len(rest), (world, state)
        for rank in ranks:
            rank.stdout.close()
            assert rank.wait() == 0


# One rank under torchrun: all ranks step together, and rank 0 saves the state after each step.
TRAINER = """
import json, os, signal, sys, forebay, torch
import torch.distributed as dist
job, kept, folder, fatal = json.loads(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
loader = forebay.DataLoader(
    **job, fields={"label": forebay.Int("cls")}, timeout=60.0, on_error="skip"
)
if kept is not None:
    loader.load_state_dict(kept)
for step, batch in enumerate(loader):
    rows = zip(batch["__url__"], batch["__key__"], batch["__valid__"].tolist())
    told = [[url, key] for url, key, valid in rows if valid]
    everyone = [None] * dist.get_world_size()
    # Like a gradient's reduction: a rank with one step less than the others hangs them all.
    dist.all_gather_object(everyone, told)
    if step == fatal and rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        with open(f"{folder}/steps", "a") as file:
            print(json.dumps([everyone, loader.state_dict()]), file=file, flush=True)
dist.destroy_process_group()
"""


def torchrun(ranks: int, *arguments: object) -> int:
    """Run a job of `ranks` ranks on this machine, and return its exit status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "--no-python", sys.executable, "-c"]
    # The ranks compute nothing, so one thread each is enough.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, TRAINER + END_BEFORE_GLOO, json.dumps(arguments)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode and "SIGKILL" not in ended.stderr:
        sys.stderr.write(ended.stderr)
    return ended.returncode


def test_job_with_a_killed_rank_resumes_in_another_world(home, data, tmp_path: Path):
    pytest.importorskip("torch")
    job = data | {"shuffle": True, "window": 4, "lanes": 4, "seed": 3, "batch_size": 5}
    sequence = whole(job)
    steps, kept, done = tmp_path / "steps", None, []
    # Four ranks lose one after three steps, two go on and lose one, one ends the epoch.
    for ranks, fatal in ((4, 3), (2, 2), (1, None)):
        steps.write_text("")
        status = torchrun(ranks, job, kept, str(tmp_path), fatal)
        assert (status == 0) == (fatal is None)
        lines = [json.loads(line) for line in steps.read_text().splitlines()]
        # Samples of a step without a saved state are read again, as after a checkpoint.
        lines = lines[:fatal]
        for everyone, state in lines:
            together = [sample for part in everyone for sample in part]
            expected = sequence[len(done) : len(done) + len(together)]
            assert sorted(together) == sorted(expected)
            done += together
            kept = state
    assert len(done) == len(sequence)
    assert kept["epoch"] == 1
