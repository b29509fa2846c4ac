"""Figures of a GPU, with torch's CPU in its place: rounds, failures, and what a limit leaves."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[1]
ROOT = GPU.parents[1]
PARTS = [GPU / "parts", GPU, ROOT / "benches/rivals", ROOT / "examples", ROOT / "cli/bench/contest"]
sys.path[:0] = map(str, PARTS)

torch = pytest.importorskip("torch")
pytest.importorskip("PIL.Image")

import bare_loop  # noqa: E402
import beside  # noqa: E402
import decoders  # noqa: E402
import gpu_report  # noqa: E402
import measure  # noqa: E402
import own_daemon  # noqa: E402
import photo_shards  # noqa: E402
import pixel_steps  # noqa: E402
import place  # noqa: E402
import probe_inputs  # noqa: E402

SAMPLES, BATCH = 64, 8
# Far more than a child takes that only waits for its signal.
LIMIT = 60


@pytest.fixture
def no_device(monkeypatch):
    """Let torch's CPU stand where a device would."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    profile = functools.partial(
        torch.profiler.profile, activities=[torch.profiler.ProfilerActivity.CPU]
    )
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profile())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


class Stream:
    def synchronize(self):
        pass


@pytest.fixture
def daemon(monkeypatch):
    with own_daemon.environment() as variables:
        for name in ("FOREBAY_DAEMON", "FOREBAY_CACHE"):
            monkeypatch.setenv(name, variables[name])
        yield


@pytest.fixture
def files():
    return [probe_inputs.encoded(probe_inputs.drawn(40 + n, 30 + n)) for n in range(4)]


def shrink(monkeypatch):
    monkeypatch.setattr(measure, "BATCH", BATCH)
    # The default value of an argument is that of the definition.
    monkeypatch.setattr(measure.forebay_loader, "__defaults__", (BATCH,))
    monkeypatch.setattr(measure, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(measure, "RENEWING", 2)
    monkeypatch.setattr(measure, "DEVICE", "cpu")


def good(seconds):
    return 5


def bad(seconds):
    raise OSError("broken")


class Turns:
    """Contenders that note the loaders' sessions as their turns come."""

    def __init__(self, monkeypatch, target):
        self.loaders, self.sessions, self.written = [], [], []
        self.target = target
        for name in ("forebay_loader", "files_loader"):
            made = getattr(measure, name)
            monkeypatch.setattr(measure, name, self.keeping(made))

    def keeping(self, made):
        def make(urls, *of):
            self.loaders.append(made(urls, *of))
            return self.loaders[-1]

        return make

    def note(self, seconds):
        self.sessions.append([loader._native for loader in self.loaders])
        self.written.append(json.loads(self.target.read_text()) if self.target.exists() else None)
        return 5


def decoded(monkeypatch, tmp_path, files, contenders, rounds=2):
    """Measure decoding on the CPU beside stand-ins, and return the report and the turns."""
    shrink(monkeypatch)
    target = tmp_path / "gpu.json"
    turns = Turns(monkeypatch, target)
    monkeypatch.setattr(decoders, "bare", lambda photos, left_out: contenders(turns))
    monkeypatch.setattr(decoders, "rivals", lambda *of: iter(()))
    urls = photo_shards.write(tmp_path, files, SAMPLES, 2)
    report = gpu_report.Report(rounds, target, {"gpu": "none"})
    measure.decoding(report, urls, files)
    return report, turns


@pytest.mark.usefixtures("no_device", "daemon")
def test_every_decoder_has_its_rounds_and_only_the_bad_one_fails(
    monkeypatch, tmp_path, files, capsys
):
    def contenders(turns):
        yield "bare, good", good
        yield "bare, bad", bad
        yield "torchvision alone", turns.note

    report, turns = decoded(monkeypatch, tmp_path, files, contenders)
    assert report.failed == {"decode: bare, bad": "OSError: broken"}
    kept = json.loads(turns.target.read_text())
    for name in (measure.FOREBAY, measure.DELIVERY, "decode: bare, good"):
        assert len(kept["figures"][name]["rounds"]) == 2
    assert kept["figures"]["decode: forebay by the best bare loop"]["best"] == "decode: bare, good"
    assert "decode: forebay by torchvision alone" in kept["figures"]
    # Counts and waits are those of the counted rounds alone, an epoch each.
    figure = kept["figures"][measure.FOREBAY]
    assert figure["wait"]["count"] == 2 * SAMPLES // BATCH
    assert figure["wait"].keys() == set(measure.GROWING)
    assert sum(figure["decoders"]["cpu"].values()) >= 2 * SAMPLES
    assert "(disk)" in figure["cache"]
    # Each turn's rows are in the file before the next contender's turn.
    cold, first, second = [
        {name: len(one["rounds"]) for name, one in written["figures"].items()}
        for written in turns.written
    ]
    before = (measure.FOREBAY, measure.DELIVERY, "decode: bare, good")
    assert cold == {}
    assert first == dict.fromkeys(before, 1)
    assert second == dict.fromkeys(before, 2) | {"decode: torchvision alone": 1}
    # A library that hangs is known by its name.
    assert "turn 0: decode: bare, bad" in capsys.readouterr().out


@pytest.mark.usefixtures("no_device", "daemon")
def test_no_loader_opens_a_session_in_a_counted_round(monkeypatch, tmp_path, files):
    def contenders(turns):
        yield "bare, noting", turns.note

    _, turns = decoded(monkeypatch, tmp_path, files, contenders)
    cold, first, second = turns.sessions
    assert len(cold) == 2
    assert all(session is not None for session in cold)
    assert cold == first == second


@pytest.mark.usefixtures("no_device", "daemon")
def test_decoders_that_break_off_leave_those_before_them(monkeypatch, tmp_path, files):
    def contenders(turns):
        yield "bare, good", good
        raise RuntimeError("no library")

    report, _ = decoded(monkeypatch, tmp_path, files, contenders)
    assert list(report.failed.values()) == ["RuntimeError: no library"]
    assert len(report.figures["decode: bare, good"].rounds) == 2
    assert len(report.figures[measure.FOREBAY].rounds) == 2


@pytest.mark.usefixtures("no_device", "daemon")
def test_end_at_a_limit_leaves_rounds_and_ratios(monkeypatch, tmp_path, files):
    def contenders(turns):
        yield "bare, good", good
        calls = iter((5, 5, SystemExit(143)))

        def ended(seconds):
            value = next(calls)
            if isinstance(value, BaseException):
                raise value
            return value

        yield "bare, ended", ended

    with pytest.raises(SystemExit):
        decoded(monkeypatch, tmp_path, files, contenders)
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert len(kept["figures"]["decode: bare, ended"]["rounds"]) == 1
    assert "decode: forebay by the best bare loop" in kept["figures"]


@pytest.mark.usefixtures("no_device")
def test_rivals_of_other_wheels_have_ratios_to_earlier_rounds(monkeypatch):
    asked = []

    def started(photos, batch, names, left_out):
        asked.append(names)
        left_out("nvImageCodec", ModuleNotFoundError("nvidia.nvimgcodec"))
        yield "TorchCodec alone", good

    monkeypatch.setattr(decoders, "rivals", started)
    monkeypatch.setattr(measure, "ROUND_SECONDS", 0.0)
    report = gpu_report.Report(3, None, {})
    report.add(measure.FOREBAY, "images/s", 10.0)
    measure.rivals(report, [])
    assert asked == [measure.APART]
    rate = report.figures["decode: TorchCodec alone"]
    assert len(rate.rounds) == 3
    ratio = report.figures["decode: forebay by TorchCodec alone"]
    assert ratio.rounds == [10.0 / rate.median()]
    assert (list(report.failed), report.code()) == (["decode: nvImageCodec"], 0)


@pytest.mark.usefixtures("no_device", "daemon")
def test_kernels_without_events_are_said(monkeypatch, tmp_path, files, capsys):
    shrink(monkeypatch)
    report = gpu_report.Report(1, None, {})
    measure.kernels(report, photo_shards.write(tmp_path, files, SAMPLES, 2))
    assert "gave no events" in capsys.readouterr().out
    assert not report.figures


@pytest.mark.usefixtures("no_device")
def test_round_without_images_is_no_round():
    report = gpu_report.Report(1, None, {})
    with pytest.raises(ValueError, match="no image"):
        measure._round(report, "empty", lambda seconds: 0, is_counted=True)
    assert not report.figures


def test_counts_since_a_point_are_differences():
    begun = {"cpu": {"plain": 3}, "wait": 1.5}
    now = {"cpu": {"plain": 5, "scans": 1}, "wait": 2.0, "gather": {"plain": 4}}
    expected = {"cpu": {"plain": 2, "scans": 1}, "wait": 0.5, "gather": {"plain": 4}}
    assert measure.since(now, begun) == expected


def test_absent_rival_is_said_but_no_failure():
    report = gpu_report.Report(1, None, {})
    report.leave_out("decode: TorchCodec", ModuleNotFoundError("No module named 'torchcodec'"))
    assert report.failed
    assert report.code() == 0
    report.leave_out("decode: nvImageCodec", OSError("libnvjpeg is missing"))
    assert report.code() == 1


class Loop:
    """A loop of a bare decoder that decodes nothing."""

    def __init__(self, images):
        self.images = images

    def run(self, seconds):
        if not self.images:
            raise OSError("execution failed")
        return bare_loop.Round(images=self.images, batches=1)


def test_loops_together_sum_up_and_raise_what_one_raised():
    assert bare_loop.together([Loop(2), Loop(3)], 0).images == 5
    with pytest.raises(OSError, match="execution failed"):
        bare_loop.together([Loop(2), Loop(0)], 0)


# Other decoders, with stand-ins for their modules


class NvImageCodec:
    """The parts of nvImageCodec's interface that are used."""

    BackendKind = types.SimpleNamespace(HW_GPU_ONLY=4, GPU_ONLY=2, HYBRID_CPU_GPU=3, CPU_ONLY=1)
    left_out = False

    def __init__(self):
        self.backends = []

    def Backend(self, kind):  # noqa: N802
        return kind

    def CodeStream(self, data):  # noqa: N802
        return len(data)

    def Decoder(self, backends):  # noqa: N802
        self.backends = backends
        return self

    def decode(self, streams):
        return [None if self.left_out else torch.zeros(4, size, 3) for size in streams]


@pytest.fixture
def modules(monkeypatch):
    """Let decoders import stand-ins, and leave tensors on the CPU."""
    codec = NvImageCodec()
    torchcodec = types.SimpleNamespace(
        decode_jpeg=lambda tensors, device: [tensor.sum() for tensor in tensors]
    )
    found = {"nvidia.nvimgcodec": codec, "torchcodec.decoders": torchcodec}
    monkeypatch.setattr(decoders.importlib, "import_module", found.__getitem__)
    made = torch.as_tensor
    monkeypatch.setattr(torch, "as_tensor", lambda data, device: made(data))
    return codec


def test_nvimagecodec_decodes_by_the_device_alone(modules, capsys):
    decode = decoders._nvimagecodec([b"12", b"123"])
    assert modules.backends == [4, 2, 3]
    assert "HW_GPU_ONLY" in capsys.readouterr().out
    assert [image.shape for image in decode([1, 0])] == [(3, 4, 3), (3, 4, 2)]
    modules.left_out = True
    with pytest.raises(ValueError, match="left images out"):
        decode([0])


def test_torchcodec_decodes_the_named_photos(modules):
    decode = decoders._torchcodec([b"\1\2", b"\3"])
    assert [int(image) for image in decode([1, 0, 1])] == [3, 3, 3]


def test_decoder_that_does_not_start_leaves_the_others(monkeypatch):
    for name in ("_torchvision", "_nvimagecodec"):
        monkeypatch.setattr(decoders, name, lambda photos: lambda numbers: [])

    def absent(photos):
        raise ModuleNotFoundError("torchcodec")

    monkeypatch.setattr(decoders, "_torchcodec", absent)
    left = {}
    every = measure.HERE_ANYWAY + measure.APART
    found = [name for name, _ in decoders.rivals([b"1"], 1, every, left.__setitem__)]
    assert set(left) == {"TorchCodec"}
    assert {name.split()[0] for name in found} == {"torchvision", "nvImageCodec"}


# Training beside decoding


def scripted(monkeypatch, seconds, photos):
    """Let rounds take these seconds, alone and beside a loader in turns, and these photos."""
    rounds = iter(zip(seconds, photos, strict=True))
    loaders = []

    def timed(loader, products):
        loaders.append(loader)
        return next(rounds)

    monkeypatch.setattr(beside, "timed_beside", timed)
    monkeypatch.setattr(beside, "LEAST_ROUNDS", 3)
    return loaders


def test_slowdown_is_the_median_of_the_pairs_ratios(monkeypatch):
    # The device's clock changes meanwhile: medians of either column would give 50 %.
    loaders = scripted(
        monkeypatch, (1.0, 1.1, 2.0, 3.0, 4.0, 4.2), (0.0, 2000.0, 0.0, 6000.0, 0.0, 8400.0)
    )
    report = gpu_report.Report(1, None, {})
    beside.slower(report, "loader", lambda: None)
    assert loaders == [None, "loader"] * 3
    figure = report.figures["training: slower by"]
    assert figure.rounds == pytest.approx([10.0])
    assert figure.more["ratios"] == pytest.approx([1.1, 1.5, 1.05])
    assert report.figures["training: photos beside it"].rounds[2] == pytest.approx(2000.0)


def test_training_beside_too_few_photos_fails_with_figures(monkeypatch):
    few = beside.ENOUGH * beside.DEMAND - 1
    scripted(monkeypatch, (1.0,) * 6, (0.0, few) * 3)
    report = gpu_report.Report(1, None, {})
    with pytest.raises(ValueError, match="instead of 1,786"):
        beside.slower(report, "loader", lambda: None)
    assert report.figures["training: photos beside it"].median() == few
    assert report.figures["training: slower by"].rounds == [0.0]


def test_photos_count_once_they_are_due_and_there():
    begin = beside.time.perf_counter() - 1.0
    ahead = beside.Feed(begin, seen=1 << 40).used()
    assert beside.DEMAND <= ahead < 1 << 40
    assert beside.Feed(begin, seen=5).used() == 5


class Stalled:
    """A loader that gives up after a batch, as Forebay's does at its `timeout=`."""

    def __init__(self):
        self.ended = threading.Event()

    def __iter__(self):
        yield {"image": range(1)}
        self.ended.set()
        raise OSError("the loader waited too long")


@pytest.mark.usefixtures("no_device")
def test_stalled_loader_fails_the_training_beside_it(monkeypatch):
    monkeypatch.setattr(beside, "SETTLED_SECONDS", 0.0)
    loader = Stalled()
    with pytest.raises(OSError, match="waited too long"):
        beside.timed_beside(loader, lambda: loader.ended.wait(LIMIT))


# Pixels


def test_steps_of_pixels_are_worst_far_and_beyond():
    report = gpu_report.Report(1, None, {})
    right = torch.zeros(2, 3, 4, 4, dtype=torch.int32)
    found = right.clone()
    found[1] += 2
    found[0, 0, 0, 0] = pixel_steps.FAR_STEPS + 1
    pixel_steps.steps(report, "p", [(["a", "b"], found)], [(["a", "b"], right)], {"x": 1})
    worst, far, beyond = (one.median() for one in report.figures.values())
    assert worst == 2.0
    assert far == 100 / 96
    assert beyond == 1
    with pytest.raises(ValueError, match="other images"):
        pixel_steps.steps(report, "p", [(["b", "a"], found)], [(["a", "b"], right)], {})


@pytest.mark.usefixtures("daemon")
def test_pixels_of_every_backend_that_starts_are_figures(monkeypatch, tmp_path, files):
    batches, asked = pixel_steps._batches, []
    monkeypatch.setattr(pixel_steps, "PHOTOS", SAMPLES)

    def on_cpu(urls, device):
        asked.append((device, os.environ.get(pixel_steps.VARIABLE)))
        if os.environ.get(pixel_steps.VARIABLE) == "5":
            raise OSError("no engines")
        return batches(urls, "cpu")

    monkeypatch.setattr(pixel_steps, "_batches", on_cpu)
    monkeypatch.setenv(pixel_steps.VARIABLE, "4")
    report = gpu_report.Report(1, tmp_path / "gpu.json", {})
    pixel_steps.pixels(report, tmp_path, files)
    assert asked == [("cpu", "4"), ("cuda", "4"), ("cuda", "3"), ("cuda", "5"), ("cuda", "4")]
    assert os.environ[pixel_steps.VARIABLE] == "4"
    assert list(report.failed) == ["pixels, backend 5"]
    assert report.figures["pixels, backend 3: worst mean of an image"].rounds == [0.0]


# Places


@pytest.fixture
def any_size(monkeypatch):
    for name in ("FREE_BYTES", "MEMORY_BYTES"):
        monkeypatch.setattr(own_daemon, name, 0)
    monkeypatch.setattr(own_daemon, "MOUNT_BYTES", 1 << 20)


@pytest.mark.usefixtures("any_size")
def test_shared_memory_must_be_memory_and_have_room(monkeypatch, tmp_path):
    # A folder that is no tmpfs on any machine.
    monkeypatch.setattr(own_daemon, "SHARED_MEMORY", Path("/proc"))
    assert own_daemon.memory() is None
    monkeypatch.setattr(own_daemon, "SHARED_MEMORY", tmp_path / "absent")
    assert own_daemon.memory() is None
    monkeypatch.setattr(own_daemon, "SHARED_MEMORY", Path("/dev/shm"))
    assert own_daemon.memory() == Path("/dev/shm")
    monkeypatch.setattr(own_daemon, "FREE_BYTES", 1 << 60)
    assert own_daemon.memory() is None


@pytest.mark.usefixtures("any_size")
def test_machine_without_shared_memory_mounts_or_takes_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(own_daemon, "SHARED_MEMORY", tmp_path / "absent")
    with own_daemon.storage() as where:
        is_memory = place.in_memory(where.folder) is not None
        assert where.kind == ("memory" if is_memory else "disk")
        assert os.path.ismount(where.folder) == is_memory
        assert f"({where.kind})" in str(where)
    assert where.kind == "disk" or not where.folder.exists()
    monkeypatch.setattr(own_daemon, "_mount", lambda folder: False)
    with own_daemon.storage() as where:
        assert where.kind == "disk"


def test_signal_to_end_ends_a_measurement_as_an_error_does(tmp_path):
    """The script's own handler: what is in `finally` runs."""
    code = f"""
        import sys
        sys.path[:0] = {[str(GPU), str(GPU / "parts")]!r}
        import measure, own_daemon, signal, threading, torch
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_name = lambda: "none"
        def wait(report, folder, chosen):
            print(folder, flush=True)
            signal.pause()
        measure.measure = wait
        sys.argv[1:] = []
        sys.exit(measure.main())
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    with child, child.stdout as lines:
        assert lines.readline().startswith("shards and cache in ")
        folder = Path(lines.readline().strip())
        assert folder.exists()
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT) == 128 + signal.SIGTERM
    assert not folder.exists()
