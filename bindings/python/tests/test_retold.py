"""Rules of other loaders for resuming and for changing worlds, held of this one.

A scenario of another library's own tests, told in our names; which one stands with it.
`torchdata`: its StatefulDataLoader; `streaming`: MosaicML's StreamingDataset.
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
    """Makes loaders of the same order."""

    def loader(**options):
        return make(manifest=manifest, **(OPTIONS | options))

    return loader


# torchdata: TestSnapshotZero, TestInitialState.test_initial_state
def test_a_state_from_before_the_first_batch_is_the_whole_epoch(loader):
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
def test_a_state_from_the_end_is_the_next_epoch(loader):
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
        # The walker goes one batch further, by the state alone.
        walker.load_state_dict(state)
        assert next(iter(walker))["__key__"] == steps[step]


# torchdata: TestInitialState.test_load_then_state, test_load_state_after_initial_state_dict
def test_a_state_that_was_loaded_is_the_state(loader):
    first = loader()
    iteration = iter(first)
    next(iteration)
    state = first.state_dict()
    assert first.state_dict() == state, "asking changes nothing"
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
def test_an_epoch_that_was_left_in_its_middle_is_gone_on_with(loader, batch_size, workers):
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
def test_the_same_seed_is_the_same_order_and_another_is_not(loader, seed):
    one, other = keys(loader(seed=seed)), keys(loader(seed=seed))
    assert one == other
    assert one != keys(loader(seed=seed + 1))


# streaming: test_partition_relaxed_resumption
def test_worlds_that_change_again_and_again_play_one_epoch(loader):
    """Each world plays a step, and the next takes rank 0's state; global batches stay the same."""
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
        assert all(one == states[0] for one in states), "a state is that of all ranks"
        state = states[0]


# streaming: test_partition_small_num_samples, test_partition_samples_less_than_ncn
@pytest.mark.parametrize("world", [4, 7])
def test_fewer_samples_than_ranks_end_alike_on_all(loader, world):
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
def test_an_epoch_is_as_long_as_was_asked(loader, epoch_samples, drop_last):
    batches = keys(loader(epoch_samples=epoch_samples, drop_last=drop_last))
    full, rest = divmod(epoch_samples, BATCH)
    assert len(batches) == full + (rest > 0 and not drop_last)
    assert len(flat(batches)) == (full * BATCH if drop_last else epoch_samples)
