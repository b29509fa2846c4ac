"""The contest from end to end over small shards, who is out of it, and what ends it.

What Forebay and the other loaders deliver is tested elsewhere; here contenders that start
at once stand in for these, so that it is the contest that is tested.
"""

import errno
import gzip
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import players
import pytest
import roster
import search
from contender import Task
from contest import Contest, compare
from daemons import private_daemon
from place import in_memory
from players import Failed, player
from request import Request, Wrong

from conftest import BATCH, SAMPLES, SHARDS

TIMEOUT_S = 600
BESIDE = Path(sys.executable).parent
PLAIN = Path(__file__).with_name("plain.py")
# Beside this interpreter, unless it came from elsewhere.
FOREBAY = shutil.which("forebay", path=f"{BESIDE}:{os.environ['PATH']}")
DIGEST = {
    "samples": 100,
    "payload_bytes": 10,
    "crc_sum": 5,
    "label_sum": 7,
    "image_mean": 0.1,
}
# Whose scripts are replaced by plain ones, of which nothing has to be installed.
STAND_INS = """
RULES |= {
    "webdataset": Rules((), "webdataset", ("webdataset",)),
    "torch": Rules((), "torch", ("torch",), conversion="files"),
    "spdl": Rules((), "spdl", ("spdl",)),
    "dali": Rules((), "dali", ("dali",)),
}


def settings(kind, *_):
    one = {"workers": (0,), "threads": (1,), HANDOVER: (DIRECT,)}
    return {"workers": (2, 0), HANDOVER: (THREAD, DIRECT)} if kind == "torch" else one
"""


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def scripts(carried):
    """The scripts with stand-ins."""
    with (carried / "roster.py").open("a") as file:
        file.write(STAND_INS)
    for kind in ("webdataset", "torch", "spdl", "dali"):
        shutil.copy(PLAIN, carried / f"through_{kind}.py")
    return carried


@pytest.fixture
def bare(tmp_path):
    """An interpreter in which nothing is installed."""
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def request(shards, work, **more):
    return {
        "shards": shards,
        "images": False,
        "batch_size": BATCH,
        "step_seconds": 0.01,
        "seconds": 0.2,
        "rounds": 2,
        "work": str(work),
        "forebay": FOREBAY,
        **more,
    }


def play(scripts, asked, **faults):
    named = {f"FOREBAY_TEST_FAULT_through_{kind}": fault for kind, fault in faults.items()}
    return subprocess.run(
        [sys.executable, scripts / "main.py"],
        input=json.dumps(asked),
        env={**os.environ, **named},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def document(run, code=0):
    assert run.returncode == code, run.stderr
    # Nothing but the document.
    return json.loads(run.stdout)


def test_what_everybody_gets_and_who_is_out_is_told(shards, work, scripts, bare):
    four = ["webdataset", "torch", "spdl", "dali", "mosaic"]
    asked = request(shards, work, contenders=four, pythons={"mosaic": bare})
    # The first two processes play the first epoch and the first round.
    run = play(scripts, asked, spdl="die 3", dali="other")
    said = document(run)
    found = {one["name"]: one for one in said["contenders"]}
    assert found.keys() == {"webdataset", "torch"}
    for one in found.values():
        digest = one["first_epoch"].pop("digest")
        assert digest["samples"] == SAMPLES * SHARDS
        assert one["first_epoch"]["samples"] == SAMPLES * SHARDS
        assert one["first_epoch"]["first_batch_seconds"] > 0
        assert [played["round"] for played in one["rounds"]] == [0, 1]
        for played in one["rounds"]:
            assert played["samples"] == played["steps"] * BATCH
            assert played["samples_per_second"] == pytest.approx(
                played["samples"] / played["wall_seconds"]
            )
            assert played["au_ideal"] == pytest.approx(
                played["steps"] * 0.01 / played["wall_seconds"]
            )
            cpus = len(os.sched_getaffinity(0))
            assert played["cpu_share"] == pytest.approx(
                played["cpu_seconds"] / played["wall_seconds"] / cpus
            )
            assert len(played["waits_ms"]) == played["steps"]
        assert one["sustained"] is None
    # What was swept, and what came of it: each number of workers, each way to take over.
    swept = found["torch"]
    assert swept["settings"] == {"workers": [2, 0], "handover": ["thread", "direct"]}
    assert {tried["workers"] for tried in swept["sweep"]} == {2, 0}
    assert {tried["handover"] for tried in swept["sweep"]} == {"thread", "direct"}
    assert all(tried["unlimited_samples_per_second"] > 0 for tried in swept["sweep"])
    # What plays was tried under an accelerator.
    own = {name: swept["configuration"][name] for name in ("workers", "handover")}
    (taken,) = [tried for tried in swept["sweep"] if own.items() <= tried.items()]
    assert taken["speed"] > 0
    assert found["webdataset"]["sweep"] == []
    assert found["torch"]["conversion_bytes"] > 0
    assert found["webdataset"]["conversion_seconds"] is None
    (absent,) = said["absent"]
    assert absent["name"] == "mosaic"
    assert "pip install mosaicml-streaming" in absent["why"]
    # Who is out is told with all that it came to.
    dali, spdl = said["failed"]
    assert (dali["name"], dali["doing"]) == ("dali", "first epoch")
    assert "dali delivered other samples than webdataset: its crc_sum" in dali["why"]
    assert (spdl["name"], spdl["doing"]) == ("spdl", "measuring")
    assert "spdl was killed" in spdl["why"]
    assert [played["round"] for played in spdl["rounds"]] == [0]
    assert "contest: spdl is out (measuring): spdl was killed" in run.stderr
    assert said["fence"]["cpus"] == sorted(os.sched_getaffinity(0))
    assert said["fence"]["why_not"]
    progress = [json.loads(line)["progress"] for line in run.stderr.splitlines() if line[:1] == "{"]
    order = [line["contender"] for line in progress if line["what"] == "measuring"]
    # There and back.
    assert order == ["webdataset", "torch", "spdl", "spdl", "torch", "webdataset"]
    # A contest that is cut off has left what it had measured.
    kept = json.loads((work / "contest.json").read_text())
    assert [len(one["rounds"]) for one in kept["contenders"]] == [2, 2]


def test_without_anybody_it_ends_and_tells_what_there_was(shards, work, scripts):
    said = document(play(scripts, request(shards, work, contenders=["spdl"]), spdl="raise"), code=1)
    assert said["contenders"] == []
    (spdl,) = said["failed"]
    assert spdl["doing"] == "first epoch"
    # The first and the last of its words.
    assert spdl["why"] == "spdl: OSError: the photo … is missing"


class Scripted:
    """Plays by rote: a tier's state follows from what was played before."""

    def __init__(self, cache):
        self.cache, self.seen = cache, []

    @contextmanager
    def player(self, one, configuration, warm=True):
        self.one, self.warm = one, warm
        yield self

    def play(self, name, **_):
        if name == "configure":
            return {}
        if name == "digest":
            return DIGEST
        self.seen.append((name, self.warm, self.cache.exists()))
        if name == "first_epoch":
            self.cache.mkdir(exist_ok=True)
            return {}
        counts = {"loader": {"bytes": {"origin": 0}}}
        figures = {"samples_per_second": 100.0, "au_ideal": 0.91, "cpu_seconds": 1.0}
        figures["wall_seconds"] = 2.0
        return figures | {"before": counts, "after": counts}


def test_disk_tier_is_warm_after_the_first_epoch(shards, tmp_path):
    asked = request(shards, tmp_path, contenders=["forebay"], find_rate=True)
    played = Contest(Request.of(asked), lambda: None, lambda *_: None)
    rote = Scripted(played.cache)
    played.player = rote.player
    # What an earlier contest left is not cold either.
    played.cache.mkdir()
    one = roster.Contender(
        "forebay", "forebay", "python", "1", {}, {"bytes": ("views",)}, storage="o_direct"
    )
    played.contenders = [one]
    played.sweep(one)
    assert rote.seen[0] == ("first_epoch", True, True)
    assert set(rote.seen[1:]) == {("accelerator", True, True)}
    rote.seen.clear()
    played.first_epoch(one)
    assert rote.seen == [("first_epoch", False, False)]
    rote.seen.clear()
    played.rounds()
    assert {seen[0] for seen in rote.seen} == {"accelerator"}


def test_files_beyond_the_page_cache_are_reported_as_such(shards, tmp_path):
    files = [str(shard) for shard in shards]
    held = sum(os.path.getsize(file) for file in files)
    for limit, storage in (
        (None, "page_cache"),
        (2 * held, "page_cache"),
        (held, "small_page_cache"),
    ):
        asked = request(shards, tmp_path, contenders=["webdataset"], memory_bytes=limit)
        played = Contest(Request.of(asked), lambda: None, lambda *_: None)
        one = roster.Contender("webdataset", "webdataset", "python", "1", {}, {})
        played.weigh(one)
        assert one.storage == storage
    # Nobody reads in advance what cannot stay.
    made = []
    with pytest.MonkeyPatch.context() as patch:

        @contextmanager
        def noted(name, kind, python, task, environment, before):
            made.append(task)
            yield None

        patch.setattr("contest.player", noted)
        with played.player(one, {}):
            pass
    assert made[0].preread == []


def test_without_forebay_it_ends_and_tells_what_there_was(shards, work, scripts):
    shutil.copy(PLAIN, scripts / "through_forebay.py")
    with (scripts / "roster.py").open("a") as file:
        file.write('RULES["forebay"] = Rules((), "forebay", ("forebay",))\n')
    asked = request(shards, work, contenders=["webdataset", "forebay"])
    # Two processes play the first epochs of its two levels of storage, the third its first round;
    # the other's comes before it.
    run = play(scripts, asked, forebay="die 3")
    said = document(run, code=1)
    assert "forebay is out (measuring): forebay was killed" in run.stderr
    (forebay,) = said["failed"]
    assert forebay["first_epoch"]["samples"] == SAMPLES * SHARDS
    webdataset = said["contenders"][0]
    assert (webdataset["name"], len(webdataset["rounds"])) == ("webdataset", 1)


def forebay_and(*kinds):
    made = [
        roster.Contender("forebay", "forebay", "python", "1", {}, {}, storage="o_direct"),
        *[
            roster.Contender(kind, kind, "python", "1", {}, {"threads": (2, 4, 1)})
            for kind in kinds
        ],
    ]
    for one in made[1:]:
        one.configuration = {"threads": 2}
    return made


class Failing:
    """Plays by rote until somebody's turn to fail has come."""

    def __init__(self, *failing):
        self.failing = list(failing)

    @contextmanager
    def player(self, one, configuration, warm=True):
        self.one, self.configuration = one, configuration
        yield self

    def play(self, name, **how):
        if name == "configure":
            self.configuration = how["configuration"]
            return {}
        for fails in self.failing:
            if fails(self.one, name, self.configuration):
                raise Failed(f"{self.one.name} broke")
        if name == "digest":
            return DIGEST
        counts = {"loader": {"bytes": {"origin": 0}}}
        rate = 100.0 * self.configuration.get("threads", 1)
        figures = {"samples_per_second": rate, "au_ideal": 0.91, "cpu_seconds": 1.0}
        return figures | {"wall_seconds": 2.0, "before": counts, "after": counts}


def by_rote(shards, work, contenders, *failing, **more):
    """A contest of contenders that play by rote, its tellings, and who plays."""
    told = []
    played = Contest(
        Request.of(request(shards, work, **more)), lambda: None, lambda *what: told.append(what)
    )
    played.contenders = contenders
    rote = Failing(*failing)
    played.player = rote.player
    played.cache.mkdir(parents=True)
    played.is_cache_filled = True
    return played, told, rote


def test_a_rival_that_fails_is_out_and_the_others_go_on(shards, work):
    own = forebay_and("spdl", "dali")
    rounds = []

    def fails(one, name, _):
        if one.name == "spdl":
            rounds.append(name)
        return len(rounds) == 2 and one.name == "spdl"

    played, _, _ = by_rote(shards, work, own[:], fails, rounds=3)
    played.rounds()
    assert [len(one.rounds) for one in own] == [3, 1, 3]
    assert [one.name for one in played.contenders] == ["forebay", "dali"]
    (out,) = played.failed()
    assert (out["name"], out["doing"], out["why"]) == ("spdl", "measuring", "spdl broke")


def test_forebay_that_fails_ends_it_with_what_there_was(shards, work):
    own = forebay_and("spdl")
    played, _, _ = by_rote(
        shards, work, own[:], lambda one, *_: one.name == "forebay" and own[1].rounds, rounds=1
    )
    played.rounds()
    with pytest.raises(Failed, match=r"forebay is out \(measuring\): forebay broke"):
        played.rounds()
    # One round at a time: its second turn came after one.
    assert [len(one.rounds) for one in own] == [1, 1]
    (out,) = played.failed()
    assert len(out["rounds"]) == 1


def test_who_fails_in_the_long_search_is_out(shards, work):
    own = forebay_and("spdl")
    played, _, _ = by_rote(
        shards, work, own[:], lambda one, *_: one.name == "spdl", find_rate=True, rounds=1
    )
    played.sustained()
    assert [one.name for one in played.contenders] == ["forebay"]
    assert own[0].sustained["speed"] > 0
    assert own[1].sustained is None


def test_a_setting_that_cannot_be_played_is_not_taken(shards, work):
    _, one = forebay_and("spdl")
    # Four threads are fastest, and more than there is memory for.
    played, _, _ = by_rote(
        shards, work, [one], lambda _, name, set: name == "accelerator" and set["threads"] == 4
    )
    played.sweep(one)
    assert one.configuration == {"threads": 2}
    four = next(tried for tried in one.sweep if tried.configuration == {"threads": 4})
    assert (four.rate, four.why) == (0.0, "spdl broke")
    assert four.document()["why"] == "spdl broke"
    # If the first cannot be played, the contender has failed.
    _, one = forebay_and("spdl")
    played.contenders = [one]
    played.player = Failing(lambda _, name, __: name == "accelerator").player
    with pytest.raises(Failed, match="spdl broke"):
        played.sweep(one)


def test_warm_up_covers_twice_the_ready_batches(shards, work):
    _, one = forebay_and("spdl")
    played, _, rote = by_rote(shards, work, [one])
    asked = []
    play = rote.play

    def heard(name, **how):
        asked.append(how.get("warm_up"))
        return play(name, **how)

    rote.play = heard
    rote.configuration = {}
    for threads, step in ((1, 0.01), (4, 0.01), (12, 0.01), (12, 0.0)):
        played.play(one, rote, step, (1.0, 1.0, 1), {"threads": threads})
    # Where nobody computes, all start alike.
    assert asked == [16, 16, 32, 1]


def test_a_speed_that_most_long_runs_miss_is_given_up_at_once():
    proof = search.Proof(1.0, 0.9, 5)
    begun = proof.speed
    for au in (0.88, 0.92, 0.89, 0.87):
        assert proof.speed == begun
        proof.heard({"au_ideal": au})
    # Of five, three are below: the fifth would change nothing.
    assert proof.speed < begun
    assert not proof.is_borne_out


def test_a_contender_that_says_nothing_has_failed(shards, scripts, monkeypatch):
    monkeypatch.setattr(players, "SILENCE_S", 0.2)
    monkeypatch.setattr(players, "END_S", 0.2)
    monkeypatch.setattr(players, "script", lambda kind: scripts / f"through_{kind}.py")
    task = Task(False, ["jpg"], shards, BATCH, {})
    environment = {**os.environ, "FOREBAY_TEST_FAULT_through_spdl": "stop"}
    with (
        pytest.raises(Failed, match="spdl said nothing for 0 s"),
        player("spdl", "spdl", sys.executable, task, environment, lambda: None) as at_work,
    ):
        at_work.play("first_epoch")
    assert at_work.process.returncode == -signal.SIGKILL


def test_against_nobody_nothing_is_played(shards, work, scripts, bare):
    asked = request(shards, work, contenders=["forebay", "mosaic"], pythons={"mosaic": bare})
    said = document(play(scripts, asked))
    assert said["contenders"] == []
    assert [one["name"] for one in said["absent"]] == ["mosaic"]


def test_alone_forebay_plays_from_its_disk_if_memory_has_no_room(shards, work, carried):
    with (carried / "place.py").open("a") as file:
        file.write('\n\ndef no_room(*_):\n    return "they need more"\n')
    said = document(play(carried, request(shards, work, contenders=["forebay"], rounds=1)))
    assert said["absent"] == [{"name": "forebay-memory", "why": "they need more"}]
    (alone,) = said["contenders"]
    assert (alone["storage"], len(alone["rounds"])) == ("o_direct", 1)


def test_of_a_contest_without_forebay_nothing_is_played(shards, work, scripts, bare):
    asked = request(shards, work, contenders=["forebay", "webdataset"], pythons={"forebay": bare})
    run = play(scripts, asked)
    said = document(run, code=1)
    assert "pip install forebay" in run.stderr
    assert [one["rounds"] for one in said["contenders"]] == [[]]
    assert not work.exists()


def test_a_folder_in_memory_is_not_called_a_disk(shards, work, scripts, monkeypatch):
    shutil.copy(PLAIN, scripts / "through_forebay.py")
    with (scripts / "roster.py").open("a") as file:
        file.write('RULES["forebay"] = Rules((), "forebay", ("forebay",))\n')
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        said = document(play(scripts, request(shards, memory, contenders=["forebay"], rounds=1)))
    assert [one["storage"] for one in said["contenders"]] == ["memory"]
    (absent,) = said["absent"]
    assert absent["name"] == "forebay"
    assert "is memory (tmpfs)" in absent["why"]
    assert in_memory(work) is None


def test_compressed_shards_are_refused_before_anybody_plays(shards, work, scripts, tmp_path):
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(Path(shards[0]).read_bytes()))
    run = play(scripts, request([str(packed)], work, contenders=["webdataset"]))
    assert (run.returncode, run.stdout) == (1, "")
    assert f"contest: {packed} is no plain tar" in run.stderr


def test_what_a_library_prints_is_no_reply(shards, work, scripts):
    """A banner as early as there can be one, and one in the middle."""
    script = scripts / "through_spdl.py"
    script.write_text(
        'print("Welcome!")\n' + script.read_text().replace("samples = []", "print(1)")
    )
    script.write_text(script.read_text().replace("print(1)", "print('Enjoy!'); samples = []"))
    run = play(scripts, request(shards, work, contenders=["spdl"], rounds=1))
    (spdl,) = document(run)["contenders"]
    assert len(spdl["rounds"]) == 1
    assert "Welcome!" in run.stderr
    assert "Enjoy!" in run.stderr


def test_a_disk_that_is_full_is_one_contenders_failure(shards, work):
    own = forebay_and("spdl", "dali")

    def fails(one, *_):
        if one.name == "spdl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    played, _, _ = by_rote(shards, work, own[:], fails, rounds=1)
    played.rounds()
    assert [one.name for one in played.contenders] == ["forebay", "dali"]
    assert "No space left on device" in played.failed()[0]["why"]


def test_a_conversion_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    """With what it started, which it ends itself if it is asked to."""
    slow = tmp_path / "to_slow.py"
    slow.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(players, "__file__", str(tmp_path / "players.py"))
    environment = {**os.environ, "FOREBAY_TEST": str(tmp_path)}
    with pytest.raises(Failed, match="the conversion for slow took more than 1 s"):
        players.convert("slow", sys.executable, {}, environment, 1.0)
    check_ended(running(f"FOREBAY_TEST={tmp_path}".encode()))


def test_a_quota_leaves_fewer_cores(shards, work):
    allowed = len(os.sched_getaffinity(0))
    for cores, usable in ((None, allowed), (1, 1), (allowed + 1, allowed)):
        assert Request.of(request(shards, work, cores=cores)).usable() == usable


def running(mark):
    """Processes in whose environment `mark` is, and their command lines."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def check_ended(processes):
    """See these end: who was killed may take a moment for it."""
    for pid, command in processes.items():
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([handle], [], [], TIMEOUT_S)[0], command
        os.close(handle)


def test_nothing_outlives_a_contest_that_is_told_to_end(shards, work, carried):
    run = subprocess.Popen(
        [sys.executable, carried / "main.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "FOREBAY_TEST": str(work)},
        text=True,
    )
    run.stdin.write(json.dumps(request(shards, work, seconds=600, contenders=["forebay"])))
    run.stdin.close()
    while '"measuring"' not in (line := run.stderr.readline()):
        assert line, "it ended before it measured"
    # As Ctrl-C and the end of whose it is come, one upon the other.
    run.send_signal(signal.SIGINT)
    run.terminate()
    assert run.wait(TIMEOUT_S) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    run.stderr.close()
    assert running(f"FOREBAY_TEST={work}".encode()) == {}


def benchmark(environment, *arguments):
    command = [Path(sys.executable).with_name("forebay"), "bench", "starvation", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_the_fastest_accelerator_is_borne_out_by_long_runs(shards, work, scripts):
    asked = request(shards, work, contenders=["webdataset", "spdl"], rounds=1, find_rate=True)
    said = document(play(scripts, asked))
    assert [one["name"] for one in said["contenders"]] == ["webdataset", "spdl"]
    for one in said["contenders"]:
        sustained, (played,) = one["sustained"], one["rounds"]
        # Rounds and figure are of one speed.
        assert sustained["speed"] > 0
        assert played["step_seconds"] == pytest.approx(0.01 / sustained["speed"])
        # Long runs may not bear it out on a busy machine; then there is no such number.
        if sustained["rate_over_nominal"] is not None:
            expected = played["samples_per_second"] / (BATCH / 0.01)
            assert sustained["rate_over_nominal"] == pytest.approx(expected)
            assert sustained["au"] >= 0.9


@pytest.fixture
def quick(scripts, tmp_path):
    """An interpreter that plays the plain contender, whoever is asked for."""
    python = tmp_path / "quick-python"
    instead = f'exec {sys.executable} {scripts}/through_webdataset.py "$2"'
    otherwise = f'exec {sys.executable} "$@"'
    python.write_text(f'#!/bin/sh\ncase "$1" in *through_*.py) {instead};; esac\n{otherwise}\n')
    python.chmod(0o755)
    return python


def test_the_command_line_plays_the_contest(shards, tmp_path, quick):
    environment = dict(os.environ)
    cache, page = tmp_path / "cache", tmp_path / "page.html"
    cache.mkdir()
    with private_daemon(environment, cache):
        asked = ["--raw", "--profile", "custom", "--batch-size", str(BATCH), "--step", "0.01"]
        asked += ["--epochs", "1", "--rivals", "webdataset", "--rounds", "1", "--seconds", "1"]
        # Too little for a tier in memory and its daemon.
        limit = 3 << 29
        # Only root can set a limit.
        limited = ["--memory", str(limit)] if os.geteuid() == 0 else []
        playing = ["--python", quick]
        written = ["--json", "--html", page]
        told = benchmark(environment, *shards, *asked, *playing, *limited, *written)
        assert told.returncode == 0, told.stderr
        contest = json.loads(told.stdout)["contest"]
        assert [one["name"] for one in contest["contenders"]] == ["forebay", "webdataset"]
        for one in contest["contenders"]:
            (played,) = one["rounds"]
            assert played["step_seconds"] == 0.01
            # Each run was told when it had ended.
            assert f"{one['name']}: played, 1 of 1: " in told.stderr
        fence = contest["fence"]
        assert (fence["memory_bytes"] == limit) == (fence["why_not"] is None)
        if os.geteuid() == 0:
            assert fence["memory_bytes"] == limit
            assert [one["name"] for one in contest["absent"]] == ["forebay-memory"]
        assert "Other loaders, the same work" in page.read_text()
        # What is asked in vain is said before anything is measured.
        told = benchmark(environment, "s3://bucket/0.tar", *asked)
        assert (told.returncode, told.stdout) == (2, "")
        assert "local" in told.stderr
        told = benchmark(environment, *shards, *asked, "--python", "/no/such/python")
        assert told.returncode == 1
        assert "--python" in told.stderr


def test_nothing_outlives_a_command_line_that_is_killed(shards, tmp_path, quick):
    environment = {**os.environ, "FOREBAY_TEST": str(tmp_path)}
    (tmp_path / "cache").mkdir()
    with private_daemon(environment, tmp_path / "cache"):
        asked = ["--raw", "--profile", "custom", "--batch-size", str(BATCH), "--step", "0.01"]
        asked += [
            "--epochs",
            "1",
            "--rivals",
            "webdataset",
            "--seconds",
            "600",
            "--python",
            quick,
        ]
        command = [Path(sys.executable).with_name("forebay"), "bench", "starvation"]
        run = subprocess.Popen([*command, *shards, *asked], env=environment, stderr=-1)
        # What is said of the first conversion passes through; sweeps follow, of minutes here.
        while b"manifest.json" not in (line := run.stderr.readline()):
            assert line, "it ended before it played"
        run.kill()
        assert run.wait(TIMEOUT_S) == -signal.SIGKILL
        run.stderr.close()
        mark = f"FOREBAY_TEST={tmp_path}".encode()
        check_ended({pid: command for pid, command in running(mark).items() if b".py" in command})


@pytest.mark.parametrize(
    "change",
    [{"samples": 99}, {"payload_bytes": 9}, {"crc_sum": 4}, {"label_sum": 8}, {"image_mean": 0.4}],
)
def test_a_digest_that_differs_is_told(change):
    compare("one", DIGEST, "same", dict(DIGEST, image_mean=0.15))
    with pytest.raises(Failed, match="other"):
        compare("one", DIGEST, "other", {**DIGEST, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": []}, "no shards"),
        ({"shards": ["relative.tar"]}, "absolute"),
        ({"shards": ["/not/there.tar"]}, "cannot be read"),
        ({"rounds": 0}, "rounds"),
        ({"cores": 0}, "cores"),
        ({"step_seconds": 0}, "step_seconds"),
        ({"contenders": ["tensorflow"]}, "tensorflow"),
        ({"colour": "red"}, "colour"),
        ({"au_min": 1.0}, "au_min"),
        ({"model": "resnet50"}, "images"),
        ({"model": "resnet50", "images": True, "find_rate": True}, "find_rate"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(change, message, tmp_path):
    shard = tmp_path / "a.tar"
    shard.touch()
    given = {
        "shards": [str(shard)],
        "images": False,
        "batch_size": 1,
        "step_seconds": 1.0,
        "work": str(tmp_path),
    }
    Request.of(given)
    with pytest.raises(Wrong, match=message):
        Request.of({**given, **change})


def test_a_conversion_is_remembered_by_what_it_is_made_of(shards, tmp_path):
    import conversions

    def convert(version):
        python, forebay = sys.executable, Path("unused")
        return conversions.convert("files", python, version, shards, ["cls"], tmp_path, forebay)

    first, again, other = convert("1"), convert("1"), convert("2")
    assert again == first
    assert other.folder != first.folder
    assert sorted(Path(tmp_path).iterdir()) == sorted([Path(first.folder), Path(other.folder)])


def test_a_version_is_that_of_the_package_itself():
    found = {"versions": {"torchvision": "2", "torch": "1", "nvidia-dali-cuda120": "3"}}
    assert roster.version("torch", found) == "1"
    assert roster.version("dali", found) == "3"
    assert roster.version("spdl", found) == "unknown"
