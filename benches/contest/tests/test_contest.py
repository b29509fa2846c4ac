"""The contest from end to end over small shards, and what ends it."""

import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import roster
from contest import Contest, compare
from daemons import private_daemon
from players import Failed
from request import Request, Wrong

from conftest import CONTEST, EXAMPLES

SAMPLES, SHARDS, BATCH = 24, 2, 8
TIMEOUT_S = 600
BESIDE = Path(sys.executable).parent
DIGEST = {
    "samples": 100,
    "payload_bytes": 10,
    "crc_sum": 5,
    "label_sum": 7,
    "image_mean": 0.1,
}


def jpeg(number):
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (96, 80), (number * 7 % 256, number * 3 % 256, 90)).save(data, "JPEG")
    return data.getvalue()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    made = []
    for shard in range(SHARDS):
        made.append(str(folder / f"{shard}.tar"))
        with tarfile.open(made[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(SAMPLES):
                number = shard * SAMPLES + sample
                members = {"jpg": jpeg(number), "cls": str(number).encode()}
                for extension, data in members.items():
                    member = tarfile.TarInfo(f"s{number:03}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return made


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module", autouse=True)
def scripts(tmp_path_factory):
    """The scripts as the command line has them: in a folder of their own, beside nothing else.

    They sweep over less.
    """
    folder = tmp_path_factory.mktemp("scripts")
    for script in [*CONTEST.glob("*.py"), EXAMPLES / "daemons.py"]:
        shutil.copy(script, folder)
    swept = (folder / "roster.py").read_text()
    fewer = swept.replace("WORKERS = (2, 4, 1, 0)", "WORKERS = (2, 0)")
    assert fewer != swept
    (folder / "roster.py").write_text(fewer)
    play.main = folder / "main.py"


def request(shards, work, **more):
    return {
        "shards": shards,
        "images": False,
        "batch_size": BATCH,
        "step_seconds": 0.01,
        "seconds": 0.3,
        "rounds": 2,
        "contenders": ["forebay", "webdataset", "torch"],
        "work": str(work),
        # Beside this interpreter, unless it came from elsewhere.
        "forebay": shutil.which("forebay", path=f"{BESIDE}:{os.environ['PATH']}"),
        **more,
    }


def play(shards, work, **more):
    return subprocess.run(
        [sys.executable, play.main],
        input=json.dumps(request(shards, work, **more)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def document(run):
    assert run.returncode == 0, run.stderr
    # Nothing but the document.
    return json.loads(run.stdout)


def test_bytes_through_three_loaders_and_what_an_accelerator_gets(shards, work):
    run = play(shards, work)
    said = document(run)
    assert said["absent"] == []
    found = {one["name"]: one for one in said["contenders"]}
    assert found.keys() == {"forebay", "forebay-memory", "webdataset", "torch"}
    digests = [one["first_epoch"]["digest"] for one in found.values()]
    assert digests[0]["samples"] == SAMPLES * SHARDS
    assert all(digest == digests[0] for digest in digests)
    for one in found.values():
        assert [played["round"] for played in one["rounds"]] == [0, 1]
        for played in one["rounds"]:
            assert played["samples"] == played["steps"] * BATCH
            assert played["au_ideal"] == pytest.approx(
                played["steps"] * 0.01 / played["wall_seconds"]
            )
            assert played["cpu_seconds"] >= 0
            assert len(played["waits_ms"]) == played["steps"]
        assert one["sustained"] is None
        assert one["first_epoch"]["first_batch_seconds"] > 0
    # The kernel counts in ticks, of which such a short run may have none.
    assert sum(played["cpu_seconds"] for one in found.values() for played in one["rounds"]) > 0
    assert {one["name"]: one["storage"] for one in said["contenders"]} == {
        "forebay": "o_direct",
        "forebay-memory": "memory",
        "webdataset": "page_cache",
        "torch": "page_cache",
    }
    assert [tried["workers"] for tried in found["torch"]["sweep"]] == [2, 0]
    assert all(tried["unlimited_samples_per_second"] > 0 for tried in found["torch"]["sweep"])
    # One of those that were tried under an accelerator, if several came near the highest rate.
    listed = [tried["workers"] for tried in found["torch"]["sweep"] if "au" in tried]
    assert not listed or found["torch"]["configuration"]["workers"] in listed
    assert found["torch"]["conversion_bytes"] > 0
    assert found["webdataset"]["conversion_seconds"] is None
    assert said["fence"]["cpus"] == sorted(os.sched_getaffinity(0))
    assert said["fence"]["why_not"]
    progress = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("{")]
    assert {"contender": "torch", "round": 2, "of": 2, "what": "measuring"} in [
        line["progress"] for line in progress
    ]


def test_images_are_the_same_images_and_who_is_absent_is_named(shards, work):
    run = play(shards, work, images=True, rounds=1, contenders=["forebay", "torch", "spdl"])
    said = document(run)
    assert [one["name"] for one in said["absent"]] == ["spdl"]
    assert "pip install spdl" in said["absent"][0]["why"]
    means = [one["first_epoch"]["digest"]["image_mean"] for one in said["contenders"]]
    # Three numbers of the same photos' pixels, and no zeros.
    assert len(means) == 3
    assert max(means) - min(means) < 0.5
    assert {tried["decode"] for tried in said["contenders"][-1]["sweep"]} == {
        "pillow",
        "torchvision",
    }


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
        self.seen.append((name, self.warm, self.cache.exists()))
        if name == "first_epoch":
            self.cache.mkdir(exist_ok=True)
            return {"digest": DIGEST}
        counts = {"loader": {"bytes": {"origin": 0}}}
        figures = {"samples_per_second": 100.0, "au_ideal": 0.91}
        return figures | {"before": counts, "after": counts}


def test_a_tier_on_a_disk_is_warm_in_every_run_but_the_first_epoch(shards, tmp_path):
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


def test_against_nobody_nothing_is_played(shards, work):
    run = play(shards, work, contenders=["forebay", "spdl"])
    said = document(run)
    assert said["contenders"] == []
    assert [one["name"] for one in said["absent"]] == ["spdl"]


def test_other_samples_end_it(shards, work):
    converted = next(work.glob("files-*"))
    wrong = next(converted.rglob("*.jpg"))
    wrong.write_bytes(wrong.read_bytes()[:-1] + b"\0")
    run = play(shards, work, rounds=1, contenders=["webdataset", "torch"])
    assert run.returncode == 1
    assert "torch delivered other samples than webdataset: its crc_sum" in run.stderr
    assert run.stdout == ""


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


def test_nothing_outlives_a_contest_that_is_told_to_end(shards, work):
    run = subprocess.Popen(
        [sys.executable, play.main],
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
    run.terminate()
    assert run.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    run.stderr.close()
    assert running(f"FOREBAY_TEST={work}".encode()) == {}


def test_all_numbers_of_workers_are_swept():
    assert roster.settings("mosaic", images=False).keys() == {"workers"}
    tried = roster.settings("torch", images=True)
    assert sorted(tried["workers"]) == [0, 1, 2, 4]
    assert set(tried["decode"]) == {"pillow", "torchvision"}


def test_nothing_outlives_a_command_line_that_is_killed(shards, tmp_path):
    environment = {**os.environ, "FOREBAY_TEST": str(tmp_path)}
    (tmp_path / "cache").mkdir()
    with private_daemon(environment, tmp_path / "cache"):
        asked = ["--raw", "--profile", "custom", "--batch-size", str(BATCH), "--step", "0.01"]
        asked += ["--epochs", "1", "--rivals", "webdataset", "--seconds", "600"]
        command = [Path(sys.executable).with_name("forebay"), "bench", "starvation"]
        run = subprocess.Popen([*command, *shards, *asked], env=environment, stderr=-1)
        # What is said of the first conversion passes through; sweeps follow, of minutes here.
        while b"manifest.json" not in (line := run.stderr.readline()):
            assert line, "it ended before it played"
        run.kill()
        assert run.wait(TIMEOUT_S) == -signal.SIGKILL
        run.stderr.close()
        mark = f"FOREBAY_TEST={tmp_path}".encode()
        for pid, command in running(mark).items():
            if b".py" in command:
                handle = os.pidfd_open(pid)
                assert select.select([handle], [], [], TIMEOUT_S)[0], command
                os.close(handle)


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


def benchmark(environment, *arguments):
    command = [Path(sys.executable).with_name("forebay"), "bench", "starvation", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def assert_sustained(one):
    """Of whom the fastest accelerator was sought, rounds and figure are of one speed."""
    sustained, (played,) = one["sustained"], one["rounds"]
    assert sustained["speed"] > 0
    assert played["step_seconds"] == pytest.approx(0.01 / sustained["speed"])
    # Long runs may not bear a speed out on a busy machine; then there is no such number.
    if sustained["rate_over_nominal"] is not None:
        expected = played["samples_per_second"] / (BATCH / 0.01)
        assert sustained["rate_over_nominal"] == pytest.approx(expected, abs=0.005)
        assert sustained["au"] >= 0.9


def test_the_command_line_plays_the_contest(shards, tmp_path):
    environment = dict(os.environ)
    cache, page = tmp_path / "cache", tmp_path / "page.html"
    cache.mkdir()
    with private_daemon(environment, cache):
        asked = ["--raw", "--profile", "custom", "--batch-size", str(BATCH), "--step", "0.01"]
        asked += ["--epochs", "1", "--rivals", "webdataset", "--rounds", "1", "--seconds", "1"]
        # Half of it has room for a tier in memory and its daemon.
        limit = 4 << 30
        most = ["--find-most", "--trial", "1", "--memory", str(limit)]
        told = benchmark(environment, *shards, *asked, *most, "--json", "--html", page)
        assert told.returncode == 0, told.stderr
        contest = json.loads(told.stdout)["contest"]
        names = [one["name"] for one in contest["contenders"]]
        assert names == ["forebay", "forebay-memory", "webdataset"]
        for one in contest["contenders"]:
            assert_sustained(one)
            # Each run was told when it had ended.
            assert f"{one['name']}: played, round 1 of 1: " in told.stderr
        # Only root can set a limit.
        fence = contest["fence"]
        assert (fence["memory_bytes"] == limit) == (fence["why_not"] is None)
        assert os.geteuid() != 0 or fence["memory_bytes"] == limit
        assert "Other loaders, the same work" in page.read_text()
        # What is asked in vain is said before anything is measured.
        told = benchmark(environment, "s3://bucket/0.tar", *asked)
        assert (told.returncode, told.stdout) == (2, "")
        assert "local" in told.stderr
        told = benchmark(environment, *shards, *asked, "--python", "/no/such/python")
        assert told.returncode == 1
        assert "--python" in told.stderr


def test_a_version_is_that_of_the_package_itself():
    found = {"versions": {"torchvision": "2", "torch": "1", "nvidia-dali-cuda120": "3"}}
    assert roster.version("torch", found) == "1"
    assert roster.version("dali", found) == "3"
    assert roster.version("spdl", found) == "unknown"
