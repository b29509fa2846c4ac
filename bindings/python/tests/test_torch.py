"""Forebay's data set in torch's loaders: workers share an epoch, and states resume."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import subprocess
import sys

import pytest

import forebay

torch = pytest.importorskip("torch")
from forebay.torch import IterableDataset  # noqa: E402

# torch warns of more workers than cores; these workers hardly decode anything.
pytestmark = [
    pytest.mark.usefixtures("ended_workers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torch forks its workers beside other threads, of which Python and JAX warn.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    # torchdata's last release calls a deprecated function of torch.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

FIELDS = {"label": forebay.Int("cls")}


@pytest.fixture
def dataset(make, shards, manifest):
    """A function that makes a data set over the shards with these arguments."""

    def with_arguments(**arguments):
        # The fixture's loader has the arguments that reach this session's daemon.
        arguments = make(fields=FIELDS, manifest=manifest, **arguments)._arguments
        return IterableDataset(**arguments)

    return with_arguments


def torch_loader(dataset, workers, **arguments):
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **arguments)


def keys(batches):
    return [list(batch["__key__"]) for batch in batches]


# Spawned workers start slowly, so one case with two of them is enough.
@pytest.mark.parametrize(
    ("workers", "context"), [(1, "fork"), (2, "fork"), (3, "fork"), (2, "spawn")]
)
def test_workers_keep_the_order_of_one_process(make, dataset, manifest, workers, context):
    options = {"shuffle": True, "window": 2, "seed": 9}
    alone = make(fields=FIELDS, manifest=manifest, **options)
    expected = [keys(alone) for _ in range(3)]
    loader = torch_loader(dataset(**options), workers, multiprocessing_context=context)
    assert [keys(loader) for _ in range(2)] == expected[:2]
    loader.dataset.set_epoch(1)
    assert [keys(loader) for _ in range(2)] == expected[1:]
    assert len(loader) == len(alone) == 15


def test_persistent_workers_continue_with_the_next_epoch(make, dataset, manifest):
    options = {"shuffle": True, "seed": 9}
    alone = make(fields=FIELDS, manifest=manifest, **options)
    expected = [keys(alone) for _ in range(3)]
    loader = torch_loader(dataset(**options), 2, persistent_workers=True)
    assert [keys(loader) for _ in range(2)] == expected[:2]
    loader.dataset.set_epoch(0)
    assert keys(loader) == expected[0]
    # An abandoned epoch counts as begun.
    next(iter(loader))
    assert keys(loader) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [0, 1, 6, 14, 15])
def test_stateful_dataloader_resumes_with_equal_worker_count(dataset, workers, after):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        made = dataset(shuffle=True, seed=4)
        return stateful.StatefulDataLoader(made, batch_size=None, num_workers=workers)

    whole = loader()
    expected = [keys(whole), keys(whole)]
    first = loader()
    done = keys(itertools.islice(iter(first), after))
    state = json.loads(json.dumps(first.state_dict()))
    resumed = loader()
    resumed.load_state_dict(state)
    assert done + keys(resumed) == expected[0]
    assert keys(resumed) == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_finished_epoch_resumes_with_the_next_one(dataset, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        made = dataset(shuffle=True, seed=4)
        return stateful.StatefulDataLoader(made, batch_size=None, num_workers=workers)

    whole = loader()
    expected = [keys(whole) for _ in range(3)]
    first = loader()
    assert keys(first) == expected[0]
    state = json.loads(json.dumps(first.state_dict()))
    resumed = loader()
    resumed.load_state_dict(state)
    assert [keys(resumed), keys(resumed)] == expected[1:]


def test_copy_made_by_one_process_becomes_a_rank(dataset, monkeypatch):
    copied = pickle.loads(pickle.dumps(dataset(shuffle=True)))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len([key for batch in keys(copied) for key in batch]) == 30


def test_copy_by_value_shares_its_epochs_with_workers(make, dataset, manifest):
    options = {"shuffle": True, "seed": 9}
    alone = make(fields=FIELDS, manifest=manifest, **options)
    expected = [keys(alone) for _ in range(2)]
    loader = torch_loader(copy.deepcopy(dataset(**options)), 1)
    assert [keys(loader) for _ in range(2)] == expected


def test_ranks_of_one_data_set_count_their_own_epochs(dataset, monkeypatch):
    data = dataset(shuffle=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = []
    # As ranks that are forked from one process, which share its memory.
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        seen += [key for batch in keys(torch_loader(copy.copy(data), 1)) for key in batch]
    assert sorted(seen) == [f"s{number:05}" for number in range(60)]


def test_views_and_a_stop_in_one_of_two_workers_are_rejected(make, dataset):
    views = make(fields={"text": forebay.Bytes("txt", copy=False)})._arguments
    with pytest.raises(forebay.Invalid, match="copy=True"):
        IterableDataset(**views)
    with pytest.raises(forebay.Invalid, match="on_error"):
        next(iter(torch_loader(dataset(on_error="stop"), 2)))


def test_state_of_other_workers_is_rejected(dataset):
    state = dataset().state_dict()
    with pytest.raises(forebay.Invalid, match="num_workers") as caught:
        dataset().load_state_dict(state | {"num_workers": 2})
    assert caught.value.places["option"] == "num_workers"
    with pytest.raises(forebay.Invalid, match="num_workers"):
        dataset().load_state_dict({})


class Bare(torch.utils.data.IterableDataset):
    """A naive wrapper, as a user might write it."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_plain_loader_in_several_workers_is_rejected(make):
    loader = torch_loader(Bare(make(fields=FIELDS)), 2)
    with pytest.raises(forebay.Invalid, match=r"forebay\.torch\.IterableDataset"):
        next(iter(loader))
    assert len(keys(torch_loader(Bare(make(fields=FIELDS)), 1))) == 15
    # An explicit rank means that the user has already shared the work among the workers.
    given = torch_loader(Bare(make(fields=FIELDS, rank=0, world_size=1)), 2)
    assert len(keys(given)) == 30


def test_ranks_and_workers_together_read_each_sample_once(dataset):
    ranks = [keys(torch_loader(dataset(shuffle=True, rank=r, world_size=2), 2)) for r in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    flat = [key for rank in ranks for batch in rank for key in batch]
    assert sorted(flat) == [f"s{number:05}" for number in range(60)]


PREPARED = """
import sys, accelerate, forebay, torch
from forebay.torch import IterableDataset

def main():
    accelerator = accelerate.Accelerator(cpu=True)
    dataset = IterableDataset(
        sys.argv[1], manifest=sys.argv[2], batch_size=4, fields={"label": forebay.Int("cls")}
    )
    for workers, context in ((0, None), (1, "fork"), (1, "spawn")):
        loader = accelerator.prepare(
            torch.utils.data.DataLoader(
                dataset, batch_size=None, num_workers=workers, multiprocessing_context=context
            )
        )
        try:
            next(iter(loader))
        except forebay.Invalid as error:
            assert "accelerator.prepare" in str(error), error
            with open(f"{sys.argv[3]}/{accelerator.process_index}-{context}", "w"):
                pass
    accelerator.end_training()

if __name__ == "__main__":
    main()
"""


def test_dataloader_prepared_by_accelerate_is_rejected(shards, manifest, tmp_path):
    pytest.importorskip("accelerate")
    script, rejected = tmp_path / "prepared.py", tmp_path / "rejected"
    script.write_text(PREPARED)
    rejected.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(script), "::".join(shards), manifest, str(rejected)]
    ended = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Rank 0 reads for all ranks; the others may end because it did.
    expected = {"0-None", "0-fork", "0-spawn"}
    assert {path.name for path in rejected.iterdir()} >= expected, ended.stderr
