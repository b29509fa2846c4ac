"""Fixtures of the contest's tests: small shards, and the scripts on the import path.

The scripts import each other by bare name, as Python does when it runs one of them.
"""

import io
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

CONTEST = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CONTEST))

SAMPLES, SHARDS, BATCH = 24, 2, 8


def colour(number):
    return (number * 7 % 256, number * 3 % 256, 90)


def jpeg(number):
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (96, 80), colour(number)).save(data, "JPEG")
    return data.getvalue()


@pytest.fixture(scope="session")
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


@pytest.fixture
def carried(tmp_path):
    """A folder with a copy of the scripts, as the command line unpacks them."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for script in CONTEST.glob("*.py"):
        shutil.copy(script, folder)
    return folder
