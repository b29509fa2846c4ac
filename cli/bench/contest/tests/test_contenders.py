"""Single contenders: each delivers the samples of the shards, at every setting."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from statistics import fmean

import conversions
import daemons
import fence
import numpy as np
import processes
import pytest
import roster
import shards as tars
import throughput
from accelerator import Touched
from contender import Loader, Task
from pixels import MEAN, STD
from place import place
from players import player
from touch import toucher

from conftest import BATCH, CONTEST, SAMPLES, SHARDS, colour

FOREBAY = shutil.which("forebay", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
# A number of cores that adds no setting.
CORES = 2
# Tolerance for JPEG and rounding, in levels of 256, and the size of one level after normalisation.
LEVELS, IMAGE_LEVEL = 4, 1 / 255 / 0.22
REPEATS = 3


def skip_if_missing(kind, images):
    """Skip a contender that is not installed; fail if FOREBAY_TEST_LOADERS demands it."""
    needed = os.environ.get("FOREBAY_TEST_LOADERS", "").split()
    if needed and kind not in [*needed, "forebay"]:
        pytest.skip(f"needs {kind}: FOREBAY_TEST_LOADERS does not name it")
    without = pytest.fail if needed else pytest.skip
    rules = roster.RULES[kind]
    for module in rules.modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            without(f"needs {kind}: there is no module {module}: pip install {rules.package}")
    if images and rules.check_images:
        told = roster.probe(kind, sys.executable, images=True, model=None)
        if told["why"] is not None:
            without(f"needs {kind}: {roster.why_not(kind, sys.executable, told)}")


def configurations(kind, images):
    """Return the first values of all settings, each other value with these, and zero workers."""
    found = roster.probe(kind, sys.executable, images, model=None)
    settings = roster.settings(kind, images, None, CORES, roster.decoders(found))
    first = {name: values[0] for name, values in settings.items()}
    others = [
        {**first, name: value}
        for name, values in settings.items()
        for value in values[1:]
        if name not in ("workers", "threads")
    ]
    return [first, *others, *([{**first, "workers": 0}] if "workers" in first else [])]


def expected(shards, images):
    """Return the content of the shards, read by Python alone."""
    samples = [sample for shard in shards for _, sample in tars.samples(shard)]
    if images:
        bytes_, crc = 0, 0
    else:
        every = [data for sample in samples for data in sample.values()]
        bytes_, crc = sum(map(len, every)), sum(map(zlib.crc32, every)) % (1 << 64)
    return {
        "samples": len(samples),
        "payload_bytes": bytes_,
        "crc_sum": crc,
        "label_sum": sum(int(sample["cls"]) for sample in samples) if images else 0,
    }


def mean_of_images():
    """Return the mean pixel; each image has one colour, so the crop does not matter."""
    return fmean(
        (level / 255 - mean) / std
        for number in range(SAMPLES * SHARDS)
        for level, mean, std in zip(colour(number), MEAN, STD, strict=True)
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def contender(kind, storage):
    return roster.Contender(kind, kind, sys.executable, "1", {}, {}, storage=storage)


@pytest.mark.parametrize(
    ("kind", "storage", "images"),
    [
        ("forebay", "o_direct", True),
        ("forebay", "memory", False),
        *[
            (kind, "page_cache", images)
            for kind in roster.RULES
            if kind != "forebay"
            for images in (False, True)
        ],
    ],
)
def test_contender_delivers_the_samples_of_the_shards(
    kind, storage, images, shards, work, monkeypatch
):
    skip_if_missing(kind, images)
    # The command line unpacks all scripts into one folder; here PYTHONPATH replaces that.
    monkeypatch.setenv("PYTHONPATH", str(CONTEST))
    one = contender(kind, storage)
    fields = tars.fields(shards[0], images)
    source = None
    if (name := roster.RULES[kind].conversion) is not None:
        made = conversions.convert(name, sys.executable, "1", shards, fields, work, FOREBAY)
        source = made.folder
    tried = configurations(kind, images)
    task = Task(images, fields, shards, BATCH, tried[0], source)
    cache = work / "cache"
    with (
        place(one, shards, cache, FOREBAY, lambda: None) as environment,
        player(kind, kind, sys.executable, task, environment, lambda: None) as at_work,
    ):
        cold = at_work.play("first_epoch")
        assert cold["samples"] == SAMPLES * SHARDS
        assert 0 < cold["first_batch_seconds"] <= cold["wall_seconds"]
        for configuration in tried:
            at_work.play("configure", configuration=configuration)
            digest = at_work.play("digest")
            mean = digest.pop("image_mean")
            assert digest == expected(shards, images), configuration
            if images:
                assert mean == pytest.approx(mean_of_images(), abs=LEVELS * IMAGE_LEVEL)
        # The run is longer than an epoch, which repeats the shards.
        steps = REPEATS * SHARDS * SAMPLES // BATCH + 2
        run = at_work.play(
            "accelerator",
            step_seconds=1e-3,
            repeats=REPEATS,
            seconds=1e-3,
            seconds_max=60.0,
            steps=steps,
        )
        assert run["steps"] == steps
        assert run["samples"] == steps * BATCH
        if not images:
            # The run repeats the same samples, which have almost the same size.
            payload = expected(shards, images)["payload_bytes"] / (SAMPLES * SHARDS)
            assert run["bytes"] == pytest.approx(run["samples"] * payload, rel=0.01)
        assert run["cpu_seconds"] >= 0


@pytest.mark.parametrize("storage", ["o_direct", "memory"])
def test_daemon_shares_the_memory_limit_of_its_contender(storage, shards, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(CONTEST))
    one = contender("forebay", storage)
    task = Task(False, tars.fields(shards[0], False), shards, BATCH, {"bytes": "views"})
    with contextlib.ExitStack() as stack:
        try:
            before = stack.enter_context(fence.fence(2 << 30))
        except fence.Unfenced as error:
            pytest.skip(f"needs memory-limit: {error}")
        environment = stack.enter_context(place(one, shards, tmp_path / "cache", FOREBAY, before))
        at_work = stack.enter_context(
            player("forebay", "forebay", sys.executable, task, environment, before)
        )
        at_work.play("first_epoch")
        daemon = daemons.status(environment, FOREBAY)["pid"]
        limited = Path(f"/proc/{daemon}/cgroup").read_text()
        assert limited == Path(f"/proc/{at_work.process.pid}/cgroup").read_text()
        assert fence.NAME in limited


def test_cpu_time_includes_running_and_ended_children():
    """The count includes this process, a running child, and the child's own ended child."""
    burn = "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {'import time' + chr(10) + burn!r}])\n"
        f"{burn}print('done', flush=True)\nsys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()
        assert processes.children() == [child.pid]
        assert processes.cpu_seconds([child.pid]) >= 0.55
        child.stdin.close()


def test_threads_are_summed_by_the_names_without_numbers():
    # A thread's name is the file's that it writes it to.
    code = (
        "import sys, threading, time\n"
        "def burn(number):\n"
        "    open('/proc/thread-self/comm', 'w').write(f'fb-burn-{number}')\n"
        "    while time.thread_time() < 0.1: pass\n"
        "    done.wait()\n"
        "done = threading.Barrier(3)\n"
        "for number in range(2):\n"
        "    threading.Thread(target=burn, args=(number,), daemon=True).start()\n"
        "while time.process_time() < 0.25: time.sleep(0.01)\n"
        "print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()
        assert processes.thread_seconds([child.pid])["fb-burn"] >= 0.15
        child.stdin.close()


def test_a_consumer_reads_every_byte():
    read = []
    batch = [[b"abc", b"d"], [b"", b"ef"]]
    assert toucher(False, read.append)(batch) == Touched(2, 6)
    assert read == [b"abc", b"d", b"", b"ef"]

    class Seen(np.ndarray):
        def max(self, *more, **how):
            read.append(self.shape)
            return super().max(*more, **how)

    read.clear()
    images, labels = np.zeros((2, 3, 4, 4), np.float32), np.array([1, 2])
    assert toucher(True, zlib.crc32)([images.view(Seen), labels]) == Touched(2, 400)
    assert read == [(2, 3, 4, 4)]
    torch = pytest.importorskip("torch")
    assert toucher(True, zlib.crc32)([torch.from_numpy(images), labels]) == Touched(2, 400)


def test_epochs_of_different_sizes_are_an_error():
    """Every timed epoch is compared with the first."""
    task = Task(False, ["bin"], [], 1, {})
    epochs = iter([3, 3, 3, 3, 2])
    loader = type("Epochs", (), {"__iter__": lambda _: iter([[[b"x"]]] * next(epochs))})()
    assert throughput.play(task, Loader(loader), 2)["samples"] == 6
    with pytest.raises(ValueError, match="1 epochs gave 2 samples, one before 3"):
        throughput.play(task, Loader(loader), 1)


@pytest.mark.parametrize("kind", roster.ON_TORCH)
def test_every_handover_is_tried(kind):
    assert roster.settings(kind, False, None, CORES)["handover"] == ("thread", "direct")
    images = roster.settings(kind, True, None, CORES)
    assert images["handover"] == ("thread-uint8", "thread", "direct")
    assert set(images["decode"]) == {"pillow", "torchvision"}
    # A thread moves a model's batches to its GPU in advance.
    assert "direct" not in roster.settings(kind, True, "resnet50", CORES)["handover"]


def test_dali_has_handovers_only_for_bytes():
    assert roster.settings("dali", False, None, CORES)["handover"] == ("thread", "direct")
    # DALI delivers a batch of photos as one tensor.
    assert "handover" not in roster.settings("dali", True, None, CORES)


def test_torchcodec_is_tried_where_it_works():
    for found, decoders in ((True, 3), (False, 2)):
        there = roster.decoders({"torchcodec.decoders": found})
        assert len(roster.settings("torch", True, None, CORES, there)["decode"]) == decoders


def test_worker_counts_up_to_the_number_of_cores_are_tried():
    for few in (1, 2, 4):
        assert sorted(roster.settings("torch", True, None, few)["workers"]) == [0, 1, 2, 4]
        assert sorted(roster.settings("dali", False, None, few)["threads"]) == [1, 2, 4]
    assert sorted(roster.settings("mosaic", False, None, 12)["workers"]) == [0, 1, 2, 4, 12]
    assert sorted(roster.settings("spdl", True, None, 12)["threads"]) == [1, 2, 4, 12]


def test_settings_beyond_a_much_worse_one_are_skipped():
    assert not roster.is_hopeless(4, {})
    assert not roster.is_hopeless(1, {2: 60.0, 4: 100.0})
    assert roster.is_hopeless(1, {2: 40.0, 4: 100.0})
    assert roster.is_hopeless(16, {2: 100.0, 4: 40.0})
    # Zero workers is another way to load, not a smaller number.
    assert not roster.is_hopeless(0, {1: 10.0, 2: 40.0, 4: 100.0})


def test_most_ready_batches_follow_from_the_settings():
    # Each of four workers holds four batches; a thread holds two more.
    assert roster.most_ahead("torch", {"workers": 4, "handover": "direct"}) == 16
    assert roster.most_ahead("torch", {"workers": 2, "handover": "thread"}) == 10
    assert roster.most_ahead("torch", {"workers": 0, "handover": "direct"}) == 0
    assert roster.most_ahead("torch", {"workers": 16, "handover": "direct"}) == 32
    # Each of a table's splits has another one in its queues.
    assert roster.most_ahead("lancedb", {"workers": 4, "handover": "direct"}) == 20
    assert roster.most_ahead("lancedb", {"workers": 0, "handover": "direct"}) == 1
    assert roster.most_ahead("spdl", {"threads": 4}) == 8
    assert roster.most_ahead("dali", {"threads": 4, "handover": "thread"}) == 10
    assert roster.most_ahead("forebay", {}) == 4
