"""Generated photos: reproducible, of the promised size, and beside their class files."""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
import make_photos


def encoded(number):
    data = io.BytesIO()
    label = number % make_photos.CLASSES
    make_photos.photo(number, label).save(data, "JPEG", quality=make_photos.QUALITY)
    return data.getvalue()


def test_the_same_number_makes_the_same_photo():
    assert encoded(3) == encoded(3)
    assert encoded(3) != encoded(13)


def test_photo_has_the_size_of_a_photograph():
    sizes = [len(encoded(number)) for number in range(20)]
    assert 60_000 < np.mean(sizes) < 110_000
    assert Image.open(io.BytesIO(encoded(0))).size == (make_photos.WIDTH, make_photos.HEIGHT)


def test_folder_holds_pairs_of_photo_and_class(tmp_path):
    sizes = list(make_photos.make(tmp_path, 12))
    assert [path.name for path in sorted(tmp_path.glob("*.cls"))] == [
        f"{number:08d}.cls" for number in range(12)
    ]
    assert (tmp_path / "00000011.cls").read_text() == "1"
    assert (tmp_path / "00000011.jpg").stat().st_size == sizes[11]
