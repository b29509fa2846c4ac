"""Scenarios of other loaders' own tests, for resuming and for changing worlds, run on Forebay.

The comment above each test names its models: `torchdata` is the StatefulDataLoader, `streaming`
is MosaicML's StreamingDataset.
"""

from __future__ import annotations

import itertools
import json

import pytest

import forebay

FIELDS = {"label": forebay.Int("cls")}
SAMPLES = 60
BATCH = 4
OPTIONS = {"fields": FIELDS, "shuffle": True, "seed": 3, "window": 3, "batch_size": BATCH}


def keys(batches):
    return [list(batch["__key__"]) for batch in batches]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


@pytest.fixture
def loader(make, manifest):
    """A function that makes loaders with the same order."""

    def loader(**options):
        return make(manifest=manifest, **(OPTIONS | options))

    return loader


# torchdata: TestSnapshotZero, TestInitialState.test_initial_state
def test_state_before_the_first_batch_resumes_the_whole_epoch(loader):
    first = loader()
    state = first.state_dict()
    whole = keys(first)
    iteration = iter(loader())
    begun = loader()
    iter(begun)
    for one in (state, begun.state_dict()):
        resumed = loader()
        resumed.load_state_dict(one)
        assert keys(resumed) == whole
    assert next(iteration)["__key__"] == whole[0]


# torchdata: TestSnapshotEnd, TestEndOfEpochBehavior, TestMultiEpochState
def test_state_at_the_end_resumes_with_the_next_epoch(loader):
    first = loader()
    epochs = [keys(first)]
    state = first.state_dict()
    epochs += [keys(first), keys(first)]
    resumed = loader()
    resumed.load_state_dict(state)
    assert [keys(resumed), keys(resumed)] == epochs[1:]


# torchdata: TestMultiEpochSDL; TestJsonSerDe
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_each_step_of_two_epochs_resumes_through_json(loader, shuffle):
    straight = loader(shuffle=shuffle)
    steps = [*keys(straight), *keys(straight)]
    walker, resumed = loader(shuffle=shuffle), loader(shuffle=shuffle)
    for step in range(len(steps)):
        state = json.loads(json.dumps(walker.state_dict()))
        resumed.load_state_dict(state)
        assert next(iter(resumed))["__key__"] == steps[step]
        # The walker advances one batch from the state alone.
        walker.load_state_dict(state)
        assert next(iter(walker))["__key__"] == steps[step]


# torchdata: TestInitialState.test_load_then_state, test_load_state_after_initial_state_dict
def test_loaded_state_is_returned_unchanged(loader):
    first = loader()
    iteration = iter(first)
    next(iteration)
    state = first.state_dict()
    assert first.state_dict() == state, "a second call returned another state"
    second = next(iteration)["__key__"]
    resumed = loader()
    assert resumed.state_dict() != state
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert next(iter(resumed))["__key__"] == second


# torchdata: TestConcurrentDataLoaders
def test_two_loaders_at_once_do_not_disturb_each_other(loader):
    alone = keys(loader())
    pairs = list(zip(loader(), loader(), strict=True))
    for side in (0, 1):
        assert keys(pair[side] for pair in pairs) == alone


# streaming: test_streamingdataloader_mid_epoch_resumption, test_dataloader_mid_epoch_exit
@pytest.mark.parametrize("batch_size", [4, 7])
@pytest.mark.parametrize("workers", [1, 4])
def test_abandoned_epoch_resumes_in_its_middle(loader, batch_size, workers):
    first = loader(batch_size=batch_size, workers=workers)
    middle = SAMPLES // (2 * batch_size)
    done = keys(itertools.islice(first, middle))
    state = first.state_dict()
    first.close()
    other = loader(batch_size=batch_size, workers=workers)
    other.load_state_dict(state)
    everything = flat(done + keys(other))
    assert sorted(everything) == [f"s{number:05}" for number in range(SAMPLES)]
    assert everything == flat(keys(loader(batch_size=batch_size)))


# streaming: test_dataloader_determinism, test_dataloader_sample_order
@pytest.mark.parametrize("seed", [987, 12345])
def test_order_depends_on_the_seed(loader, seed):
    one, other = keys(loader(seed=seed)), keys(loader(seed=seed))
    assert one == other
    assert one != keys(loader(seed=seed + 1))


# streaming: test_partition_relaxed_resumption
def test_worlds_that_change_after_each_step_read_one_epoch(loader):
    """Each world runs one step, and the next loads its state; global batches stay the same."""
    global_batch = 12
    straight = [sorted(batch) for batch in keys(loader(batch_size=global_batch))]
    state = loader(batch_size=global_batch).state_dict()
    for world, step in zip((1, 2, 3, 4, 6), straight, strict=True):
        got, states = [], []
        for rank in range(world):
            one = loader(batch_size=global_batch // world, rank=rank, world_size=world)
            one.load_state_dict(state)
            got += next(iter(one))["__key__"]
            states.append(one.state_dict())
            one.close()
        assert sorted(got) == step
        assert all(one == states[0] for one in states), "ranks have different states"
        state = states[0]


# streaming: test_partition_small_num_samples, test_partition_samples_less_than_ncn
@pytest.mark.parametrize("world", [4, 7])
def test_ranks_have_equal_batch_counts_with_few_samples(loader, world):
    ranks = [
        list(loader(rank=rank, world_size=world, epoch_samples=3, batch_size=2))
        for rank in range(world)
    ]
    assert {len(batches) for batches in ranks} == {1}
    valid = [
        key
        for batches in ranks
        for batch in batches
        for key, is_valid in zip(batch["__key__"], batch["__valid__"], strict=True)
        if is_valid
    ]
    assert len(valid) == len(set(valid)) == 3


# streaming: test_dataloader_epoch_size_no_streams
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("epoch_samples", [10, 55, 60])
def test_epoch_has_the_requested_length(loader, epoch_samples, drop_last):
    batches = keys(loader(epoch_samples=epoch_samples, drop_last=drop_last))
    full, rest = divmod(epoch_samples, BATCH)
    assert len(batches) == full + (rest > 0 and not drop_last)
    assert len(flat(batches)) == (full * BATCH if drop_last else epoch_samples)
