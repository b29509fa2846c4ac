"""Links in a tar stand for the member they name."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

import forebay


def archive(folder: Path, *options: str) -> str:
    """Write the tar of `folder` by GNU tar, names sorted, and return its path."""
    path = folder.with_suffix(".tar")
    command = ["tar", "--sort=name", "-C", str(folder), *options, "-cf", str(path), "."]
    subprocess.run(command, check=True)
    return str(path)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Three samples: the images of the last two are other names of the first one's."""
    folder = tmp_path / "linked"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.cls").write_text(str(number))
    (folder / "0.jpg").write_bytes(b"the image" * 3000)
    (folder / "1.jpg").hardlink_to(folder / "0.jpg")
    (folder / "2.jpg").symlink_to("0.jpg")
    return folder


def test_links_deliver_the_bytes_they_name(make, linked):
    url = archive(linked)
    with tarfile.open(url) as tar:
        kinds = {member.name: member.type for member in tar}
    assert (kinds["./1.jpg"], kinds["./2.jpg"]) == (tarfile.LNKTYPE, tarfile.SYMTYPE)
    for fields in (None, {"jpg": forebay.Bytes("jpg"), "cls": forebay.Bytes("cls")}):
        # The second epoch reads the cached copy.
        loader = make(url, batch_size=2, fields=fields)
        for _ in range(2):
            rows = [row for batch in loader for row in zip(batch["jpg"], batch["cls"], strict=True)]
            assert rows == [(b"the image" * 3000, str(n).encode()) for n in range(3)]
    with forebay.IndexedDataset(url, fields={"jpg": forebay.Bytes("jpg")}) as samples:
        assert samples[2]["jpg"] == b"the image" * 3000


@pytest.mark.parametrize("fields", [None, {"label": forebay.Int("cls")}], ids=["all", "label"])
def test_link_without_its_bytes_is_corrupt_and_named(make, linked, fields):
    (linked / "1.jpg").unlink()
    (linked / "1.jpg").symlink_to("/elsewhere/1.jpg")
    url = archive(linked)
    with pytest.raises(forebay.Corrupt) as caught:
        list(make(url, fields=fields))
    places = caught.value.places
    assert (places["key"], places["member"]) == ("./1", "./1.jpg")
    assert (places["url"], places["link"]) == (url, "/elsewhere/1.jpg")


def test_tar_of_dangling_links_alone_is_corrupt(make, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").symlink_to(f"/elsewhere/{number}.jpg")
    with pytest.raises(forebay.Corrupt):
        list(make(archive(folder)))
