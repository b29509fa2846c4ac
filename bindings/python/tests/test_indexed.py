"""Random access by sample number: single samples, lists, threads, workers and forks."""

from __future__ import annotations

import os
import pickle
import signal
import threading

import numpy
import pytest

import forebay
from conftest import pixels, wait_gone
from test_processes import in_a_fork

FIELDS = {"label": forebay.Int("cls"), "image": forebay.Image("png"), "text": forebay.Text("txt")}


@pytest.fixture
def dataset(shards):
    made = forebay.IndexedDataset(shards, fields=FIELDS, framework="numpy", timeout=60.0)
    yield made
    made.close()


def assert_sample(sample, number):
    assert sample["__key__"] == f"s{number:05}"
    assert sample["label"] == number
    assert sample["text"] == f"text {number} é"
    assert (sample["image"] == pixels(number).transpose(2, 0, 1)).all()


@pytest.mark.parametrize("with_manifest", [True, False])
def test_every_sample_has_its_number(shards, manifest, with_manifest):
    options = {"manifest": manifest} if with_manifest else {}
    with forebay.IndexedDataset(shards, fields=FIELDS, framework="numpy", **options) as dataset:
        assert len(dataset) == 60
        for number in (0, 9, 10, 59, 31):
            assert_sample(dataset[number], number)
            assert dataset[number]["__url__"] == shards[number // 10]
        assert_sample(dataset[-1], 59)
        assert_sample(dataset[numpy.int64(-60)], 0)
        assert "__valid__" not in dataset[0]
        for number in (60, -61, 10**9):
            with pytest.raises(IndexError, match="of 60"):
                dataset[number]


def test_index_list_gives_a_batch_in_its_order(dataset):
    numbers = [42, 3, 59, 3, 41, 0]
    batch = dataset[numbers]
    assert batch["label"].tolist() == numbers
    assert list(batch["__key__"]) == [f"s{number:05}" for number in numbers]
    assert batch["image"].shape == (6, 3, 8, 6)
    for row, number in enumerate(numbers):
        assert (batch["image"][row] == pixels(number).transpose(2, 0, 1)).all()
    assert dataset[numpy.array([5, -5])]["label"].tolist() == [5, 55]
    assert dataset[8:14:2]["label"].tolist() == [8, 10, 12]
    everything = dataset[:]
    assert everything["label"].tolist() == list(range(60))
    assert [sample["label"] for sample in dataset.__getitems__([7, 1])] == [7, 1]


def test_crops_depend_on_seed_and_sample_number_alone(shards, manifest):
    fields = {"image": forebay.Image("png", size=4, crop="random", flip=True)}

    def dataset(seed):
        return forebay.IndexedDataset(
            shards, fields=fields, manifest=manifest, framework="numpy", seed=seed
        )

    with dataset(3) as one, dataset(3) as same, dataset(4) as other:
        batch = one[[20, 21, 22, 23]]["image"]
        assert (same[[23]]["image"][0] == batch[3]).all()
        assert (one[22]["image"] == batch[2]).all()
        assert (other[[20, 21, 22, 23]]["image"] != batch).any()


def test_invalid_index_is_rejected(dataset):
    for index in ("3", 1.5, [0, "x"], None):
        with pytest.raises(forebay.Invalid, match="whole number"):
            dataset[index]
    with pytest.raises(forebay.Invalid, match="at least one"):
        dataset[[]]
    for mask in ([True, False], numpy.array([True, False])):
        with pytest.raises(forebay.Invalid):
            dataset[mask]


def test_tensor_of_one_number_gives_a_batch(dataset):
    torch = pytest.importorskip("torch")
    for numbers in (torch.tensor([5]), numpy.array([5]), [5]):
        assert list(dataset[numbers]["__key__"]) == ["s00005"]
    assert dataset[torch.tensor(5)]["__key__"] == "s00005"
    with pytest.raises(forebay.Invalid, match="mask"):
        dataset[torch.tensor([True, False])]


def test_bad_sample_is_named_in_the_error(shard_of):
    samples = [(f"k{number}", {"cls": b"x" if number == 2 else b"1"}) for number in range(4)]
    url = shard_of(samples)
    fields = {"label": forebay.Int("cls")}
    with forebay.IndexedDataset(url, fields=fields, framework="numpy") as dataset:
        assert dataset[[0, 1, 3]]["label"].tolist() == [1, 1, 1]
        for index in (2, [0, 2]):
            with pytest.raises(forebay.BadSample) as caught:
                dataset[index]
            assert (caught.value.places["key"], caught.value.places["url"]) == ("k2", url)


def test_dataset_works_after_pickle_and_fork_and_in_threads(dataset):
    assert_sample(dataset[17], 17)
    assert_sample(pickle.loads(pickle.dumps(dataset))[33], 33)

    def child():
        assert_sample(dataset[44], 44)

    in_a_fork(child)
    assert_sample(dataset[18], 18)
    seen = []

    def read(first):
        seen.extend(dataset[number]["label"] for number in range(first, 60, 4))

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(60))


def test_killed_daemon_is_replaced(home, shards, manifest):
    with forebay.IndexedDataset(
        shards, fields=FIELDS, manifest=manifest, framework="numpy"
    ) as dataset:
        for number in (1, 50, 20):
            assert_sample(dataset[number], number)
            (daemon,) = home.daemons()
            os.kill(daemon, signal.SIGKILL)
            assert wait_gone(daemon)
        assert_sample(dataset[2], 2)


# torch forks its workers beside other threads, of which Python and JAX warn.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_dataloader_shuffles_every_sample_once(shards, manifest, workers):
    torch = pytest.importorskip("torch")
    with forebay.IndexedDataset(
        shards, fields={"label": forebay.Int("cls")}, manifest=manifest, framework="torch"
    ) as dataset:
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=7, shuffle=True, num_workers=workers
        )
        batches = [batch["label"].tolist() for batch in loader]
    assert [len(batch) for batch in batches] == [7] * 8 + [4]
    assert sorted(label for batch in batches for label in batch) == list(range(60))
