"""Batches by tokens: budgets, padding and balance, states in other worlds, layouts, and errors."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import random
import signal
from pathlib import Path

import pytest

import forebay
from conftest import wait_gone, write_shard
from forebay import _native
from forebay._launch import command

np = pytest.importorskip("numpy", reason="needs numpy: arrays are NumPy's")

COUNTS = (300, 150, 0, 350)
BUDGET = 4096
LOOKAHEAD = 200


def run(*arguments: object) -> int:
    return _native.main([str(argument) for argument in arguments], command())


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def length(number: int, shard: int) -> int:
    """Return the tokens of a sample: log-normal, and 0 for one."""
    if (number, shard) == (7, 1):
        return 0
    draw = random.Random(f"{number} {shard}").gauss(math.log(120), 1.0)
    return min(2000, max(1, round(math.exp(draw))))


def tokens(number: int, shard: int):
    return np.arange(length(number, shard), dtype="int32") + 1000 * number


def name(number: int, shard: int) -> str:
    return f"{shard}-{number:03}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards with manifest and member index, as arguments of a loader."""
    folder = tmp_path_factory.mktemp("tokens")
    urls = []
    for shard, count in enumerate(COUNTS):
        samples = [
            (
                name(number, shard),
                {
                    "cls": b"%d" % number,
                    "json": json.dumps({"n": length(number, shard), "lang": "de"}).encode(),
                    "npy": npy(tokens(number, shard)),
                    "raw": tokens(number, shard).astype("uint16").tobytes(),
                    "txt": b"x" * length(number, shard),
                },
            )
            for number in range(count)
        ]
        write_shard(folder / f"{shard}.tar", samples)
        urls.append(str(folder / f"{shard}.tar"))
    manifest = folder / "m.json"
    assert run("index", *urls, "-o", manifest, "--columns", "json:n,lang", "--columns", "cls") == 0
    return {"urls": urls, "manifest": str(manifest)}


FIELDS = {"tokens": forebay.Npy("npy"), "label": forebay.Int("cls")}


def by(field="tokens", **options):
    given = {"budget": BUDGET, "length": "n", "lookahead": LOOKAHEAD}
    return forebay.Tokens(field, **(given | options))


def loader(data, **options):
    settings = {
        "batch_by": by(),
        "fields": FIELDS,
        "framework": "numpy",
        "timeout": 60.0,
        "shuffle": True,
        "rank": 0,
        "world_size": 1,
    }
    return forebay.DataLoader(**(data | settings | options))


def keys(batch):
    return [k for k, valid in zip(batch["__key__"], batch["__valid__"], strict=True) if valid]


def steps(data, world, **options):
    """Return the batches of each rank, step by step, as keys."""
    ranks = []
    for rank in range(world):
        with loader(data, rank=rank, world_size=world, **options) as part:
            batches = [keys(batch) for batch in part]
            part.set_epoch(0)
            assert len(batches) == len(part)
            ranks.append(batches)
    return list(itertools.chain.from_iterable(zip(*ranks, strict=True)))


EVERY = sorted(name(number, shard) for shard, count in enumerate(COUNTS) for number in range(count))


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_every_sample_comes_once_within_the_budget(data, shuffle, pack):
    with loader(data, shuffle=shuffle, pack=pack) as whole:
        first = []
        for batch in whole:
            lengths = batch["tokens_len"].tolist()
            cells = sum(lengths) if pack else batch["tokens"].size
            assert cells <= BUDGET
            assert pack or batch["tokens"].shape == (len(lengths), max(lengths))
            first += keys(batch)
        second = [key for batch in whole for key in keys(batch)]
    assert sorted(first) == sorted(second) == EVERY
    assert (first == second) == (shuffle is False)


def test_packed_batch_is_ready_for_attention_of_variable_length(data):
    with loader(data, pack=True) as packed:
        for batch in packed:
            ends, lengths = batch["cu_seqlens"], batch["tokens_len"]
            assert (ends.dtype, ends[0], ends[-1]) == (np.int32, 0, len(batch["tokens"]))
            assert (np.diff(ends) == lengths).all()
            assert batch["max_seqlen"] == lengths.max()
            for row, key in enumerate(batch["__key__"]):
                shard, number = (int(part) for part in key.split("-"))
                own = slice(ends[row], ends[row + 1])
                assert (batch["tokens"][own] == tokens(number, shard)).all()
                assert (batch["position_ids"][own] == np.arange(lengths[row])).all()
                assert batch["label"][row] == number


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("pack", [False, True])
def test_frameworks_get_the_same_batch(data, framework, pack):
    pytest.importorskip(framework, reason=f"needs {framework}: its tensors")
    fields = {"tokens": forebay.Text("txt", map=lambda text: [len(text)] * len(text))}
    options = {
        "pack": pack,
        "batch_by": by(buckets=None if pack else (512, 2048)),
        "fields": fields,
    }
    with loader(data, **options) as one, loader(data, framework=framework, **options) as other:
        # JAX compiles what compares for each shape.
        for ours, theirs in itertools.islice(zip(one, other, strict=True), 3):
            for field in set(ours) - {"__key__", "__url__", "max_seqlen"}:
                found = np.asarray(theirs[field])
                assert found.shape == ours[field].shape, field
                assert (found == ours[field]).all(), field


def test_padding_and_balance_of_a_log_normal_set(data):
    settings = {"batch_by": by(lookahead=800, budget=8192)}
    cells = rows = 0
    with loader(data, **settings) as padded:
        for batch in padded:
            cells += batch["tokens"].size
            rows += int(batch["tokens_len"].sum())
    # 800 samples are a tenth of the default look-ahead.
    assert 1 - rows / cells < 0.1
    with loader(data, pack=True, **settings) as packed:
        sums = [int(batch["tokens_len"].sum()) for batch in packed]
    assert max(sums) - min(sums) <= 0.05 * max(sums)


@pytest.mark.parametrize("pack", [False, True])
def test_order_does_not_depend_on_the_world(data, pack):
    alone = steps(data, 1, pack=pack)
    for world in (2, 3):
        assert [part for part in steps(data, world, pack=pack) if part] == alone


def test_last_step_is_dropped_or_padded(data):
    alone = steps(data, 1)
    world = next(world for world in (4, 5, 7) if len(alone) % world)
    left = len(alone) % world
    assert steps(data, world, drop_last=True) == alone[:-left]
    for options in ({}, {"pad_last": True}):
        found = steps(data, world, **options)
        assert found == alone + [[]] * (world - left)


def test_state_goes_on_in_another_world(data):
    alone = steps(data, 1)
    with loader(data, world_size=2) as first:
        batches = iter(first)
        for _ in range(4):
            next(batches)
        state = json.loads(json.dumps(first.state_dict()))
    found = []
    for rank in range(3):
        with loader(data, rank=rank, world_size=3) as resumed:
            resumed.load_state_dict(state)
            found.append([keys(batch) for batch in resumed])
            # The epoch is over: the state is the start of the next.
            assert resumed.state_dict()["epoch"] == 1
    there = [part for step in zip(*found, strict=True) for part in step if part]
    assert there == alone[8:]


def test_killed_daemon_is_replaced_within_a_look_ahead(home, data):
    with loader(data, prefetch=1) as one:
        expected = [keys(batch) for batch in one]
        one.set_epoch(0)
        found = []
        for number, batch in enumerate(one):
            found.append(keys(batch))
            if number in (1, 11):
                pid = one.stats()["daemon_pid"]
                os.kill(pid, signal.SIGKILL)
                assert wait_gone(pid)
        assert one.stats()["reconnects"] == 2
    assert found == expected
    assert len(home.daemons()) == 1


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchs_workers_take_turns_at_the_batches(data):
    torch = pytest.importorskip("torch", reason="needs torch: its loader")
    from forebay.torch import IterableDataset

    options = {"batch_by": by(), "fields": FIELDS, "shuffle": True, "rank": 0, "world_size": 2}
    dataset = IterableDataset(**(data | options))
    options = {"num_workers": 2, "multiprocessing_context": "spawn"}
    turns = torch.utils.data.DataLoader(dataset, batch_size=None, **options)
    found = [keys(batch) for batch in turns]
    with loader(data, world_size=2) as one:
        assert found == [keys(batch) for batch in one]


def test_state_of_other_batches_is_rejected(data):
    with loader(data) as one:
        state = one.state_dict()
    for options in (
        {"batch_by": by(budget=BUDGET + 1)},
        {"batch_by": by(lookahead=LOOKAHEAD + 1)},
        {"batch_by": by(buckets=(512, 4096))},
        {"pack": True},
        {"batch_by": None},
    ):
        with loader(data, **options) as other, pytest.raises(forebay.Invalid) as caught:
            other.load_state_dict(state)
        assert caught.value.places["option"] == "batch_by"


def test_filter_and_batches_by_tokens_go_together(data):
    with loader(data, where="n >= 50 and cls < 200") as filtered:
        found = sorted(key for batch in filtered for key in keys(batch))
    assert found == [
        key
        for key in EVERY
        for shard, number in [map(int, key.split("-"))]
        if length(number, shard) >= 50 and number < 200
    ]


def test_mixture_has_the_samples_of_each_stream(data):
    halves = [data["urls"][:1], data["urls"][1:]]
    streams = [
        forebay.Stream(urls, weight=weight) for urls, weight in zip(halves, (1, 3), strict=True)
    ]
    settings = {"urls": streams, "epoch_samples": 400}
    with loader(data, **settings) as mixed:
        found = [key for batch in mixed for key in keys(batch)]
        assert len(found) == mixed.num_samples == 400
        assert sum(key.startswith("0-") for key in found) == 100
    with loader(data, **settings) as changed:
        epoch = iter(changed)
        before = keys(next(epoch))
        changed.set_weights([0.0, 1.0])
        after = [key for batch in epoch for key in keys(batch)]
    # The batches of the first look-ahead are those without the change.
    assert before == found[: len(before)]
    assert sum(key.startswith("0-") for key in before + after) == LOOKAHEAD / 4
    assert len(before + after) == 400


@pytest.mark.parametrize(
    ("field", "options"),
    [
        (forebay.Npy("npy"), {"dtype": "int32"}),
        (forebay.Npy("raw", dtype="uint16", shape=(-1,)), {}),
        (forebay.Npy("no;RAW", dtype="uint16", shape=-1), {}),
        (forebay.Text("txt"), {}),
    ],
)
@pytest.mark.parametrize("pack", [False, True])
def test_lengths_from_sizes_are_those_of_the_column(data, field, options, pack):
    by_size = by(length=None, **options)
    with loader(data, fields={"tokens": field}, batch_by=by_size, pack=pack) as sized:
        found = [keys(batch) for batch in sized]
    assert found == steps(data, 1, pack=pack)


@pytest.mark.parametrize("pack", [False, True])
def test_long_sample_follows_the_policy(data, pack):
    budget = 1500
    long = [k for k in EVERY for s, n in [map(int, k.split("-"))] if length(n, s) > budget]
    assert long
    with pytest.raises(forebay.Invalid) as caught:
        loader(data, batch_by=by(budget=budget), pack=pack)
    assert caught.value.places["key"] in long
    assert caught.value.places["budget"] == str(budget)
    with loader(data, batch_by=by(budget=budget, too_long="alone"), pack=pack) as alone:
        singles = [keys(batch) for batch in alone if batch["tokens_len"].max() > budget]
    assert sorted(singles) == [[key] for key in long]
    with loader(data, batch_by=by(budget=budget, too_long="truncate"), pack=pack) as cut:
        found = []
        for batch in cut:
            assert batch["tokens_len"].max() <= budget
            assert batch["tokens"].size <= budget
            found += keys(batch)
    assert sorted(found) == EVERY
    ragged = {} if pack else {"ragged": "pad", "max_len": 300, "pad_value": -1}
    fields = {"tokens": forebay.Npy("npy", **(ragged or {"ragged": "nested", "max_len": 300}))}
    with loader(data, batch_by=by(budget=budget), pack=pack, fields=fields) as capped:
        longest = max(int(batch["tokens_len"].max()) for batch in capped)
    assert longest == 300


def test_buckets_are_the_widths_of_batches(data):
    buckets = (128, 512, 2048)
    fields = {"tokens": forebay.Npy("npy", ragged="pad", pad_value=-1)}
    with loader(data, batch_by=by(buckets=buckets), fields=fields) as padded:
        widths = set()
        for batch in padded:
            width = batch["tokens"].shape[1]
            widths.add(width)
            for row, own in zip(batch["tokens"], batch["tokens_len"], strict=True):
                assert own <= width
                assert (row[own:] == -1).all()
            before = max((bound for bound in buckets if bound < width), default=-1)
            assert all(own > before for own in batch["tokens_len"])
    assert widths == set(buckets)


def test_further_fields_are_laid_out_alike(data):
    fields = {"tokens": forebay.Npy("npy"), "bytes": forebay.Text("txt")}
    with loader(data, fields=fields, batch_by=by(("tokens", "bytes")), pack=True) as packed:
        for batch in packed:
            assert len(batch["tokens"]) == len(batch["bytes"]) == batch["cu_seqlens"][-1]
    fields["other"] = forebay.Text("json")
    packed = loader(data, fields=fields, batch_by=by(("tokens", "other")), pack=True)
    with packed, pytest.raises(forebay.Invalid) as caught:
        next(iter(packed))
    assert caught.value.places["field"] == "other"


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_and_selection_keep_the_layout(data, worker_type):
    options = {"workers": 2, "worker_type": worker_type, "select": is_even, "pack": True}
    with loader(data, **options) as selected:
        for batch in selected:
            assert (batch["label"] % 2 == 0).all()
            assert batch["cu_seqlens"][-1] == len(batch["tokens"]) == batch["tokens_len"].sum()


def is_even(sample):
    return sample["label"] % 2 == 0


def test_wrong_lengths_are_found_in_the_batch(data):
    # A class number is no length.
    wrong = by(length="cls", lookahead=8, budget=400)
    with loader(data, batch_by=wrong) as wrong, pytest.raises(forebay.Invalid) as caught:
        list(wrong)
    assert caught.value.places["field"] == "tokens"


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"batch_by": by("token")}, {"field": "token", "meant": "tokens"}),
        ({"batch_by": by("label")}, {"field": "label"}),
        ({"batch_by": by(length="m")}, {"column": "m", "field": "tokens"}),
        ({"batch_by": by(length="langs")}, {"column": "langs", "meant": "lang"}),
        ({"batch_by": by(length="lang")}, {"column": "lang", "key": "0-000"}),
        ({"batch_by": by(length=None)}, {"field": "tokens"}),
        ({"batch_by": by(length=None, dtype="int64")}, {"field": "tokens"}),
        ({"fields": {"tokens": forebay.Npy("npz")}, "batch_by": by(length=None, dtype="int8")},
         {"source": "npz", "meant": "npy"}),
        ({"fields": {"tokens": forebay.Text("txt", map=len)}, "batch_by": by(length=None)},
         {"field": "tokens"}),
        ({"fields": {"tokens": forebay.Npy("npy", ragged="pad")}, "pack": True},
         {"field": "tokens"}),
        ({"fields": FIELDS | {"cu_seqlens": forebay.Int("cls")}, "pack": True},
         {"field": "cu_seqlens"}),
        ({"batch_by": by(buckets=(8, 16)), "pack": True}, {"option": "buckets"}),
        ({"batch_by": None, "pack": True}, {"option": "pack"}),
        ({"batch_by": "tokens"}, {"option": "batch_by"}),
        ({"batch_size": 4}, {"option": "batch_size"}),
        ({"split": "dynamic"}, {"option": "split"}),
        ({"manifest": None}, {"option": "batch_by"}),
    ],
)  # fmt: skip
def test_impossible_rules_are_named(data, options, places):
    with pytest.raises(forebay.Invalid) as caught:
        loader(data, **options)
    assert caught.value.places.items() >= places.items()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"budget": 0}, "budget"),
        ({"lookahead": 0}, "lookahead"),
        ({"buckets": (16, 8)}, "buckets"),
        ({"buckets": (BUDGET + 1,)}, "buckets"),
        ({"too_long": "cut"}, "too_long"),
        ({"dtype": "int3"}, "dtype"),
        ({"field": ()}, "field"),
        ({"field": ("a", "a")}, "field"),
    ],
)
def test_invalid_values_are_rejected(options, option):
    with pytest.raises(forebay.Invalid) as caught:
        by(**options)
    assert caught.value.places["option"] == option


def test_manifest_without_members_is_named(data, tmp_path):
    manifest = Path(tmp_path) / "plain.json"
    assert run("index", *data["urls"], "-o", manifest) == 0
    with pytest.raises(forebay.Invalid) as caught:
        loader(data, manifest=str(manifest))
    assert caught.value.places["path"] == str(manifest)
