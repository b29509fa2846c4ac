"""`forebay.WebDataset` and `WebLoader`: workers, ranks, epochs, seeds, states and errors.

The first tests run webdataset as well, and compare the samples.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from torch.utils.data import DataLoader, IterableDataset

import forebay
from conftest import END_BEFORE_GLOO, Home, node_daemon, wait_gone, write_shard
from forebay import BadSample, Invalid, NotFound, WebDataset, WebLoader
from forebay import webdataset as ours
from forebay.webdataset import samples as samples_module
from test_stores import Store, store  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures("closed_files"),
    # webdataset leaves files open until garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    # torch forks its workers beside other threads, of which Python and JAX warn.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
]


SHARDS = 6
SAMPLES = 5
KEYS = [f"s{number:02}" for number in range(SHARDS * SAMPLES)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Six shards of five samples; sample n holds the number n."""
    folder = tmp_path_factory.mktemp("six")

    def sample(number: int) -> tuple[str, dict[str, bytes]]:
        return KEYS[number], {"cls": str(number).encode(), "txt": b"t"}

    return [
        write_shard(
            folder / f"{shard}.tar", [sample(shard * SAMPLES + row) for row in range(SAMPLES)]
        )
        for shard in range(SHARDS)
    ]


def keys(samples: Iterable[Any]) -> list[str]:
    return [sample["__key__"] for sample in samples]


def key_of(sample: Any) -> Any:
    """Return a sample's key; workers need a function that can be pickled."""
    return sample["__key__"]


def loaded(dataset: Any, workers: int, **options: Any) -> list[Any]:
    return list(DataLoader(dataset, batch_size=None, num_workers=workers, **options))


# Comparison with webdataset


def test_arguments_and_methods_match_webdataset(urls: list[str]) -> None:
    # Forebay has all arguments of webdataset in the same order, and all methods.
    import inspect

    theirs = list(inspect.signature(webdataset.WebDataset).parameters)
    assert list(inspect.signature(WebDataset).parameters)[: len(theirs)] == theirs
    fluent = {name for name in dir(webdataset.compat.FluidInterface) if not name.startswith("_")}
    fluent |= {"compose", "with_epoch", "with_length", "repeat"}
    assert fluent <= set(dir(WebDataset))
    assert isinstance(WebDataset(urls), IterableDataset)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_ranks_and_workers_read_the_samples_of_webdataset(
    workers: int, rank: int, world: int, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    found = [
        loaded(
            library.WebDataset(urls, shardshuffle=False, nodesplitter=splitter.split_by_node).map(
                key_of
            ),
            workers,
        )
        for library in (ours, webdataset)
        for splitter in (ours, webdataset)
    ]
    assert found[0]
    assert found == [found[0]] * 4


def test_ranks_share_the_shards(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    read = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        read += loaded(WebDataset(urls, nodesplitter=ours.split_by_node).map(key_of), 0)
    assert sorted(read) == KEYS


def test_several_ranks_need_a_splitter(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="nodesplitter"):
        list(webdataset.WebDataset(urls, shardshuffle=False))
    with pytest.raises(Invalid, match=r"nodesplitter=forebay\.webdataset\.split_by_node"):
        list(WebDataset(urls))
    assert keys(WebDataset(urls, nodesplitter=None)) == KEYS


def test_worker_number_comes_from_the_environment(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "3")
    theirs = keys(webdataset.WebDataset(urls, shardshuffle=False))
    assert keys(WebDataset(urls)) == theirs == KEYS[5:10] + KEYS[20:25]
    monkeypatch.setenv("WORKER", "3")
    with pytest.raises(Invalid, match="count from 0"):
        list(WebDataset(urls))


def test_a_worker_without_samples_is_an_error(urls: list[str]) -> None:
    for library, error in ((webdataset, ValueError), (ours, Invalid)):
        with pytest.raises(error, match="empty_check=False"):
            loaded(library.WebDataset(urls[:1], shardshuffle=False), 2)
    assert len(loaded(WebDataset(urls[:1], empty_check=False), 2)) == SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
def test_webloader_continues_the_chain_of_steps(workers: int, urls: list[str]) -> None:
    def batches(library: Any) -> list[Any]:
        dataset = library.WebDataset(urls, shardshuffle=False).to_tuple("cls __key__").batched(4)
        loader = library.WebLoader(dataset, batch_size=None, num_workers=workers)
        chain = loader.unbatched().map_tuple(int).batched(7, partial=False).with_epoch(3)
        return [(list(numbers), list(names)) for numbers, names in chain]

    found = batches(ours)
    assert len(found) == 3
    assert found == batches(webdataset)


# Workers of other kinds


def test_a_spawned_worker_opens_its_own_session(urls: list[str]) -> None:
    dataset = WebDataset(urls).map(key_of)
    assert next(iter(dataset)) == KEYS[0]
    assert sorted(loaded(dataset, 2, multiprocessing_context="spawn")) == KEYS


def test_forked_workers_do_not_disturb_a_running_iteration(urls: list[str]) -> None:
    dataset = WebDataset(urls).map(key_of)
    begun = iter(dataset)
    assert [next(begun) for _ in range(3)] == KEYS[:3]
    assert sorted(loaded(dataset, 2)) == KEYS
    assert list(begun) == KEYS[3:]


RANKS = """
import sys, torch
import torch.distributed as distributed
from torch.utils.data import DataLoader
from forebay import webdataset as wds

rank, store, urls = int(sys.argv[1]), sys.argv[2], sys.argv[3:]

if __name__ == "__main__":
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    dataset = wds.WebDataset(urls, nodesplitter=wds.split_by_node).to_tuple("__key__")
    spawned = DataLoader(dataset, None, num_workers=1, multiprocessing_context="spawn")
    print(*(key for key, in spawned))
    distributed.destroy_process_group()
"""


def test_spawned_workers_know_the_rank_of_a_process_group(urls: list[str], tmp_path: Path) -> None:
    # The environment names no rank, and spawned workers have no process group.
    script = tmp_path / "rank.py"
    script.write_text(RANKS + f"    {END_BEFORE_GLOO}")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store"), *urls],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate()[0].split() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert said[0] == [key for key in KEYS if int(key[1:]) // SAMPLES % 2 == 0]
    assert sorted(said[0] + said[1]) == KEYS


def test_pickled_data_set_reads_the_same_samples(urls: list[str]) -> None:
    dataset = WebDataset(urls, shardshuffle=9).shuffle(8).map(key_of).with_epoch(12)
    twin = pickle.loads(pickle.dumps(dataset))
    assert list(twin) == list(dataset)


def test_killed_daemon_is_replaced_without_sample_loss(home: Home, tmp_path: Path) -> None:
    samples = [(f"d{number:04}", {"bin": b"x" * 5_000}) for number in range(900)]
    dataset = WebDataset(write_shard(tmp_path / "d.tar", samples))
    read = []
    for sample in dataset:
        read.append(sample["__key__"])
        if len(read) in (100, 333):
            (pid,) = home.daemons()
            os.kill(pid, signal.SIGKILL)
            assert wait_gone(pid)
    assert read == [key for key, _ in samples]


@pytest.fixture
def small_daemon(tmp_path: Path) -> Iterator[str]:
    """Address of a daemon with little memory for batches."""
    address, cache = tmp_path / "forebayd.sock", tmp_path / "cache-of-it"
    cache.mkdir()
    config = tmp_path / "forebay.toml"
    # The daemon's least memory leaves 48 MiB for batches.
    config.write_text(
        f'[daemon]\nsocket = "{address}"\nmemory = "256MiB"\n'
        f'[[tier]]\nname = "disk"\npath = "{cache}"\ncapacity = "1GiB"\n'
        f'[[source]]\nmatch = "{tmp_path}/"\n'
    )
    with node_daemon(config):
        yield f"unix:{address}"


def test_samples_too_large_for_a_batch_are_all_read(small_daemon: str, tmp_path: Path) -> None:
    samples = [(f"v{number:02}", {"bin": bytes([number]) * 4_000_000}) for number in range(20)]
    dataset = WebDataset(write_shard(tmp_path / "v.tar", samples), daemon=small_daemon)
    read = [(sample["__key__"], {"bin": sample["bin"]}) for sample in dataset]
    assert read == samples


@pytest.mark.parametrize("form", ["s3://bucket/d/{}.tar", "{url}/d/{}.tar?signature=secret"])
def test_store_shards_are_read_and_missing_ones_reported(form: str, store: Store) -> None:  # noqa: F811
    urls = [form.format(name, url=store.url) for name in (2, "not", 0, "nor", "neither", 1)]
    heard: list[Exception] = []

    def handler(error: Exception) -> bool:
        heard.append(error)
        return True

    dataset = WebDataset(urls, handler)
    assert [(one["__url__"], one["cls"]) for one in dataset] == [
        (urls[0], b"2"),
        (urls[2], b"0"),
        (urls[5], b"1"),
    ]
    assert [type(error) for error in heard] == [NotFound] * 3
    assert "__local_path__" not in next(iter(WebDataset(urls[:1])))


@pytest.mark.parametrize("missing", [None, 0, 2, 5])
def test_long_shard_list_is_read_in_parts(
    missing: int | None, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "_SHARDS", 3)
    urls = [url + ".not" * (at == missing) for at, url in enumerate(urls)]
    read = keys(WebDataset(urls, ours.ignore_and_continue))
    assert read == [key for at, key in enumerate(KEYS) if at // SAMPLES != missing]
    stopped = keys(WebDataset(urls, ours.ignore_and_stop, empty_check=False))
    assert stopped == (KEYS if missing is None else KEYS[: missing * SAMPLES])


@pytest.mark.parametrize("has_torch", [True, False])
def test_torch_is_imported_only_on_demand(has_torch: bool, urls: list[str]) -> None:
    script = f"""
import sys
class Without:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ImportError("not installed")
if not {has_torch}:
    sys.meta_path.insert(0, Without())
import forebay
assert "torch" not in sys.modules
dataset = forebay.WebDataset({urls[0]!r})
assert len(list(dataset)) == {SAMPLES}
if {has_torch}:
    from torch.utils.data import IterableDataset
    assert isinstance(dataset, IterableDataset)
else:
    try:
        forebay.WebLoader(dataset)
    except forebay.Invalid as error:
        assert "install it" in str(error)
    else:
        sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ)


def test_unknown_attribute_of_the_package_is_an_error() -> None:
    with pytest.raises(AttributeError, match="WebPage"):
        forebay.WebPage  # noqa: B018


# Order


def test_every_epoch_has_its_own_order(urls: list[str]) -> None:
    def read_epochs() -> list[list[str]]:
        dataset = WebDataset(urls, shardshuffle=SHARDS, seed=4).shuffle(10)
        return [keys(dataset) for _ in range(3)]

    epochs = read_epochs()
    assert [sorted(epoch) for epoch in epochs] == [KEYS] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert read_epochs() == epochs
    dataset = WebDataset(urls, shardshuffle=SHARDS, seed=4).shuffle(10)
    dataset.set_epoch(2)
    assert keys(dataset) == epochs[2]
    assert dataset.epoch == 3
    other = WebDataset(urls, shardshuffle=SHARDS, seed=5).shuffle(10)
    assert keys(other) != epochs[0]


def test_repetitions_within_an_epoch_differ(urls: list[str]) -> None:
    twice = keys(WebDataset(urls, shardshuffle=SHARDS).repeat(2))
    first, second = twice[: len(KEYS)], twice[len(KEYS) :]
    assert sorted(first) == sorted(second) == KEYS
    assert first != second
    endless = iter(WebDataset(urls, repeat=True))
    assert keys(next(endless) for _ in range(2 * len(KEYS))) == KEYS * 2


@pytest.mark.parametrize(
    ("number_variable", "size_variable", "splitter"),
    [("RANK", "WORLD_SIZE", "nodesplitter"), ("WORKER", "NUM_WORKERS", "workersplitter")],
)
def test_ranks_and_workers_shuffle_the_same_shards_differently(
    number_variable: str,
    size_variable: str,
    splitter: str,
    urls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(size_variable, "3")
    orders = set()
    for number in range(3):
        monkeypatch.setenv(number_variable, str(number))
        orders.add(tuple(keys(WebDataset(urls, **{splitter: None}).shuffle(20))))
    assert len(orders) == 3


def test_shuffle_takes_its_own_seed_or_generator(urls: list[str]) -> None:
    import random

    by_seed = [keys(WebDataset(urls, seed=seed).shuffle(9, seed=1)) for seed in (1, 2)]
    assert by_seed[0] == by_seed[1] != KEYS
    by_draws = [keys(WebDataset(urls).shuffle(9, rng=random.Random(1))) for _ in range(2)]
    assert by_draws[0] == by_draws[1] != by_seed[0]
    with pytest.raises(Invalid, match="exclude each other"):
        WebDataset(urls).shuffle(9, rng=random.Random(1), seed=1)


def epochs_of(loader: Any) -> list[tuple[str, ...]]:
    return [tuple(loader) for _ in range(3)]


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_read_a_new_epoch_each_time(persistent: bool, urls: list[str]) -> None:
    def read_epochs(loading: Any, seed: int, **options: Any) -> list[tuple[str, ...]]:
        torch.manual_seed(seed)
        dataset = WebDataset(urls, shardshuffle=SHARDS).shuffle(10).map(key_of)
        options |= {"num_workers": 2, "persistent_workers": persistent}
        loader = loading(dataset, batch_size=None, **options)
        return epochs_of(loader)

    # A WebLoader sends the epoch to its workers; torch's DataLoader sends only a new seed.
    assert read_epochs(WebLoader, 1) == read_epochs(WebLoader, 2)
    assert read_epochs(DataLoader, 1) == read_epochs(DataLoader, 1)
    for epochs in (read_epochs(WebLoader, 1), read_epochs(DataLoader, 1)):
        assert [sorted(epoch) for epoch in epochs] == [KEYS] * 3
        assert len(set(epochs)) == 3


def test_set_epoch_reaches_workers(urls: list[str]) -> None:
    def loader(loading: Any) -> Any:
        dataset = WebDataset(urls, shardshuffle=SHARDS).map(key_of)
        return loading(dataset, batch_size=None, num_workers=2)

    epochs = epochs_of(loader(WebLoader))
    mine, torch_loader = loader(WebLoader), loader(DataLoader)
    mine.set_epoch(2)
    torch_loader.dataset.set_epoch(2)
    assert tuple(mine) == tuple(torch_loader) == epochs[2]


def test_resampled_shards_depend_on_seed_and_worker(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(count: int = 4 * len(KEYS), **options: Any) -> list[str]:
        return keys(WebDataset(urls, resampled=True, **options).with_epoch(count))

    drawn = draw()
    assert len(drawn) == 4 * len(KEYS)
    assert drawn == draw() == draw(mode="resampled") == draw(shardshuffle=5)
    assert drawn != draw(seed=1)
    firsts = drawn[::SAMPLES]
    assert set(firsts) == set(KEYS[::SAMPLES])
    assert max(firsts.count(key) for key in firsts) > 4, "shards were drawn without replacement"
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    assert draw(2 * len(drawn)) != drawn


def test_missing_resampled_shard_is_reported_each_time(urls: list[str]) -> None:
    heard = []

    def handler(error: Exception) -> bool:
        heard.append(type(error))
        return len(heard) < 5

    missing = [*urls[:2], urls[0] + ".not"]
    drawn = keys(WebDataset(missing, handler, resampled=True))
    assert heard == [NotFound] * 5
    assert set(drawn) <= set(KEYS[:10])
    assert [drawn[at : at + SAMPLES] for at in range(0, len(drawn), SAMPLES)] == [
        KEYS[int(key[1:]) : int(key[1:]) + SAMPLES] for key in drawn[::SAMPLES]
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_with_epoch_counts_the_samples_of_all_workers(workers: int, urls: list[str]) -> None:
    # In webdataset the length holds for each worker.
    for length in (1, 2, 41):
        assert len(loaded(WebDataset(urls).with_epoch(length), workers)) == length


def test_chained_steps_leave_the_original_data_set_unchanged(urls: list[str]) -> None:
    dataset = WebDataset(urls)
    chain = dataset.map(key_of).slice(2)
    assert list(chain) == KEYS[:2]
    assert keys(dataset) == KEYS
    # As in webdataset, with_epoch and with_length change the data set itself.
    assert dataset.with_epoch(3) is dataset
    assert len(list(dataset)) == 3
    with pytest.raises(TypeError, match="with_length"):
        len(dataset)
    assert len(dataset.with_length(9)) == 9
    assert bool(WebDataset(urls)) is True
    assert list(WebDataset(urls).then(lambda source, n: [n, next(source)["__key__"]], 5)) == [
        5,
        KEYS[0],
    ]


def test_rsample_draws_other_samples_each_epoch(urls: list[str]) -> None:
    dataset = WebDataset(urls).rsample(0.5)
    first, second = keys(dataset), keys(dataset)
    assert 0 < len(first) < len(KEYS)
    assert first != second
    assert keys(WebDataset(urls).rsample(0.5)) == first


# States


def chain(urls: list[str]) -> WebDataset:
    return WebDataset(urls, shardshuffle=SHARDS, seed=7).shuffle(10).map(key_of)


@pytest.mark.parametrize("at", [0, 1, 7, 20, len(KEYS) - 1, len(KEYS)])
def test_iteration_resumes_from_a_state(at: int, urls: list[str]) -> None:
    whole = chain(urls)
    first, second = list(whole), list(whole)
    begun = chain(urls)
    samples = iter(begun)
    handed_out = [next(samples) for _ in range(at)]
    state = json.loads(json.dumps(begun.state_dict()))
    resumed = chain(urls)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    rest = list(resumed)
    # A state from the end of an epoch resumes with the next one.
    assert handed_out + rest == first + second * (at == len(KEYS))
    assert list(resumed) != first
    list(samples)
    assert begun.state_dict()["samples"] == 0
    assert begun.state_dict()["epoch"] == 1


def test_resampled_batches_resume_from_a_state(urls: list[str]) -> None:
    def batches() -> WebDataset:
        return WebDataset(urls, resampled=True).shuffle(9).map(key_of).listed(4).with_epoch(9)

    begun = batches()
    assert len(list(begun)) == 9
    samples = iter(begun)
    handed_out = [next(samples) for _ in range(4)]
    resumed = batches()
    resumed.load_state_dict(begun.state_dict())
    again = batches()
    again.set_epoch(1)
    assert handed_out + list(resumed) == list(again)


@pytest.mark.parametrize("workers", [0, 2])
def test_webloader_resumes_from_a_state(workers: int, urls: list[str]) -> None:
    def loader() -> WebLoader:
        loaded = WebLoader(chain(urls).listed(2), batch_size=None, num_workers=workers)
        return loaded.unlisted().listed(3).with_epoch(12)

    begun = loader()
    list(begun)
    samples = iter(begun)
    handed_out = [next(samples) for _ in range(5)]
    state = begun.state_dict()
    rest = list(samples)
    resumed = loader()
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert len(handed_out + rest) == 12
    following, resumed_following = list(begun), list(resumed)
    assert following != handed_out + rest
    assert resumed_following == following


def test_state_of_another_pipeline_is_rejected(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = chain(urls)
    next(iter(begun))
    state = begun.state_dict()
    for other, what in (
        (WebDataset(urls, shardshuffle=SHARDS, seed=8).shuffle(10).map(key_of), "seed"),
        (WebDataset(urls[1:], shardshuffle=SHARDS, seed=7).shuffle(10).map(key_of), "shards"),
        (WebDataset(urls, seed=7).shuffle(10).map(key_of), "shardshuffle"),
        (chain(urls).slice(3), "steps"),
        (chain(urls).with_epoch(3), "repetitions"),
    ):
        with pytest.raises(Invalid, match=what):
            other.load_state_dict(state)
    for broken in ({}, {**state, "version": 2}, {**state, "samples": -1}, {**state, "of": 3}):
        with pytest.raises(Invalid):
            chain(urls).load_state_dict(broken)
    resumed = chain(urls)
    resumed.load_state_dict(state)
    with pytest.raises(Invalid, match="1 workers"):
        loaded(resumed, 2)
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    with pytest.raises(Invalid, match="worker"):
        chain(urls).load_state_dict(state)


# Errors


def shard_with_bad_samples(path: Path, bad: set[int], count: int = 100) -> str:
    """Write a shard in which the samples `bad` have a field twice; return its path."""
    import io
    import tarfile

    with tarfile.open(path, "w") as tar:
        for number in range(count):
            for _ in range(1 + (number in bad)):
                tar.addfile(tarfile.TarInfo(f"c{number:03}.txt"), io.BytesIO())
    return str(path)


@pytest.mark.parametrize(
    "bad",
    [{0}, {15}, {16}, {99}, {50, 51}, set(range(0, 100, 3)), set(range(10, 90)), set(range(100))],
    ids=lambda bad: f"{len(bad)} from {min(bad)}",
)
def test_bad_samples_are_reported_in_their_places(bad: set[int], tmp_path: Path) -> None:
    shards = [
        shard_with_bad_samples(tmp_path / "a.tar", bad),
        shard_with_bad_samples(tmp_path / "b.tar", bad, count=20),
    ]
    found: list[str] = []

    def handler(error: Exception) -> bool:
        assert isinstance(error, BadSample)
        found.append(f"bad {error.places['key']}")
        return True

    for sample in WebDataset(shards, handler, empty_check=False):
        found.append(sample["__key__"])
    assert found == [
        f"bad c{number:03}" if number in bad else f"c{number:03}"
        for count in (100, 20)
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 32, 48])
def test_samples_after_a_bad_one_are_read_to_the_end(count: int, tmp_path: Path) -> None:
    # The shard may end exactly where the reader switches between single samples and batches.
    shard = shard_with_bad_samples(tmp_path / "a.tar", {0}, count)
    dataset = WebDataset([shard], ours.ignore_and_continue, empty_check=False)
    assert keys(dataset) == [f"c{number:03}" for number in range(1, count)]


@pytest.mark.parametrize("bad", [0, 15, 16, 40, 99])
def test_stopping_handler_keeps_the_samples_before(bad: int, tmp_path: Path) -> None:
    shards = [
        shard_with_bad_samples(tmp_path / "a.tar", {bad}),
        shard_with_bad_samples(tmp_path / "b.tar", set()),
    ]
    dataset = WebDataset(shards, ours.ignore_and_stop, empty_check=False)
    assert keys(dataset) == [f"c{number:03}" for number in range(bad)]
    samples = iter(WebDataset(shards))
    assert keys(next(samples) for _ in range(bad)) == [f"c{number:03}" for number in range(bad)]
    with pytest.raises(BadSample, match=f"c{bad:03}"):
        next(samples)


def test_bad_sample_of_a_command_is_passed_by(tmp_path: Path) -> None:
    """Errors name a command without its words; the samples behind it come all the same."""
    good = shard_with_bad_samples(tmp_path / "a.tar", set(), 3)
    bad = shard_with_bad_samples(tmp_path / "b.tar", {1, 2}, 40)
    urls = [good, f"pipe:cat -u -- {bad}"]
    dataset = WebDataset(urls, ours.ignore_and_continue, empty_check=False, allow_pipe=True)
    expected = [f"c{number:03}" for number in range(40) if number not in (1, 2)]
    assert keys(dataset) == ["c000", "c001", "c002", *expected]


def test_exception_of_a_handler_is_raised(tmp_path: Path) -> None:
    shard = shard_with_bad_samples(tmp_path / "a.tar", {20})

    def handler(error: Exception) -> bool:
        raise NotFound("mine", {"url": shard}) from error

    with pytest.raises(NotFound, match="mine"):
        list(WebDataset([shard], handler))


def test_builtin_handlers_raise_warn_continue_or_stop() -> None:
    error = ValueError("it")
    with pytest.raises(ValueError, match="it"):
        ours.reraise_exception(error)
    assert ours.ignore_and_continue(error) is True
    assert ours.ignore_and_stop(error) is False
    with pytest.warns(UserWarning, match="it"):
        assert ours.warn_and_continue(error) is True
    with pytest.warns(UserWarning, match="it"):
        assert ours.warn_and_stop(error) is False


def test_decode_error_names_the_field(urls: list[str]) -> None:
    dataset = WebDataset(urls).decode(ours.handle_extension("txt", int))
    with pytest.raises(BadSample, match="invalid literal") as caught:
        next(iter(dataset))
    assert caught.value.places == {"url": urls[0], "key": KEYS[0], "field": "txt"}
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("field", ["mp", "cbor"])
def test_missing_module_is_an_error_not_a_bad_sample(
    field: str, shard_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    monkeypatch.setitem(sys.modules, "cbor", None)
    shard = shard_of([("s", {field: b"1"})])
    with pytest.raises(Invalid, match="install it"):
        list(WebDataset(shard).decode(handler=ours.ignore_and_continue))


# Rejected arguments, and messages


@pytest.mark.parametrize(
    ("option", "value", "way"),
    [
        ("select_files", bool, r"\.select"),
        ("rename_files", str, r"\.rename"),
        ("mode", "unlink", "resampled"),
        ("shardshuffle", -1, "shardshuffle"),
        ("shardshuffle", "yes", "shardshuffle"),
        ("seed", "x", "seed"),
        ("handler", True, "handler"),
        ("nodesplitter", 3, "nodesplitter"),
        ("workersplitter", "w", "workersplitter"),
        ("detshuffle", 2, "detshuffle"),
        ("resampled", "no", "resampled"),
        ("repeat", 3, "repeat"),
        ("empty_check", None, "empty_check"),
        ("verbose", "very", "verbose"),
    ],
)
def test_unsupported_argument_is_rejected_with_advice(
    option: str, value: Any, way: str, urls: list[str]
) -> None:
    with pytest.raises(Invalid, match=way):
        WebDataset(urls, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "way"),
    [
        ("cache_dir", "/tmp/c", "FOREBAY_CACHE"),
        ("cache_size", 10**9, "FOREBAY_CAPACITY"),
        ("url_to_name", str, "no two URLs share a name"),
    ],
)
def test_argument_about_a_cache_warns_and_changes_nothing(
    option: str, value: Any, way: str, urls: list[str]
) -> None:
    with pytest.warns(UserWarning, match=way) as told:
        dataset = WebDataset(urls, **{option: value})
    # The warning is about the caller's line.
    assert [warning.filename for warning in told] == [__file__]
    assert keys(dataset) == KEYS


@pytest.mark.parametrize(
    ("variable", "way"), [("WDS_CACHE", "FOREBAY_CACHE"), ("WDS_CACHE_SIZE", "FOREBAY_CAPACITY")]
)
def test_variable_about_a_cache_warns(
    variable: str, way: str, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1000")
    with pytest.warns(UserWarning, match=way):
        assert keys(WebDataset(urls)) == KEYS


@pytest.mark.parametrize(
    "given",
    [[], {}, {"datasets": []}, "set.yaml", 3, [3], [b"x"], "", "a{0..", iter(())],
    ids=repr,
)
def test_urls_without_shards_are_rejected(given: Any) -> None:
    with pytest.raises(Invalid):
        WebDataset(given)


@pytest.mark.parametrize(
    ("variable", "value", "way"),
    [
        ("USE_AIS_FOR", "s3", "AWS_ENDPOINT_URL_S3"),
        ("WDS_SEED", "x", "seed="),
        ("WDS_SECURE", "yes", "0 or 1"),
        ("GOPEN_REWRITE", "nothing", "expression=replacement"),
        ("GOPEN_REWRITE", "(=x", "expression=replacement"),
    ],
)
def test_unsupported_variable_is_rejected_with_advice(
    variable: str, value: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Invalid, match=way):
        WebDataset("http://host/a.tar")


def test_unset_variable_in_a_url_is_rejected() -> None:
    with pytest.raises(Invalid, match="WDS_NOWHERE"):
        WebDataset("${NOWHERE}/a.tar")


def test_secure_mode_rejects_pickles_pipes_and_rewrites(
    shard_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [shard_of([("s", {name: pickle.dumps(1)})]) for name in ("pyd", "pkl", "pth")]
    monkeypatch.setenv("WDS_SECURE", "1")
    for shard in shards:
        with pytest.raises(Invalid, match="WDS_SECURE"):
            list(WebDataset(shard).decode(handler=ours.ignore_and_continue))
    with pytest.raises(Invalid, match="WDS_SECURE"):
        list(WebDataset(shards[0]).xdecode())
    with pytest.raises(Invalid, match="WDS_SECURE"):
        WebDataset("pipe:cat x", allow_pipe=True)
    monkeypatch.setenv("GOPEN_REWRITE", "s3://=/data/")
    with pytest.raises(Invalid, match="WDS_SECURE"):
        WebDataset(shards)


def test_weights_only_variable_restricts_torch_files(
    shard_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    file = io.BytesIO()
    torch.save({"x": Path("a")}, file)
    shard = shard_of([("s", {"pth": file.getvalue()})])
    assert next(iter(WebDataset(shard).decode()))["pth"] == {"x": Path("a")}
    monkeypatch.setenv("WDS_PYTORCH_WEIGHTS_ONLY", "1")
    with pytest.raises(BadSample, match="pth"):
        next(iter(WebDataset(shard).decode()))


def test_pipe_url_requires_allow_pipe() -> None:
    with pytest.raises(Invalid, match="allow_pipe=True"):
        WebDataset("pipe:cat a.tar")


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (lambda ds: ds.decode("rgb16"), "torchrgb8"),
        (lambda ds: ds.decode(3), "functions"),
        (lambda ds: ds.map(None), "map takes a function"),
        (lambda ds: ds.map_dict(), "as in cls=int"),
        (lambda ds: ds.map_dict(cls=3), "cls"),
        (lambda ds: ds.map_tuple(3), "function"),
        (lambda ds: ds.select(3), "function"),
        (lambda ds: ds.then(3), "function"),
        (lambda ds: ds.compose(3), "function"),
        (lambda ds: ds.to_tuple(), "names of fields"),
        (lambda ds: ds.to_tuple("a b", "c"), "has a space"),
        (lambda ds: ds.rename(x="a b"), "has a space"),
        (lambda ds: ds.batched(0), "batchsize"),
        (lambda ds: ds.batched(2, 3), "collation_fn"),
        (lambda ds: ds.slice(-1), r"slice\("),
        (lambda ds: ds.rsample(2), "probability"),
        (lambda ds: ds.shuffle(5, initial=-1), "initial"),
        (lambda ds: ds.set_epoch(-1), "epoch"),
        (lambda ds: ds.with_length(-1), "range"),
        (lambda ds: ds.mcached(), "daemon caches"),
        (lambda ds: ds.lmdb_cached("x"), "daemon caches"),
        (lambda ds: ds.log_keys("x"), r"\.map"),
    ],
)
def test_invalid_step_is_rejected_with_advice(step: Any, advice: str, urls: list[str]) -> None:
    with pytest.raises(Invalid, match=advice):
        step(WebDataset(urls))


@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.to_tuple("cls"),
        lambda ds: ds.rename(a="cls"),
        lambda ds: ds.rename_keys(a="cls"),
        lambda ds: ds.extract_keys("cls"),
        lambda ds: ds.xdecode(),
        lambda ds: ds.decode(),
        lambda ds: ds.unlisted(),
        lambda ds: ds.map(len).unbatched(),
        lambda ds: ds.map(lambda pair: ([1], [1, 2])).unbatched(),
    ],
)
def test_step_for_another_sample_type_is_rejected(step: Any, urls: list[str]) -> None:
    tuples = WebDataset(urls).to_tuple("cls txt")
    with pytest.raises(Invalid):
        list(step(tuples))


def test_custom_splitter_selects_the_shards(urls: list[str]) -> None:
    assert keys(WebDataset(urls, nodesplitter=lambda src: list(src)[:1])) == KEYS[:5]
    assert keys(WebDataset(urls, workersplitter=lambda src: [s["url"] for s in src])) == KEYS
    with pytest.raises(Invalid, match="dicts with 'url'"):
        list(WebDataset(urls, nodesplitter=lambda src: [3]))


def test_verbose_logs_each_shard(urls: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "forebay"):
        list(WebDataset(urls, verbose=True))
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if line.startswith("reads ")] == [f"reads {url}" for url in urls]
    caplog.clear()
    with caplog.at_level(logging.INFO, "forebay"):
        list(WebDataset(urls))
    assert not [record for record in caplog.records if "reads" in record.getMessage()]


def test_repr_names_shards_and_steps(urls: list[str]) -> None:
    dataset = WebDataset(urls).map(key_of)
    assert repr(dataset) == f"<forebay.WebDataset {urls[0]} and 5 more: 1 steps>"
    assert repr(WebLoader(dataset, batch_size=None)).startswith("<forebay.WebLoader ")


def test_close_ends_a_running_iteration(urls: list[str]) -> None:
    with WebDataset(urls, nodesplitter=None) as dataset:
        samples = iter(dataset.map(key_of))
        assert next(samples) == KEYS[0]
    assert list(samples) == []
