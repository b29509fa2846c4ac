"""The probe and the figures of a GPU, as far as a machine without one shows them."""

import ctypes
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[1]
ROOT = GPU.parents[1]
PARTS = [GPU / "parts", GPU, ROOT / "benches/rivals", ROOT / "examples", ROOT / "cli/bench/contest"]
sys.path[:0] = map(str, PARTS)

pytest.importorskip("PIL.Image")

import jpeg_header  # noqa: E402
import nvjpeg  # noqa: E402
import own_daemon  # noqa: E402
import placed  # noqa: E402
import probe  # noqa: E402
import probe_inputs  # noqa: E402

# Far more than a process takes that only prints, and far less than one that waits for good.
LIMIT = 20
SIZES = ((1, 1), (15, 17), (64, 64), (101, 43))


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


ALL = (*probe.EXPERIMENTS, *probe.ANSWERED)
no_gpu = pytest.mark.skipif(has_driver(), reason="needs no-gpu: this machine has a CUDA driver")


@pytest.fixture
def environment():
    with own_daemon.environment() as variables:
        yield variables


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def ask(code: str, limit: float = LIMIT):
    return probe.ask("E0", child(code), dict(os.environ), limit)


def texts(answer) -> list[str]:
    return [line["text"] for line in answer["lines"]]


@no_gpu
@pytest.mark.parametrize("script", ["probe.py", "measure.py"])
def test_script_without_a_gpu_says_so_and_ends_well(script, tmp_path):
    target = tmp_path / "figures.json"
    command = [sys.executable, GPU / script, "--json", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "nothing was" in done.stdout
    assert not target.exists()


@no_gpu
@pytest.mark.parametrize("function", [function for _, function, _ in ALL])
def test_experiment_without_a_gpu_is_a_line(function, environment, tmp_path):
    (tmp_path / "00.jpg").write_bytes(probe_inputs.encoded(probe_inputs.drawn(64, 64)))
    command = [sys.executable, GPU / "probe.py", "--ask", function, "--photos", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    assert all(line.keys() == {"text", "figures"} for line in lines)
    assert "Traceback" not in done.stderr


def test_lines_of_an_experiment_are_kept_with_noise():
    answer = ask('print("noise"); print(\'{"text": "found", "figures": {"n": 1}}\'); print("5")')
    assert texts(answer) == ["noise", "found", "5"]
    assert answer["lines"][1]["figures"] == {"n": 1}
    assert answer["code"] == 0


def test_experiment_that_hangs_ends_at_its_limit():
    answer = ask("import threading; print('begun', flush=True); threading.Event().wait()", 1)
    assert texts(answer)[:2] == ["begun", "killed at its limit"]
    assert answer["code"] < 0


def test_crash_of_an_experiment_is_kept_with_its_lines():
    answer = ask("import os; print('begun', flush=True); os.abort()")
    assert texts(answer)[0] == "begun"
    assert answer["code"] < 0
    assert str(answer["code"]) in texts(answer)[-1]


# Python 3.12 warns of forks beside threads; photos are drawn by forked processes.
forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@forks
def test_failed_experiment_stops_no_other(tmp_path, monkeypatch):
    chosen = [("E0", "absent_module.function", LIMIT), ("E7", "probe_limits.absent", LIMIT)]
    target = tmp_path / "probe.json"
    monkeypatch.setattr(probe, "PHOTOS", 1)
    probe.ask_all(chosen, tmp_path / "photos", dict(os.environ), target, 2 * LIMIT)
    kept = json.loads(target.read_text())
    assert list(kept) == ["E0", "E7"]
    assert [answer["code"] for answer in kept.values()] == [1, 1]


@forks
def test_experiments_past_the_time_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "PHOTOS", 1)
    target = tmp_path / "probe.json"
    chosen = [("E0", "absent_module.function", LIMIT)]
    probe.ask_all(chosen, tmp_path / "photos", dict(os.environ), target, 0)
    (line,) = json.loads(target.read_text())["E0"]["lines"]
    assert "not asked" in line["text"]


def test_limits_of_all_experiments_fit_the_time():
    limits = [limit for _, _, limit in probe.EXPERIMENTS]
    assert sum(limits) + probe.PREPARING <= probe.SECONDS
    # None is asked twice, and what was never answered comes before the loops.
    names = [name for name, _, _ in ALL]
    assert len(set(names)) == len(names)
    wanted = ("E9", "E10", "E11", "E6", "E1")
    assert tuple(names[: len(wanted)]) == wanted


@no_gpu
@pytest.mark.parametrize("name", ["E5", "E5 loops", "E5 calls", "E1"])
def test_experiments_are_known_by_either_name(name):
    command = [sys.executable, GPU / "probe.py", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", SIZES)
def test_every_sampling_is_a_file_that_libjpeg_decodes(size):
    files = probe_inputs.samplings(*size)
    assert set(files) == {"444", "422", "420", "440", "gray"}
    factors = {"444": (1, 1), "422": (2, 1), "420": (2, 2), "440": (1, 2), "gray": (1, 1)}
    for name, file in files.items():
        header = jpeg_header.read(file)
        assert (header.width, header.height) == size
        assert header.sampling[0] == factors[name]
        assert len(header.sampling) == (1 if name == "gray" else 3)
        assert probe_inputs.luma(file).shape == size[::-1]


def test_planes_of_a_header_are_rounded_up():
    header = jpeg_header.read(probe_inputs.samplings(15, 17)["420"])
    assert header.planes() == [(15, 17), (8, 9), (8, 9)]


def test_file_without_a_frame_has_no_header():
    with pytest.raises(ValueError, match="no frame header"):
        jpeg_header.read(b"\xff\xd8\xff\xda\0\x02")


def test_rare_files_are_rare_in_their_headers():
    headers = {name: jpeg_header.read(file) for name, file in probe_inputs.rare().items()}
    assert headers["extended (0xC1)"].kind == 0xC1
    assert headers["progressive"].kind == 0xC2
    assert headers["gray 2x2"].sampling == ((2, 2),)
    assert headers["411"].sampling == ((4, 1), (1, 1), (1, 1))
    assert headers["16384x16"].width == 16384
    assert b"\xff\xdd" in probe_inputs.rare()["restart intervals"]


def test_torn_files_have_whole_headers():
    files = probe_inputs.torn()
    assert len(set(files.values())) == len(files)
    for file in files.values():
        jpeg_header.read(file)


def bundled() -> nvjpeg.Library:
    pytest.importorskip("torchvision")
    return nvjpeg.Library()


def test_image_has_nvjpegs_layout():
    assert ctypes.sizeof(nvjpeg.Image) == 64
    assert nvjpeg.Image.pitch.offset == 32


def test_real_nvjpeg_has_all_functions():
    assert int(bundled().version().split(".")[0]) >= 12


@no_gpu
@pytest.mark.parametrize("backend", nvjpeg.BACKENDS)
def test_real_nvjpeg_without_a_gpu_refuses_to_start(backend):
    with pytest.raises(nvjpeg.Refused) as refused:
        nvjpeg.Decoder(bundled(), backend)
    assert refused.value.status == nvjpeg.STATUSES.index("execution failed")


class Memory:
    """A device whose memory is the host's, for layouts."""

    def __init__(self):
        self.kept = {}

    def take(self, size):
        buffer = ctypes.create_string_buffer(size)
        self.kept[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def pinned(self, size):
        at = self.take(size)
        return placed.np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(at))

    def download(self, at, size):
        return placed.np.frombuffer(ctypes.string_at(at, size), placed.np.uint8)


def test_batch_lays_files_and_planes_apart():
    device = Memory()
    files = [*probe_inputs.samplings(15, 17).values()]
    on_host = placed.Files(device, files)
    planes = placed.Planes(device, on_host, guard=3)
    batch = on_host.batch(nvjpeg.ENGINES, planes)
    ends = []
    for at, size, file in zip(batch.data, batch.lens, files, strict=True):
        assert ctypes.string_at(at, size) == file
        ends.append((at, at + size))
    assert all(end + nvjpeg.PADDING <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    # Every component is filled with its own number, and read back without another's.
    number = 0
    for image, header in zip(batch.images, on_host.headers, strict=True):
        for channel, (_, height) in enumerate(header.planes()):
            number += 1
            ctypes.memset(image.channel[channel], number, (height + 3) * image.pitch[channel])
    read = [int(plane[0, 0]) for image in planes.read() for plane in image]
    assert read == list(range(1, number + 1))
    assert all((plane == plane[0, 0]).all() for image in planes.read() for plane in image)
    assert {image.shape for image in planes.luma()} == {(17, 15)}


def test_failed_part_stops_no_other_and_figures_are_kept(tmp_path):
    import measure

    target = tmp_path / "gpu.json"
    report = measure.Report(1, target, {"gpu": "none"})

    def breaks():
        report.add("a", "ms", 1.0)
        raise OSError("broken")

    report.part("first", breaks)
    assert json.loads(target.read_text())["failed"] == {"first": "OSError: broken"}
    report.part("second", lambda: report.add("b", "ms", 2.0))
    kept = json.loads(target.read_text())
    assert {name: figure["median"] for name, figure in kept["figures"].items()} == {"a": 1, "b": 2}
    assert kept["machine"]["gpu"] == "none"


def test_share_is_that_of_the_best_bare_loop():
    import measure

    report = measure.Report(1, None, {})
    rates = {measure.FOREBAY: 80.0, f"{measure.BARE}, slow": 50.0, f"{measure.BARE}, fast": 100.0}
    for name, rate in rates.items():
        report.add(name, "images/s", rate)
    measure._compare(report, measure.HERE_ANYWAY)
    figure = report.figures["decode: forebay by the best bare loop"]
    assert figure.rounds == [80.0]
    assert figure.more["best"] == f"{measure.BARE}, fast"
