"""Threads that share an iterator: each item goes to exactly one of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import forebay
from forebay import IndexedDataset, WebDataset, WebLoader
from test_processes import in_a_fork

pytestmark = [
    # torch forks its workers beside other threads, of which Python and JAX warn.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

LABEL = {"label": forebay.Int("cls")}
ALL = [f"s{number:05}" for number in range(60)]

# More than the batches in flight, and than the cores of small machines.
THREADS = 8
# Seconds between two looks at what tells nobody.
LOOK = 0.01


def shared(iteration: Iterator[Any]) -> list[Any]:
    """Take all items in several threads at once."""
    begin = threading.Barrier(THREADS)

    def take() -> list[Any]:
        begin.wait()
        return list(iteration)

    with ThreadPoolExecutor(THREADS) as pool:
        parts = [pool.submit(take) for _ in range(THREADS)]
        return [item for part in parts for item in part.result()]


def same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 3, "transform": same},
        {"workers": 2, "worker_type": "process", "transform": same},
        {"shuffle": True, "pad_last": True},
        {"split": "dynamic"},
    ],
)
def test_each_batch_goes_to_one_thread(make: Callable[..., Any], options: dict[str, Any]) -> None:
    loader = make(fields=LABEL, batch_size=3, **options)
    for epoch in range(3):
        batches = shared(iter(loader))
        assert sorted(key for batch in batches for key in batch["__key__"]) == ALL
        assert loader.epoch == epoch + 1
    assert loader.stats()["batches"] >= 60
    assert loader.stats()["samples"] == 180


def test_skipped_errors_are_counted_once_by_threads(make: Callable[..., Any]) -> None:
    judged = []

    def on_error(error: forebay.ForebayError) -> Any:
        judged.append(error.places["key"])
        return "skip"

    loader = make(fields={"nope": forebay.Int("nope")}, batch_size=3, on_error=on_error)
    shared(iter(loader))
    assert sorted(judged) == ALL
    assert loader.stats()["errors"] == 60


def test_threads_that_begin_iterations_lose_no_sample(make: Callable[..., Any]) -> None:
    loader = make(fields=LABEL, batch_size=3)
    begin = threading.Barrier(THREADS)

    def play() -> int:
        begin.wait()
        replaced = 0
        for _ in range(5):
            try:
                list(iter(loader))
            except forebay.Invalid:
                # Another thread began an iteration, which ends this one.
                replaced += 1
        return replaced

    with ThreadPoolExecutor(THREADS) as pool:
        for part in [pool.submit(play) for _ in range(THREADS)]:
            part.result()
    assert sorted(key for batch in loader for key in batch["__key__"]) == ALL


def test_state_can_be_saved_while_threads_take_batches(make: Callable[..., Any]) -> None:
    loader = make(fields=LABEL, batch_size=3)
    iteration = iter(loader)
    over = threading.Event()
    states = []

    def save() -> None:
        while not over.is_set():
            states.append(loader.state_dict()["samples"])

    saver = threading.Thread(target=save)
    saver.start()
    shared(iteration)
    over.set()
    saver.join()
    assert set(states) <= set(range(0, 61, 3))


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_each_sample_of_a_chain_goes_to_one_thread(shards: list[str], workers: int | None) -> None:
    stream: Any = WebDataset(shards, timeout=60.0).shuffle(10).map(same)
    if workers is not None:
        stream = WebLoader(stream, batch_size=None, num_workers=workers)
    for _ in range(2):
        assert sorted(sample["__key__"] for sample in shared(iter(stream))) == ALL


def test_threads_that_begin_chains_play_other_epochs(shards: list[str]) -> None:
    stream = WebDataset(shards, timeout=60.0)
    begin = threading.Barrier(THREADS)

    def start() -> None:
        begin.wait()
        for _ in range(50):
            iter(stream)

    with ThreadPoolExecutor(THREADS) as pool:
        for part in [pool.submit(start) for _ in range(THREADS)]:
            part.result()
    assert stream.epoch == 50 * THREADS


def test_indexed_samples_go_to_one_thread(shards: list[str], manifest: str) -> None:
    options: dict[str, Any] = {"manifest": manifest, "framework": "numpy", "timeout": 60.0}
    with IndexedDataset(shards, fields=LABEL, **options) as dataset:
        assert sorted(sample["__key__"] for sample in shared(iter(dataset))) == ALL


@pytest.mark.parametrize("workers", [0, 2])
def test_function_that_takes_batches_is_rejected(make: Callable[..., Any], workers: int) -> None:
    def taking(batch: Any) -> Any:
        return next(iteration)

    loader = make(fields=LABEL, transform=taking, workers=workers)
    iteration = iter(loader)
    with pytest.raises(forebay.Invalid):
        next(iteration)
    # Another loader's batches are no trouble.
    other = iter(make(fields=LABEL))
    loader = make(fields=LABEL, transform=lambda batch: next(other), workers=workers)
    assert len(list(loader)) == 15


@pytest.mark.parametrize("change", ["set_epoch", "load_state_dict", "iter"])
def test_change_by_a_function_in_a_worker_is_rejected(
    make: Callable[..., Any], change: str
) -> None:
    """The loop waits for the function, and the function would wait for the loop: for ever."""

    def changing(batch: Any) -> Any:
        if change == "iter":
            return iter(loader)
        return getattr(loader, change)(3 if change == "set_epoch" else state)

    loader = make(fields=LABEL, transform=changing, workers=1)
    state = loader.state_dict()
    with pytest.raises(forebay.Invalid, match="in the loop alone"):
        next(iter(loader))


def test_batches_of_an_abandoned_iteration_are_not_made(make: Callable[..., Any]) -> None:
    made: list[str] = []
    second_begun, go = threading.Event(), threading.Event()

    def held(batch: Any) -> Any:
        made.append(batch["__key__"][0])
        # The second one may come from the daemon later than the first is made: it is in hand only
        # if it came while somebody waited for the first.
        while len(made) == 1 and len(abandoned._pending) < 2:
            time.sleep(LOOK)
        if len(made) == 2:
            second_begun.set()
            go.wait()
        return batch

    loader = make(fields=LABEL, transform=held, workers=1, prefetch=4)
    abandoned = iter(loader)
    next(abandoned)
    second_begun.wait()
    current = iter(loader)
    go.set()
    next(current)
    # Behind the batch that the worker had in hand comes the first one of the new iteration.
    assert made[2] == made[0]


class Held:
    """A function that waits in one thread until it is told to go on."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.process = os.getpid()

    def __call__(self, batch: Any) -> Any:
        if os.getpid() == self.process:
            self.entered.set()
            self.go.wait()
        return batch


@pytest.mark.parametrize("kind", ["loader", "chain"])
def test_forked_child_takes_no_turn_of_the_parent(
    make: Callable[..., Any], shards: list[str], kind: str
) -> None:
    held = Held()
    stream: Any
    if kind == "loader":
        stream = make(fields=LABEL, batch_size=3, transform=held)
    else:
        stream = WebDataset(shards, timeout=60.0).map(held)
    iteration = iter(stream)
    taker = threading.Thread(target=next, args=(iteration,))
    taker.start()
    held.entered.wait()

    def child() -> None:
        # The parent's thread, which holds the turn, does not exist here.
        assert len(list(stream)) == (20 if kind == "loader" else 60)

    in_a_fork(child)
    held.go.set()
    taker.join()


def test_closing_ends_the_waits_of_all_threads(make: Callable[..., Any]) -> None:
    held = Held()
    loader = make(fields=LABEL, batch_size=3, transform=held)
    iteration = iter(loader)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [pool.submit(next, iteration) for _ in range(THREADS)]
        held.entered.wait()
        loader.close()
        held.go.set()
        outcomes = [part.exception() for part in parts]
    assert sum(outcome is None for outcome in outcomes) <= 1
    assert all(isinstance(outcome, (type(None), forebay.Closed)) for outcome in outcomes)
