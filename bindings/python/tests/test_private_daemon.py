"""The private daemon belongs to its cache directory, whatever else a job's environment says."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest

import forebay
from forebay._launch import command

FIELDS = {"label": forebay.Int("cls")}


def pid(loader: forebay.DataLoader) -> int:
    """Read a batch, and return the process id of the loader's daemon."""
    next(iter(loader))
    return loader.stats()["daemon_pid"]


def test_jobs_with_other_temp_folders_share_a_daemon(home, make, monkeypatch, tmp_path):
    first = pid(make(fields=FIELDS))
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))
        assert pid(make(fields=FIELDS)) == first
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert pid(make(fields=FIELDS)) == first
    assert home.daemons() == [first]


def test_another_cache_has_another_daemon(home, make, monkeypatch, tmp_path):
    first = pid(make(fields=FIELDS))
    # No socket's address holds this path.
    other = tmp_path / ("long" * 40) / "cache"
    monkeypatch.setenv("FOREBAY_CACHE", str(other))
    second = pid(make(fields=FIELDS))
    assert home.daemons() == sorted({first, second})
    assert (other / "FORMAT").exists()
    assert pid(make(fields=FIELDS)) == second


def test_another_capacity_warns_of_the_one_in_force(home, make, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "forebay")
    first = pid(make(fields=FIELDS))
    assert pid(make(fields=FIELDS)) == first
    assert not caplog.records
    monkeypatch.setenv("FOREBAY_CAPACITY", "512MiB")
    assert pid(make(fields=FIELDS)) == first
    (record,) = caplog.records
    assert record.name == "forebay"
    assert "512.0 MiB" in record.getMessage()
    assert "256.0 MiB" in record.getMessage()


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("capacity", ["lots", "0", "-1GB"])
def test_nonsense_capacity_is_invalid(home, make, monkeypatch, running, capacity):
    if running:
        pid(make(fields=FIELDS))
    monkeypatch.setenv("FOREBAY_CAPACITY", capacity)
    with pytest.raises(forebay.Invalid) as caught:
        pid(make(fields=FIELDS))
    assert caught.value.places["FOREBAY_CAPACITY"] == capacity


@pytest.mark.parametrize("running", [False, True])
def test_cache_that_is_a_file_is_rejected(home, make, monkeypatch, tmp_path, running):
    if running:
        pid(make(fields=FIELDS))
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("FOREBAY_CACHE", str(file))
    with pytest.raises(forebay.ForebayError) as caught:
        pid(make(fields=FIELDS))
    assert str(file) in caught.value.places["directory"]


def test_relative_cache_counts_from_the_callers_folder(home, shards, tmp_path):
    environment = {**os.environ, "FOREBAY_CACHE": "here/cache", "FOREBAY_IDLE": "1"}
    folder = tmp_path / "of the caller"
    folder.mkdir()
    index = [*command(), "index", shards[0], "-o", str(tmp_path / "m.json")]
    subprocess.run(index, cwd=folder, env=environment, check=True)
    assert (folder / "here/cache/FORMAT").exists()
    assert not Path("/here").exists()
