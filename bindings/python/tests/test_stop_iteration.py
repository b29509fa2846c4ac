"""`StopIteration` out of user code: an error of the loop, never the end of its epoch."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import forebay
from forebay import IndexedDataset, WebDataset, WebLoader
from forebay._stop import StoppedInside

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("ended_workers"),
    # torch forks its workers beside other threads, of which Python and JAX warn.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


# The sample at which the functions below stop: the second of the fourth batch.
STOP = 13
KEY = f"s{STOP:05}"

LABEL = {"label": forebay.Int("cls")}


def stop() -> Any:
    """Raise as `next` does at the end of an iterator."""
    return next(iter(()))


def stopping_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return stop() if KEY in list(batch["__key__"]) else batch


def stopping_sample(sample: dict[str, Any]) -> Any:
    return stop() if sample["__key__"] == KEY else sample


def stopping_value(value: Any) -> Any:
    return stop() if value == STOP else value


def stopping_bytes(value: bytes) -> Any:
    return stop() if value == str(STOP).encode() else value


def stopping_text(value: str) -> Any:
    return stop() if value.startswith(f"text {STOP} ") else value


class Unsendable:
    """A result whose pickling stops."""

    def __reduce__(self) -> Any:
        return stop()


def unsendable_batch(batch: dict[str, Any]) -> Any:
    return Unsendable() if KEY in list(batch["__key__"]) else batch


def keys(batches: Iterable[dict[str, Any]]) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def caught(iteration: Iterator[Any]) -> tuple[int, RuntimeError]:
    """Take items until a `RuntimeError` comes; return their number and the error."""
    taken: list[Any] = []
    with pytest.raises(RuntimeError) as raised:
        taken.extend(iteration)
    assert isinstance(raised.value.__cause__, StopIteration)
    return len(taken), raised.value


CODE: dict[str, dict[str, Any]] = {
    "transform": {"fields": LABEL, "transform": stopping_batch},
    "select": {"fields": LABEL, "select": stopping_sample},
    "map": {"fields": {"label": forebay.Int("cls", map=stopping_value)}},
    "ragged": {"fields": {"text": forebay.Text("txt", map=stopping_text, ragged="pad")}},
}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "worker_type": "process"},
}


@pytest.mark.parametrize("workers", list(WORKERS))
@pytest.mark.parametrize("code", list(CODE))
def test_stopping_function_is_an_error_of_the_loop(
    make: Callable[..., Any], shards: list[str], code: str, workers: str
) -> None:
    loader = make(**CODE[code], **WORKERS[workers])
    iteration = iter(loader)
    taken, error = caught(iteration)
    assert taken == STOP // 4
    assert error.places["url"] == shards[1]
    # The position is still before the batch, and the epoch goes on.
    assert loader.state_dict()["samples"] == 12
    assert caught(iteration)[0] == 0
    if workers == "processes":
        cause = error.__cause__
        assert cause is not None
        assert "in stop" in str(cause.__cause__)


def test_result_that_stops_on_its_way_is_an_error(make: Callable[..., Any]) -> None:
    loader = make(fields=LABEL, transform=unsendable_batch, **WORKERS["processes"])
    assert caught(iter(loader))[0] == 3


@pytest.mark.parametrize("workers", list(WORKERS))
def test_stopping_on_error_is_an_error_of_the_loop(make: Callable[..., Any], workers: str) -> None:
    seen = []

    def on_error(error: forebay.ForebayError) -> Any:
        seen.append(error)
        return stop()

    options = {"fields": {"nope": forebay.Int("nope")}, "on_error": on_error}
    if workers == "processes":
        options["transform"] = stopping_batch
    assert caught(iter(make(**options, **WORKERS[workers])))[0] == 0
    assert len(seen) == 1


def test_stopped_inside_survives_pickle() -> None:
    error = StoppedInside("text", StopIteration(7))
    error.places = {"key": "k"}
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.places) == ("text", {"key": "k"})
    assert isinstance(twin.__cause__, StopIteration)
    assert twin.__cause__.value == 7


def raising_index_error(value: int) -> int:
    if value == STOP:
        raise IndexError(value)
    return value


def test_indexed_samples_end_by_their_number_alone(shards: list[str], manifest: str) -> None:
    options: dict[str, Any] = {"manifest": manifest, "framework": "numpy", "timeout": 60.0}
    with IndexedDataset(shards, fields=LABEL, **options) as dataset:
        assert [int(sample["label"]) for sample in dataset] == list(range(60))
    fields = {"label": forebay.Int("cls", map=stopping_value)}
    with IndexedDataset(shards, fields=fields, **options) as dataset:
        assert caught(iter(dataset))[0] == STOP
        with pytest.raises(RuntimeError):
            dataset[STOP]
        with pytest.raises(RuntimeError):
            dataset.__getitems__([1, STOP])
        loader = torch.utils.data.DataLoader(dataset, batch_size=None)
        assert caught(iter(loader))[0] == STOP
    # Python takes an IndexError of `[]` for the end, where there is no `__iter__`.
    fields = {"label": forebay.Int("cls", map=raising_index_error)}
    with IndexedDataset(shards, fields=fields, **options) as dataset, pytest.raises(IndexError):
        list(dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_stopping_function_is_an_error_under_torch(
    shards: list[str], manifest: str, workers: int
) -> None:
    from forebay.torch import IterableDataset

    dataset = IterableDataset(
        shards, batch_size=4, manifest=manifest, timeout=60.0, **CODE["transform"]
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert caught(iter(loader))[0] == 3


# The chain of webdataset


def generator(source: Iterator[Any]) -> Iterator[Any]:
    for sample in source:
        yield stopping_sample(sample)


def mapped(source: Iterator[Any]) -> Iterator[Any]:
    return map(stopping_sample, source)


def filtered(source: Iterator[Any]) -> Iterator[Any]:
    return filter(stopping_sample, source)


def taking(source: Iterator[Any]) -> Iterator[Any]:
    return itertools.takewhile(stopping_sample, source)


class Running:
    """A stage with `run`."""

    def run(self, source: Iterator[Any]) -> Iterator[Any]:
        return map(stopping_sample, source)


class Dice(random.Random):
    """A source of draws that stops."""

    def random(self) -> float:
        return float(stop())


def stopping_handler(error: Exception) -> bool:
    return bool(stop())


def failing(sample: Any) -> Any:
    raise LookupError


def collate(samples: list[Any]) -> Any:
    return [stopping_sample(sample) for sample in samples]


CHAINS: dict[str, Callable[[Any], Any]] = {
    "map": lambda data: data.map(stopping_sample),
    "map_dict": lambda data: data.map_dict(cls=stopping_bytes),
    "map_tuple": lambda data: data.to_tuple("cls").map_tuple(stopping_bytes),
    "select": lambda data: data.select(stopping_sample),
    "xdecode": lambda data: data.xdecode(
        cls=lambda file: stopping_bytes(file.read()), must_decode=False
    ),
    "batched": lambda data: data.batched(1, collation_fn=collate),
    "generator": lambda data: data.compose(generator),
    "mapped": lambda data: data.compose(mapped),
    "filtered": lambda data: data.compose(filtered),
    "taking": lambda data: data.then(taking),
    "running": lambda data: data.compose(Running()),
}


@pytest.mark.parametrize("workers", [None, 0, 1])
@pytest.mark.parametrize("chain", list(CHAINS))
def test_stopping_stage_is_an_error_of_the_loop(
    shards: list[str], chain: str, workers: int | None
) -> None:
    stream = CHAINS[chain](WebDataset(shards, timeout=60.0))
    if workers is not None:
        stream = WebLoader(stream, batch_size=None, num_workers=workers)
    assert caught(iter(stream))[0] == STOP


def test_stopping_part_of_a_chain_is_an_error(shards: list[str]) -> None:
    data = WebDataset(shards, timeout=60.0)
    for stream in (
        data.map(failing, handler=stopping_handler),
        data.shuffle(5, rng=Dice()),
        WebDataset(shards, timeout=60.0, nodesplitter=lambda source: map(failing_url, source)),
        WebDataset(shards, timeout=60.0, workersplitter=lambda source: map(failing_url, source)),
        WebDataset([*shards, "/nowhere.tar"], timeout=60.0, handler=stopping_handler),
    ):
        caught(iter(stream))
    for urls in (map(stopping_name, shards), (stopping_name(url) for url in shards)):
        with pytest.raises(RuntimeError):
            WebDataset(urls)


def failing_url(shard: dict[str, str]) -> dict[str, str]:
    return stop() if shard["url"].endswith("3.tar") else shard


def stopping_name(url: str) -> str:
    return str(stop()) if url.endswith("3.tar") else url


def test_list_of_shards_that_stops_is_an_error(shards: list[str]) -> None:
    for urls in (map(stopping_name, shards), (stopping_name(url) for url in shards)):
        with pytest.raises(RuntimeError):
            forebay.DataLoader(urls)


def ending(source: Iterator[Any]) -> Iterator[Any]:
    return itertools.islice(source, STOP)


class Few:
    """An iterator of one's own, which ends as iterators do."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source, self._left = source, STOP

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._left -= 1
        if self._left < 0:
            raise StopIteration
        return next(self._source)


@pytest.mark.parametrize(
    "stage",
    [ending, Few, lambda source: map(dict, Few(source)), lambda source: list(ending(source))],
)
def test_stage_may_end_the_stream_by_itself(shards: list[str], stage: Any) -> None:
    assert len(list(WebDataset(shards, timeout=60.0).compose(stage))) == STOP


def stopping_collate(batch: Any) -> Any:
    return stop()


def stopping_init(worker: int) -> None:
    stop()


@pytest.mark.parametrize("workers", [0, 1])
def test_stopping_function_of_webloader_is_an_error(shards: list[str], workers: int) -> None:
    data = WebDataset(shards, timeout=60.0)
    loader = WebLoader(data, batch_size=4, num_workers=workers, collate_fn=stopping_collate)
    assert caught(iter(loader))[0] == 0
    loader = WebLoader(data, 4, False, None, None, workers, stopping_collate)
    assert caught(iter(loader))[0] == 0
    if workers:
        loader = WebLoader(data, batch_size=None, num_workers=1, worker_init_fn=stopping_init)
        assert caught(iter(loader))[0] == 0
