"""Relative paths mean the folder where the loader was made, whatever the current folder is later.

Each test names shards relative to one folder, and reads them from another.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from conftest import write_manifest
from forebay import DataLoader, IndexedDataset, Stream, WebDataset, WebLoader

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

LABEL = {"label": forebay.Int("cls")}
OPTIONS: dict[str, Any] = {"fields": LABEL, "framework": "numpy", "timeout": 60.0}
ALL = [f"s{number:05}" for number in range(60)]


@pytest.fixture
def leave(
    shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Enter a folder with shards and manifest; the function goes to one without them."""
    home, away = tmp_path / "home", tmp_path / "away"
    (home / "data").mkdir(parents=True)
    away.mkdir()
    names = []
    for shard in shards:
        names.append(str(home / "data" / Path(shard).name))
        shutil.copy(shard, names[-1])
    write_manifest(home / "m.json", [(name, 10) for name in names])
    monkeypatch.chdir(home)

    def leave() -> None:
        monkeypatch.chdir(away)

    yield leave
    # Nothing was written where the program went.
    assert not list(away.iterdir())


def keys(batches: Iterable[dict[str, Any]]) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


LISTED = [f"data/{number:03}.tar" for number in range(6)]
FORMS: dict[str, Any] = {
    "braces": "data/{000..005}.tar",
    "leading braces": "{data,data}/{000..002}.tar",
    "pattern": "data/*.tar",
    "parts": "data/00[0-2].tar::./data/{003..005}.tar",
    "file": "file:data/{000..005}.tar",
    "list": LISTED,
    "files": [f"file:{name}" for name in LISTED],
    "paths": [Path(name) for name in LISTED],
    "dots": "../home/data/{000..005}.tar",
}
TWICE = ALL[:30] * 2


@pytest.mark.parametrize("form", list(FORMS))
def test_loader_and_its_copies_read_the_first_folder(leave: Callable[[], None], form: str) -> None:
    loader = DataLoader(FORMS[form], manifest="m.json", batch_size=5, **OPTIONS)
    sent = pickle.dumps(loader)
    leave()
    expected = TWICE if form == "leading braces" else ALL
    for one in (loader, pickle.loads(sent), pickle.loads(pickle.dumps(loader))):
        with one:
            assert len(one) == 12
            assert keys(one) == expected


def test_pattern_is_expanded_when_the_loader_is_made(leave: Callable[[], None]) -> None:
    loader = DataLoader("data/*.tar", batch_size=5, **OPTIONS)
    os.remove("data/005.tar")
    leave()
    with pickle.loads(pickle.dumps(loader)) as twin:
        assert len(twin._options.urls) == 6
    loader.close()


@pytest.mark.parametrize("form", [*FORMS])
def test_streams_read_the_folder_where_they_were_made(leave: Callable[[], None], form: str) -> None:
    stream = Stream(FORMS[form], manifest=Path("m.json"))
    leave()
    with DataLoader([stream], batch_size=5, **OPTIONS) as loader:
        assert sorted(keys(loader)) == sorted(TWICE if form == "leading braces" else ALL)
    with pickle.loads(pickle.dumps(loader)) as twin:
        assert len(keys(twin)) == 60


def test_stream_of_other_stores_stays_as_it_is(leave: Callable[[], None]) -> None:
    text = "s3://b/{0..1}.tar::{s3,gs}://b/k.tar::pipe:cat x.tar::hf:datasets/o/n/0.tar::{/a,b}.tar"
    stream = Stream(text)
    named = Stream(["https://h/x.tar", "pipe:cat x.tar", "/a.tar", "file:///b.tar"])
    leave()
    assert stream.named() == text
    assert named.named() == ["https://h/x.tar", "pipe:cat x.tar", "/a.tar", "file:///b.tar"]


@pytest.mark.parametrize("form", ["braces", "list"])
def test_indexed_dataset_reads_the_first_folder(leave: Callable[[], None], form: str) -> None:
    dataset = IndexedDataset(FORMS[form], manifest="m.json", **OPTIONS)
    counted = IndexedDataset(FORMS[form], **OPTIONS)
    leave()
    for one in (dataset, counted, pickle.loads(pickle.dumps(dataset))):
        with one:
            assert int(one[-1]["label"]) == 59
            assert len(one) == 60


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_torch_workers_read_the_first_folder(leave: Callable[[], None], context: str) -> None:
    from forebay.torch import IterableDataset

    dataset = IterableDataset("data/{000..005}.tar", batch_size=5, manifest="m.json", timeout=60.0)
    leave()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=context
    )
    assert keys(loader) == ALL


def count(batch: dict[str, Any]) -> int:
    return len(batch["__key__"])


def test_worker_processes_follow_the_loader(leave: Callable[[], None]) -> None:
    with DataLoader(
        LISTED, batch_size=5, transform=count, workers=1, worker_type="process", **OPTIONS
    ) as loader:
        leave()
        assert list(loader) == [5] * 12


def test_commands_keep_the_folder_where_they_run(leave: Callable[[], None]) -> None:
    options = {"allow_pipe": True, **OPTIONS}
    loader = DataLoader("pipe:cat $FOLDER/data/{000..005}.tar", batch_size=5, **options)
    assert loader._options.urls[0] == "pipe:cat $FOLDER/data/000.tar"
    loader.close()
    leave()


# A spawned worker takes seconds to start, so two forms are enough.
CHAINED = [(form, how) for form in FORMS for how in (None, "fork")]


@pytest.mark.parametrize(("form", "workers"), [*CHAINED, ("braces", "spawn"), ("files", "spawn")])
def test_chain_reads_the_first_folder(
    leave: Callable[[], None], form: str, workers: str | None
) -> None:
    home = os.getcwd()
    data = WebDataset(FORMS[form], timeout=60.0)
    stream: Any = data
    if workers is not None:
        options = {"num_workers": 1, "multiprocessing_context": workers}
        stream = WebLoader(data, batch_size=None, **options)
    leave()
    samples = list(stream)
    expected = TWICE if form == "leading braces" else ALL
    assert [sample["__key__"] for sample in samples] == expected
    assert all(sample["__local_path__"].startswith(f"{home}/") for sample in samples)
    assert all(os.path.exists(sample["__local_path__"]) for sample in samples)
    # The URL is as it was named.
    if form == "list":
        assert [sample["__url__"] for sample in samples[::10]] == LISTED


def renamed(source: Iterator[dict[str, str]]) -> Iterator[dict[str, str]]:
    return ({"url": shard["url"].replace("x/", "data/")} for shard in source)


def test_chain_finds_what_its_splitter_names(leave: Callable[[], None]) -> None:
    data = WebDataset("x/{000..005}.tar", timeout=60.0, nodesplitter=renamed)
    twin = pickle.dumps(data)
    leave()
    assert [sample["__key__"] for sample in data] == ALL
    assert [sample["__key__"] for sample in pickle.loads(twin)] == ALL


def test_rewritten_urls_begin_at_the_first_folder(
    leave: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOPEN_REWRITE", "s3://bucket/=data/")
    data = WebDataset("s3://bucket/{000..005}.tar", timeout=60.0)
    leave()
    assert [sample["__key__"] for sample in data] == ALL


def test_states_fit_in_another_folder(leave: Callable[[], None]) -> None:
    loader = DataLoader("data/{000..005}.tar", manifest="m.json", batch_size=5, **OPTIONS)
    data = WebDataset("data/{000..005}.tar", timeout=60.0)
    states = loader.state_dict(), data.state_dict()
    twins = pickle.dumps((loader, data))
    leave()
    loader, data = pickle.loads(twins)
    loader.load_state_dict(states[0])
    data.load_state_dict(states[1])
    loader.close()


def test_trace_and_daemon_are_those_of_the_first_folder(
    leave: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path.cwd()
    monkeypatch.setenv("FOREBAY_TRACE", "t.json")
    monkeypatch.setenv("FOREBAY_CACHE", os.environ["FOREBAY_CACHE"])
    with DataLoader(LISTED, batch_size=5, **OPTIONS) as loader:
        leave()
        assert keys(loader) == ALL
    assert list(home.glob("t*.json"))
    monkeypatch.delenv("FOREBAY_TRACE")
    monkeypatch.chdir(home)
    loader = DataLoader(LISTED, daemon="unix:run/d.sock", **OPTIONS)
    monkeypatch.setenv("FOREBAY_DAEMON", "unix:run/d.sock")
    from_variable = DataLoader(LISTED, **OPTIONS)
    data = WebDataset(LISTED, daemon="unix:run/d.sock")
    sent = pickle.dumps((loader, from_variable, data))
    leave()
    wanted = f"unix:{home}/run/d.sock"
    for one in (loader, from_variable, *pickle.loads(sent)[:2]):
        assert one._options.daemon == wanted
        with pytest.raises(forebay.ForebayError) as caught:
            next(iter(one))
        assert str(home) in str(caught.value)
    assert data._reading.daemon == wanted
