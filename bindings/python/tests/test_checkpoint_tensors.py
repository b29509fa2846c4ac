"""Tensors restored straight into their memory: any kind torch saves, whole or in part."""

from __future__ import annotations

import io
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from forebay import checkpoint
from forebay.checkpoint import _distributed

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

GRID = torch.arange(6 * 1_000_000, dtype=torch.float32).reshape(1000, 6000)
# Tensors whose bytes lie in a file in more than one way.
KINDS = {
    "matrix": GRID,
    "transposed": GRID.t(),
    "columns": GRID[:, 100:200],
    "part": GRID[500:501].reshape(-1)[7:19],
    "half": GRID[0].to(torch.bfloat16),
    "flags": GRID[0] % 3 == 0,
    "complex": torch.complex(GRID[0], GRID[1]),
    "conjugate": torch.complex(GRID[0], GRID[1]).conj(),
    "negative": torch.complex(GRID[0], GRID[1]).conj().imag,
    "scalar": torch.tensor(3, dtype=torch.int64),
    "empty": torch.zeros(0, 5),
    "expanded": torch.tensor([1.5]).expand(100, 3),
    "parameter": torch.nn.Parameter(GRID[2].clone()),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a checkpoint of `KINDS` by plain torch."""
    path = str(tmp_path / "step-1")
    dcp.save(dict(KINDS), checkpoint_id=path)
    return path


class Planner:
    """Places for the items of a plan, by the name of their tensors."""

    def __init__(self, places: dict[str, torch.Tensor]) -> None:
        self.places = places
        self.done: list[str] = []

    def resolve_tensor(self, item: ReadItem) -> torch.Tensor:
        return self.places[item.storage_index.fqn]

    def commit_tensor(self, item: ReadItem, tensor: torch.Tensor) -> None:
        self.done.append(item.storage_index.fqn)


def read(url: str, name: str, place: torch.Tensor, first: tuple[int, ...]) -> None:
    """Restore the part of a tensor that begins at `first` and has the shape of its place."""
    reader = checkpoint.Reader(url)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    (index,) = (index for index in metadata.storage_data if index.fqn == name)
    none = torch.Size([0] * place.dim())
    item = ReadItem(
        LoadItemType.TENSOR, MetadataIndex(name), none, index, torch.Size(first), place.size()
    )
    planner: Any = Planner({name: place})
    reader.read_data(LoadPlan([item]), planner).wait()
    assert planner.done == [name]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if shape, dtype and values are equal."""
    return one.dtype == other.dtype and torch.equal(one.detach(), other.detach())


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return names of the tensors that torch did not have to read."""
    names: list[str] = []
    own = _distributed.restore

    def restore(stored: Any, view: Any, item: ReadItem, offset: int, planner: Any) -> bool:
        was_read = own(stored, view, item, offset, planner)
        if was_read:
            names.append(item.storage_index.fqn)
        return was_read

    monkeypatch.setattr(_distributed, "restore", restore)
    return names


def test_every_kind_of_tensor_is_restored(url, straight):
    found = {name: torch.full_like(value, 1) for name, value in KINDS.items()}
    found["expanded"] = torch.zeros(100, 3)
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    for name, wanted in KINDS.items():
        assert same(found[name], wanted), name
    assert set(straight) >= KINDS.keys() - {"conjugate", "negative", "empty"}


def test_places_need_not_be_contiguous_or_of_the_same_type(url, straight):
    across = torch.zeros(6000, 1000).t()
    read(url, "matrix", across, (0, 0))
    assert same(across, GRID)
    wider = torch.zeros(1000, 6000, dtype=torch.float64)
    read(url, "matrix", wider, (0, 0))
    assert same(wider, GRID.double())
    assert straight == ["matrix"] * 2


@pytest.mark.parametrize(
    ("name", "first", "shape"),
    [
        ("matrix", (250, 0), (125, 6000)),
        ("matrix", (999, 0), (1, 6000)),
        ("matrix", (0, 1500), (1000, 1500)),
        ("matrix", (3, 5), (7, 11)),
        ("matrix", (1000, 0), (0, 6000)),
        ("transposed", (5, 3), (11, 7)),
        ("columns", (990, 90), (10, 10)),
        ("expanded", (40, 1), (20, 2)),
        ("half", (17,), (1000,)),
    ],
)
def test_parts_are_restored(url, straight, name, first, shape):
    place = torch.zeros(shape, dtype=KINDS[name].dtype)
    read(url, name, place, first)
    window = tuple(slice(at, at + size) for at, size in zip(first, shape, strict=True))
    assert same(place, KINDS[name][window].contiguous())
    assert straight == [name]


def test_place_of_another_shape_is_rejected(url, monkeypatch):
    monkeypatch.setattr(Planner, "resolve_tensor", lambda self, item: torch.zeros(2, 3))
    with pytest.raises(AssertionError, match="shape"):
        read(url, "matrix", torch.zeros(3, 2), (0, 0))


def rewritten(folder: Path, name: str, order: bytes, swap: Any) -> None:
    """Give an archive within a checkpoint another byte order."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (index,) = (index for index in metadata.storage_data if index.fqn == name)
    stored = metadata.storage_data[index]
    content = (folder / stored.relative_path).read_bytes()[stored.offset :][: stored.length]
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(changed, "w") as new:
        for record in old.namelist():
            of = old.read(record)
            if record.endswith("/byteorder"):
                of = order
            elif record.endswith("/data/0"):
                of = swap(of)
            new.writestr(record, of)
    (folder / "changed").write_bytes(changed.getvalue())
    metadata.storage_data[index] = replace(
        stored, relative_path="changed", offset=0, length=len(changed.getvalue())
    )
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_archive_of_another_byte_order_is_left_to_torch(url, straight):
    wanted = KINDS["part"]
    rewritten(
        Path(url),
        "part",
        b"big",
        lambda of: np.frombuffer(of, np.float32).byteswap().tobytes(),
    )
    place = torch.zeros_like(wanted)
    read(url, "part", place, (0,))
    assert same(place, wanted)
    assert straight == []
