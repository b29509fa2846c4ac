"""The contest from end to end over small shards: figures, excluded contenders, and its end.

Stand-ins that start quickly replace Forebay and the other loaders, whose samples other files test.
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
# The command beside this interpreter, or the one on the search path.
FOREBAY = shutil.which("forebay", path=f"{BESIDE}:{os.environ['PATH']}")
DIGEST = {
    "samples": 100,
    "payload_bytes": 10,
    "crc_sum": 5,
    "label_sum": 7,
    "image_mean": 0.1,
}
# Rules of the contenders whose scripts plain ones replace; these need no packages.
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
    """A folder of scripts in which stand-ins replace four contenders."""
    with (carried / "roster.py").open("a") as file:
        file.write(STAND_INS)
    for kind in ("webdataset", "torch", "spdl", "dali"):
        shutil.copy(PLAIN, carried / f"through_{kind}.py")
    return carried


@pytest.fixture
def bare(tmp_path):
    """An interpreter without any packages."""
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


def run_contest(scripts, asked, **faults):
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
    # The output is the document alone.
    return json.loads(run.stdout)


def test_report_lists_figures_absent_and_failed_contenders(shards, work, scripts, bare):
    four = ["webdataset", "torch", "spdl", "dali", "mosaic"]
    asked = request(shards, work, contenders=four, pythons={"mosaic": bare})
    # A contender's first two processes run the first epoch and the first round.
    run = run_contest(scripts, asked, spdl="die 3", dali="other")
    report = document(run)
    found = {one["name"]: one for one in report["contenders"]}
    assert found.keys() == {"webdataset", "torch"}
    for one in found.values():
        digest = one["first_epoch"].pop("digest")
        assert digest["samples"] == SAMPLES * SHARDS
        assert one["first_epoch"]["samples"] == SAMPLES * SHARDS
        assert one["first_epoch"]["first_batch_seconds"] > 0
        assert [measured["round"] for measured in one["rounds"]] == [0, 1]
        for measured in one["rounds"]:
            assert measured["samples"] == measured["steps"] * BATCH
            assert measured["samples_per_second"] == pytest.approx(
                measured["samples"] / measured["wall_seconds"]
            )
            assert measured["au_ideal"] == pytest.approx(
                measured["steps"] * 0.01 / measured["wall_seconds"]
            )
            cpus = len(os.sched_getaffinity(0))
            assert measured["cpu_share"] == pytest.approx(
                measured["cpu_seconds"] / measured["wall_seconds"] / cpus
            )
            assert len(measured["waits_ms"]) == measured["steps"]
        assert one["sustained"] is None
    # The sweep covers each number of workers and each handover.
    swept = found["torch"]
    assert swept["settings"] == {"workers": [2, 0], "handover": ["thread", "direct"]}
    assert {tried["workers"] for tried in swept["sweep"]} == {2, 0}
    assert {tried["handover"] for tried in swept["sweep"]} == {"thread", "direct"}
    assert all(tried["unlimited_samples_per_second"] > 0 for tried in swept["sweep"])
    # The chosen configuration was tried under an accelerator.
    own = {name: swept["configuration"][name] for name in ("workers", "handover")}
    (taken,) = [tried for tried in swept["sweep"] if own.items() <= tried.items()]
    assert taken["speed"] > 0
    assert found["webdataset"]["sweep"] == []
    assert found["torch"]["conversion_bytes"] > 0
    assert found["webdataset"]["conversion_seconds"] is None
    (absent,) = report["absent"]
    assert absent["name"] == "mosaic"
    assert "pip install mosaicml-streaming" in absent["why"]
    # The report lists excluded contenders with their figures until then.
    dali, spdl = report["failed"]
    assert (dali["name"], dali["doing"]) == ("dali", "first epoch")
    assert "dali delivered other samples than webdataset: its crc_sum" in dali["why"]
    assert (spdl["name"], spdl["doing"]) == ("spdl", "measuring")
    assert "spdl was killed" in spdl["why"]
    assert [measured["round"] for measured in spdl["rounds"]] == [0]
    assert "contest: spdl is out (measuring): spdl was killed" in run.stderr
    assert report["fence"]["cpus"] == sorted(os.sched_getaffinity(0))
    assert report["fence"]["why_not"]
    progress = [json.loads(line)["progress"] for line in run.stderr.splitlines() if line[:1] == "{"]
    order = [line["contender"] for line in progress if line["what"] == "measuring"]
    # Contenders take turns in order, then in reverse.
    assert order == ["webdataset", "torch", "spdl", "spdl", "torch", "webdataset"]
    # The file keeps the measured figures if the contest is cut off.
    kept = json.loads((work / "contest.json").read_text())
    assert [len(one["rounds"]) for one in kept["contenders"]] == [2, 2]


def test_contest_of_failing_contenders_reports_them(shards, work, scripts):
    report = document(
        run_contest(scripts, request(shards, work, contenders=["spdl"]), spdl="raise"), code=1
    )
    assert report["contenders"] == []
    (spdl,) = report["failed"]
    assert spdl["doing"] == "first epoch"
    # The reason has the first and the last line of the error.
    assert spdl["why"] == "spdl: OSError: the photo … is missing"


class Scripted:
    """A player with fixed replies that records each run and the state of the tier before it."""

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
    contest = Contest(Request.of(asked), lambda: None, lambda *_: None)
    fake_player = Scripted(contest.cache)
    contest.player = fake_player.player
    # An earlier contest left a warm tier.
    contest.cache.mkdir()
    one = roster.Contender(
        "forebay", "forebay", "python", "1", {}, {"bytes": ("views",)}, storage="o_direct"
    )
    contest.contenders = [one]
    contest.sweep(one)
    assert fake_player.seen[0] == ("first_epoch", True, True)
    assert set(fake_player.seen[1:]) == {("accelerator", True, True)}
    fake_player.seen.clear()
    contest.first_epoch(one)
    assert fake_player.seen == [("first_epoch", False, False)]
    fake_player.seen.clear()
    contest.rounds()
    assert {seen[0] for seen in fake_player.seen} == {"accelerator"}


def test_files_beyond_the_page_cache_are_reported_as_such(shards, tmp_path):
    files = [str(shard) for shard in shards]
    held = sum(os.path.getsize(file) for file in files)
    for limit, storage in (
        (None, "page_cache"),
        (2 * held, "page_cache"),
        (held, "small_page_cache"),
    ):
        asked = request(shards, tmp_path, contenders=["webdataset"], memory_bytes=limit)
        contest = Contest(Request.of(asked), lambda: None, lambda *_: None)
        one = roster.Contender("webdataset", "webdataset", "python", "1", {}, {})
        contest.weigh(one)
        assert one.storage == storage
    # Files that do not fit the page cache are not read in advance.
    made = []
    with pytest.MonkeyPatch.context() as patch:

        @contextmanager
        def noted(name, kind, python, task, environment, before):
            made.append(task)
            yield None

        patch.setattr("contest.player", noted)
        with contest.player(one, {}):
            pass
    assert made[0].preread == []


def test_killed_forebay_ends_the_contest_with_a_report(shards, work, scripts):
    shutil.copy(PLAIN, scripts / "through_forebay.py")
    with (scripts / "roster.py").open("a") as file:
        file.write('RULES["forebay"] = Rules((), "forebay", ("forebay",))\n')
    asked = request(shards, work, contenders=["webdataset", "forebay"])
    # Forebay's first two processes run the first epochs of its two storage tiers. Its third process
    # runs the first round, after the rival's.
    run = run_contest(scripts, asked, forebay="die 3")
    report = document(run, code=1)
    assert "forebay is out (measuring): forebay was killed" in run.stderr
    (forebay,) = report["failed"]
    assert forebay["first_epoch"]["samples"] == SAMPLES * SHARDS
    webdataset = report["contenders"][0]
    assert (webdataset["name"], len(webdataset["rounds"])) == ("webdataset", 1)


def forebay_with(*kinds):
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
    """A player with fixed replies that fails where a predicate says so."""

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


def scripted_contest(shards, work, contenders, *failing, **more):
    """Return a contest with scripted contenders, its list of messages, and its player."""
    messages = []
    contest = Contest(
        Request.of(request(shards, work, **more)), lambda: None, lambda *what: messages.append(what)
    )
    contest.contenders = contenders
    fake_player = Failing(*failing)
    contest.player = fake_player.player
    contest.cache.mkdir(parents=True)
    contest.is_cache_filled = True
    return contest, messages, fake_player


def test_failing_rival_is_excluded_and_the_others_continue(shards, work):
    own = forebay_with("spdl", "dali")
    rounds = []

    def fails(one, name, _):
        if one.name == "spdl":
            rounds.append(name)
        return len(rounds) == 2 and one.name == "spdl"

    contest, _, _ = scripted_contest(shards, work, own[:], fails, rounds=3)
    contest.rounds()
    assert [len(one.rounds) for one in own] == [3, 1, 3]
    assert [one.name for one in contest.contenders] == ["forebay", "dali"]
    (out,) = contest.failed()
    assert (out["name"], out["doing"], out["why"]) == ("spdl", "measuring", "spdl broke")


def test_failing_forebay_ends_the_contest_and_keeps_figures(shards, work):
    own = forebay_with("spdl")
    contest, _, _ = scripted_contest(
        shards, work, own[:], lambda one, *_: one.name == "forebay" and own[1].rounds, rounds=1
    )
    contest.rounds()
    with pytest.raises(Failed, match=r"forebay is out \(measuring\): forebay broke"):
        contest.rounds()
    # Rounds alternate: Forebay failed in the second round, after one round of each contender.
    assert [len(one.rounds) for one in own] == [1, 1]
    (out,) = contest.failed()
    assert len(out["rounds"]) == 1


def test_contender_failing_in_the_long_search_is_excluded(shards, work):
    own = forebay_with("spdl")
    contest, _, _ = scripted_contest(
        shards, work, own[:], lambda one, *_: one.name == "spdl", find_rate=True, rounds=1
    )
    contest.sustained()
    assert [one.name for one in contest.contenders] == ["forebay"]
    assert own[0].sustained["speed"] > 0
    assert own[1].sustained is None


def test_failing_setting_is_not_chosen(shards, work):
    _, one = forebay_with("spdl")
    # Four threads are fastest, but fail under the accelerator.
    contest, _, _ = scripted_contest(
        shards, work, [one], lambda _, name, set: name == "accelerator" and set["threads"] == 4
    )
    contest.sweep(one)
    assert one.configuration == {"threads": 2}
    four = next(tried for tried in one.sweep if tried.configuration == {"threads": 4})
    assert (four.rate, four.why) == (0.0, "spdl broke")
    assert four.document()["why"] == "spdl broke"
    # A contender fails if none of its settings runs under the accelerator.
    _, one = forebay_with("spdl")
    contest.contenders = [one]
    contest.player = Failing(lambda _, name, __: name == "accelerator").player
    with pytest.raises(Failed, match="spdl broke"):
        contest.sweep(one)


def test_warm_up_covers_twice_the_ready_batches(shards, work):
    _, one = forebay_with("spdl")
    contest, _, fake_player = scripted_contest(shards, work, [one])
    asked = []
    play = fake_player.play

    def heard(name, **how):
        asked.append(how.get("warm_up"))
        return play(name, **how)

    fake_player.play = heard
    fake_player.configuration = {}
    for threads, step in ((1, 0.01), (4, 0.01), (12, 0.01), (12, 0.0)):
        contest.play(one, fake_player, step, (1.0, 1.0, 1), {"threads": threads})
    # Without computation all warm-ups have one step.
    assert asked == [16, 16, 32, 1]


def test_speed_is_lowered_once_most_long_runs_miss_it():
    proof = search.Proof(1.0, 0.9, 5)
    begun = proof.speed
    for au in (0.88, 0.92, 0.89, 0.87):
        assert proof.speed == begun
        proof.heard({"au_ideal": au})
    # Three of five runs are below, so the fifth cannot change the median.
    assert proof.speed < begun
    assert not proof.is_borne_out


def test_silent_contender_is_killed_and_fails(shards, scripts, monkeypatch):
    monkeypatch.setattr(players, "SILENCE_S", 0.2)
    monkeypatch.setattr(players, "END_S", 0.2)
    monkeypatch.setattr(players, "script", lambda kind: scripts / f"through_{kind}.py")
    task = Task(False, ["jpg"], shards, BATCH, {})
    environment = {**os.environ, "FOREBAY_TEST_FAULT_through_spdl": "stop"}
    with (
        pytest.raises(Failed, match="spdl"),
        player("spdl", "spdl", sys.executable, task, environment, lambda: None) as at_work,
    ):
        at_work.play("first_epoch")
    assert at_work.process.returncode == -signal.SIGKILL


def test_contest_without_rivals_runs_nothing(shards, work, scripts, bare):
    asked = request(shards, work, contenders=["forebay", "mosaic"], pythons={"mosaic": bare})
    report = document(run_contest(scripts, asked))
    assert report["contenders"] == []
    assert [one["name"] for one in report["absent"]] == ["mosaic"]


def test_forebay_alone_runs_from_disk_if_memory_has_no_room(shards, work, carried):
    with (carried / "place.py").open("a") as file:
        file.write('\n\ndef no_room(*_):\n    return "they need more"\n')
    report = document(run_contest(carried, request(shards, work, contenders=["forebay"], rounds=1)))
    assert report["absent"] == [{"name": "forebay-memory", "why": "they need more"}]
    (alone,) = report["contenders"]
    assert (alone["storage"], len(alone["rounds"])) == ("o_direct", 1)


def test_contest_without_forebay_runs_nothing(shards, work, scripts, bare):
    asked = request(shards, work, contenders=["forebay", "webdataset"], pythons={"forebay": bare})
    run = run_contest(scripts, asked)
    report = document(run, code=1)
    assert "pip install forebay" in run.stderr
    assert [one["rounds"] for one in report["contenders"]] == [[]]
    assert not work.exists()


def test_work_folder_in_memory_is_not_reported_as_a_disk(shards, work, scripts, monkeypatch):
    shutil.copy(PLAIN, scripts / "through_forebay.py")
    with (scripts / "roster.py").open("a") as file:
        file.write('RULES["forebay"] = Rules((), "forebay", ("forebay",))\n')
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        report = document(
            run_contest(scripts, request(shards, memory, contenders=["forebay"], rounds=1))
        )
    assert [one["storage"] for one in report["contenders"]] == ["memory"]
    (absent,) = report["absent"]
    assert absent["name"] == "forebay"
    assert "is memory (tmpfs)" in absent["why"]
    assert in_memory(work) is None


def test_compressed_shards_are_rejected_before_any_run(shards, work, scripts, tmp_path):
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(Path(shards[0]).read_bytes()))
    run = run_contest(scripts, request([str(packed)], work, contenders=["webdataset"]))
    assert (run.returncode, run.stdout) == (1, "")
    assert f"contest: {packed} is no plain tar" in run.stderr


def test_output_of_a_library_is_no_reply(shards, work, scripts):
    """The script prints a banner at its start and another during a run."""
    script = scripts / "through_spdl.py"
    script.write_text(
        'print("Welcome!")\n' + script.read_text().replace("samples = []", "print(1)")
    )
    script.write_text(script.read_text().replace("print(1)", "print('Enjoy!'); samples = []"))
    run = run_contest(scripts, request(shards, work, contenders=["spdl"], rounds=1))
    (spdl,) = document(run)["contenders"]
    assert len(spdl["rounds"]) == 1
    assert "Welcome!" in run.stderr
    assert "Enjoy!" in run.stderr


def test_full_disk_excludes_one_contender(shards, work):
    own = forebay_with("spdl", "dali")

    def fails(one, *_):
        if one.name == "spdl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    contest, _, _ = scripted_contest(shards, work, own[:], fails, rounds=1)
    contest.rounds()
    assert [one.name for one in contest.contenders] == ["forebay", "dali"]
    assert "No space left on device" in contest.failed()[0]["why"]


def test_slow_conversion_is_ended_with_its_children(tmp_path, monkeypatch):
    """The conversion's own child is ended as well."""
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
    """Return the command lines of processes with `mark` in their environment, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def check_ended(processes):
    """Wait for the end of these processes: a kill may take a moment."""
    for pid, command in processes.items():
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([handle], [], [], TIMEOUT_S)[0], command
        os.close(handle)


def test_interrupted_contest_leaves_no_process(shards, work, carried):
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
        assert line, "the contest ended before it measured"
    # Ctrl-C and the end of the parent may arrive together.
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


def test_fastest_accelerator_is_confirmed_by_long_runs(shards, work, scripts):
    asked = request(shards, work, contenders=["webdataset", "spdl"], rounds=1, find_rate=True)
    report = document(run_contest(scripts, asked))
    assert [one["name"] for one in report["contenders"]] == ["webdataset", "spdl"]
    for one in report["contenders"]:
        sustained, (measured,) = one["sustained"], one["rounds"]
        # The rounds and the reported rate are of the same speed.
        assert sustained["speed"] > 0
        assert measured["step_seconds"] == pytest.approx(0.01 / sustained["speed"])
        # On a busy machine long runs may not confirm the speed; then the rate is missing.
        if sustained["rate_over_nominal"] is not None:
            expected = measured["samples_per_second"] / (BATCH / 0.01)
            assert sustained["rate_over_nominal"] == pytest.approx(expected)
            assert sustained["au"] >= 0.9


@pytest.fixture
def quick(scripts, tmp_path):
    """An interpreter that runs the plain contender in place of every contender's script."""
    python = tmp_path / "quick-python"
    instead = f'exec {sys.executable} {scripts}/through_webdataset.py "$2"'
    otherwise = f'exec {sys.executable} "$@"'
    python.write_text(f'#!/bin/sh\ncase "$1" in *through_*.py) {instead};; esac\n{otherwise}\n')
    python.chmod(0o755)
    return python


def test_command_line_runs_the_contest(shards, tmp_path, quick):
    environment = dict(os.environ)
    cache, page = tmp_path / "cache", tmp_path / "page.html"
    cache.mkdir()
    with private_daemon(environment, cache):
        asked = ["--raw", "--profile", "custom", "--batch-size", str(BATCH), "--step", "0.01"]
        asked += ["--epochs", "1", "--rivals", "webdataset", "--rounds", "1", "--seconds", "1"]
        # The limit is too low for a tier in memory and its daemon.
        limit = 3 << 29
        # Only root can set a limit.
        limited = ["--memory", str(limit)] if os.geteuid() == 0 else []
        playing = ["--python", quick]
        written = ["--json", "--html", page]
        done = benchmark(environment, *shards, *asked, *playing, *limited, *written)
        assert done.returncode == 0, done.stderr
        contest = json.loads(done.stdout)["contest"]
        assert [one["name"] for one in contest["contenders"]] == ["forebay", "webdataset"]
        for one in contest["contenders"]:
            (measured,) = one["rounds"]
            assert measured["step_seconds"] == 0.01
            # The progress names each run once it has ended.
            assert f"{one['name']}: played, 1 of 1: " in done.stderr
        fence = contest["fence"]
        assert (fence["memory_bytes"] == limit) == (fence["why_not"] is None)
        if os.geteuid() == 0:
            assert fence["memory_bytes"] == limit
            assert [one["name"] for one in contest["absent"]] == ["forebay-memory"]
        assert "Other loaders, the same work" in page.read_text()
        # Invalid requests are rejected before anything is measured.
        done = benchmark(environment, "s3://bucket/0.tar", *asked)
        assert (done.returncode, done.stdout) == (2, "")
        assert "local" in done.stderr
        done = benchmark(environment, *shards, *asked, "--python", "/no/such/python")
        assert done.returncode == 1
        assert "--python" in done.stderr


def test_killed_command_line_leaves_no_process(shards, tmp_path, quick):
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
        # The progress of the first conversion appears; the sweeps that follow take minutes here.
        while b"manifest.json" not in (line := run.stderr.readline()):
            assert line, "the command ended before the first run"
        run.kill()
        assert run.wait(TIMEOUT_S) == -signal.SIGKILL
        run.stderr.close()
        mark = f"FOREBAY_TEST={tmp_path}".encode()
        check_ended({pid: command for pid, command in running(mark).items() if b".py" in command})


@pytest.mark.parametrize(
    "change",
    [{"samples": 99}, {"payload_bytes": 9}, {"crc_sum": 4}, {"label_sum": 8}, {"image_mean": 0.4}],
)
def test_different_digest_is_an_error(change):
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
def test_invalid_request_is_rejected(change, message, tmp_path):
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


def test_conversion_is_reused_for_the_same_inputs(shards, tmp_path):
    import conversions

    def convert(version):
        python, forebay = sys.executable, Path("unused")
        return conversions.convert("files", python, version, shards, ["cls"], tmp_path, forebay)

    first, again, other = convert("1"), convert("1"), convert("2")
    assert again == first
    assert other.folder != first.folder
    assert sorted(Path(tmp_path).iterdir()) == sorted([Path(first.folder), Path(other.folder)])


def test_version_is_that_of_the_main_package():
    found = {"versions": {"torchvision": "2", "torch": "1", "nvidia-dali-cuda120": "3"}}
    assert roster.version("torch", found) == "1"
    assert roster.version("dali", found) == "3"
    assert roster.version("spdl", found) == "unknown"
