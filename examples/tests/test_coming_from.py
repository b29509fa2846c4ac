"""Scripts of `docs/coming-from/`: what the page packs and reads is what the other library reads.

The commands of a page run as they stand there. A script of another library runs where that library
is installed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import own_command
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "cli/bench/contest"))

import daemons  # noqa: E402

SCRIPTS = ROOT / "examples/coming_from"
PAGES = ROOT / "docs/coming-from"
# Data sets that the libraries themselves wrote.
FOREIGN = ROOT / "cache/shard/tests/foreign"
TIMEOUT_S = 120
CLASSES, PHOTOS, SIDE = 3, 20, 40

# Libraries of the scripts that need more than Forebay: a module, and its name for skips.
NEEDED = {
    "webdataset_before": ("webdataset", "webdataset"),
    "mds_before": ("streaming", "mosaic"),
    "litdata_before": ("litdata", "litdata"),
    "litdata_convert": ("litdata", "litdata"),
    "hf_before": ("datasets", "datasets"),
}


@pytest.fixture(scope="module")
def forebay(tmp_path_factory):
    return own_command.write(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the data of all pages, and a cache that they share."""
    folder = tmp_path_factory.mktemp("from")
    for number in range(PHOTOS):
        path = folder / f"photos/train/class-{number % CLASSES}/{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number * 12, 90, 200)).save(path)
    shutil.copytree(FOREIGN / "mds", folder / "mds/train")
    (folder / "hf").mkdir()
    for path in FOREIGN.glob("*.parquet"):
        shutil.copy(path, folder / "hf")
    return folder


@pytest.fixture(scope="module")
def environment(place, forebay):
    """Variables of a daemon of its own, and a `PATH` that finds this package's command."""
    path = f"{forebay.parent}:{os.environ['PATH']}"
    variables = os.environ | {"PATH": path, "FOREBAY_CAPACITY": "256MiB"}
    with daemons.private_daemon(variables, place / "cache", forebay):
        yield variables


def blocks(page, language):
    """Return the code of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run(words, place, environment):
    """Run a command in the folder of the data; return its last line."""
    ended = subprocess.run(
        words,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    sys.stderr.write(ended.stderr)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return (ended.stdout.splitlines() or [""])[-1]


def needs(name):
    """Skip unless the library of a script is installed."""
    module, requirement = NEEDED.get(name, ("forebay", ""))
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {requirement}: install {module}, for examples/coming_from/{name}.py")


def script(name, place, environment):
    needs(name)
    return run([sys.executable, SCRIPTS / f"{name}.py"], place, environment)


def pack(page, place, environment):
    """Run the commands of a page; the shards of earlier pages give way."""
    shutil.rmtree(place / "shards", ignore_errors=True)
    (text,) = blocks(PAGES / page, "sh")
    run(["sh", "-ec", text], place, environment)


@pytest.mark.parametrize(
    ("page", "name", "told"),
    [
        ("TORCH.md", "torch", "20 samples, labels sum to 19"),
        ("MDS.md", "mds", "6 samples, labels sum to 15"),
        ("HF_DATASETS.md", "hf", "6 samples, labels sum to 6"),
    ],
)
def test_packed_data_reads_as_before(page, name, told, place, environment):
    pack(page, place, environment)
    assert script(f"{name}_after", place, environment) == told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torch_before", "20 samples, labels sum to 19"),
        ("mds_before", "6 samples, labels sum to 15"),
        ("hf_before", "6 samples, labels sum to 6"),
    ],
)
def test_other_library_reads_the_same(name, told, place, environment):
    assert script(name, place, environment) == told


def test_webdataset_script_changes_one_line(place, environment):
    pack("TORCH.md", place, environment)
    told = "20 samples, labels sum to 19"
    before = (SCRIPTS / "webdataset_before.py").read_text()
    after = before.replace("import webdataset as wds", "import forebay.webdataset as wds")
    assert after != before
    (place / "after.py").write_text(after)
    assert run([sys.executable, "after.py"], place, environment) == told
    assert script("webdataset_faster", place, environment) == told
    assert script("webdataset_before", place, environment) == told


LITDATA = """
import sys
import torch
from litdata import optimize

def sample(number):
    return {"image": torch.full((3, 40, 40), number, dtype=torch.uint8), "label": number % 3}

if __name__ == "__main__":
    optimize(sample, list(range(20)), "litdata/train", chunk_bytes="64MB", num_workers=1)
"""


def test_litdata_chunks_become_shards(place, environment):
    needs("litdata_convert")
    (place / "make_litdata.py").write_text(LITDATA)
    run([sys.executable, "make_litdata.py"], place, environment)
    shutil.rmtree(place / "shards", ignore_errors=True)
    (place / "shards").mkdir()
    script("litdata_convert", place, environment)
    told = "20 samples, labels sum to 19"
    assert script("litdata_before", place, environment) == told
    assert script("litdata_after", place, environment) == told


def test_litdata_script_reads_shards_like_its_own(place, environment):
    pack("TORCH.md", place, environment)
    # Any shards with those fields do, where LitData is not installed.
    text = (SCRIPTS / "litdata_after.py").read_text().replace('Image("png"', 'Image("jpg"')
    (place / "after.py").write_text(text)
    told = "20 samples, labels sum to 19"
    assert run([sys.executable, "after.py"], place, environment) == told


PAGE_NAMES = sorted(path.name for path in PAGES.glob("*.md"))


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_page_shows_code_of_the_scripts(page):
    texts = [path.read_text() for path in SCRIPTS.glob("*.py")]
    shown = blocks(PAGES / page, "python")
    assert len(shown) >= 2
    for block in shown:
        assert any(block in text for text in texts), block
