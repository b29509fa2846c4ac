"""Errors name the bad shard, sample or argument; `on_error` decides how the loader continues."""

from __future__ import annotations

import collections
import gzip
import json
import pickle
import re
import subprocess
import sys
import tarfile
import types
from pathlib import Path

import numpy
import pytest

import forebay
from conftest import sample
from forebay import _batch, errors, ranks
from test_webdataset import small_daemon  # noqa: F401

FIELDS = {"image": forebay.Image("png"), "label": forebay.Int("cls")}


@pytest.fixture
def spoilt(shard_of):
    """Ten samples: number 2 has a broken image, 5 has no image, 7 has a label that is no number."""
    samples = [sample(number) for number in range(10)]
    samples[2][1]["png"] = samples[2][1]["png"][:50]
    del samples[5][1]["png"]
    samples[7][1]["cls"] = b"seven"
    return shard_of(samples)


def test_bad_sample_error_names_sample_field_and_offset(make, spoilt):
    iteration = iter(make(spoilt, fields=FIELDS, batch_size=2))
    assert next(iteration)["label"].tolist() == [0, 1]
    for _ in range(2):
        with pytest.raises(forebay.BadSample, match="s00002") as caught:
            next(iteration)
    assert caught.value.kind == "BadSample"
    assert caught.value.places["key"] == "s00002"
    assert caught.value.places["url"] == spoilt
    assert caught.value.places["field"] == "image"
    with tarfile.open(spoilt) as tar:
        offset = tar.getmember("s00002.png").offset_data
    assert caught.value.places["offset"] == str(offset)


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_samples_are_counted_and_keep_their_places(make, spoilt, caplog, workers):
    loader = make(spoilt, fields=FIELDS, batch_size=4, on_error="skip", workers=workers)
    batches = list(loader)
    assert [batch["label"].tolist() for batch in batches] == [[0, 1, 3], [4, 6], [8, 9]]
    assert [len(batch["__valid__"]) for batch in batches] == [3, 2, 2]
    assert loader.stats()["errors"] == 3
    for key in ("s00002", "s00005", "s00007"):
        assert key in caplog.text


def test_batches_of_bad_samples_are_dropped_by_default(make, spoilt):
    loader = make(spoilt, fields=FIELDS, batch_size=1, on_error="skip")
    assert [batch["label"].tolist() for batch in loader] == [[n] for n in (0, 1, 3, 4, 6, 8, 9)]
    assert (loader.stats()["batches"], loader.stats()["errors"]) == (7, 3)
    iteration = iter(loader)
    for number, position in ((0, 1), (1, 2), (3, 4)):
        assert next(iteration)["label"].tolist() == [number]
        assert loader.state_dict()["samples"] == position


def test_batch_of_bad_samples_is_empty_on_request(make, spoilt):
    fields = FIELDS | {"image": forebay.Image("png", size=(8, 6))}
    options = {"batch_size": 1, "on_error": "skip", "drop_empty": False}
    batches = list(make(spoilt, fields=fields, **options))
    assert len(batches) == 10
    assert batches[2]["image"].shape == (0, 3, 8, 6)


def test_columns_of_an_empty_batch_keep_their_types(make, shard_of):
    fields = {
        "image": forebay.Image("png", dtype="float32", layout="NHWC"),
        "array": forebay.Npy("npy"),
        "text": forebay.Text("txt"),
        "raw": forebay.Bytes("bin"),
        "label": forebay.Int("cls"),
        "part": forebay.Int("json", path="number", optional=True),
    }
    samples = [sample(number) for number in range(2)]
    samples[0][1]["cls"] = b"no number"
    options = {"batch_size": 1, "on_error": "skip", "drop_empty": False}
    empty, whole = make(shard_of(samples), fields=fields, **options)
    assert set(empty) == set(whole)
    assert (empty["image"].shape, empty["image"].dtype) == ((0, 0, 0, 3), numpy.float32)
    assert (empty["label"].shape, empty["label"].dtype) == ((0,), numpy.int64)
    assert empty["part_present"].shape == empty["__valid__"].shape == (0,)
    # A missing array has no known shape.
    assert empty["array"] == empty["text"] == empty["raw"] == []


def test_batch_of_bad_samples_has_every_column(make, shard_of, tmp_path):
    good = shard_of([sample(0), sample(1)])
    twice = tmp_path / "twice.tar"
    with tarfile.open(good) as of, tarfile.open(twice, "w", format=tarfile.USTAR_FORMAT) as to:
        for member in of.getmembers():
            for _ in range(1 + member.name.endswith("0.cls")):
                to.addfile(member, of.extractfile(member))
    empty, whole = make(str(twice), batch_size=1, on_error="skip", drop_empty=False)
    assert set(empty) == set(whole) == {*sample(0)[1], "__key__", "__url__", "__valid__"}
    assert [len(values) for values in empty.values()] == [0] * len(whole)


def test_sample_larger_than_memory_is_skipped_at_its_place(
    make,
    shard_of,
    small_daemon,  # noqa: F811
):
    # The daemon has 48 MiB for batches.
    samples = [
        (f"s{number}", {"bin": bytes(1000 + (60 << 20) * (number == 1))}) for number in range(3)
    ]
    url = shard_of(samples)
    with pytest.raises(forebay.BadSample, match=r"memory.*bytes=\d+, limit=\d+") as caught:
        list(make(url, daemon=small_daemon))
    assert caught.value.places["key"] == "s1"
    assert int(caught.value.places["limit"]) < 60 << 20 <= int(caught.value.places["bytes"])
    loader = make(url, daemon=small_daemon, on_error="skip", batch_size=1)
    assert [list(batch["__key__"]) for batch in loader] == [["s0"], ["s2"]]
    assert [one["key"] for one in loader.stats()["bad"]["last"]] == ["s1"]


def test_skipped_samples_are_listed_by_loader_and_daemon(home, make, spoilt):
    loader = make(spoilt, fields=FIELDS, batch_size=4, on_error="skip", job="spoilt job")
    assert loader.stats()["bad"] == {"by_kind": {}, "last": []}
    iteration = iter(loader)
    next(iteration)
    assert [bad["key"] for bad in loader.stats()["bad"]["last"]] == ["s00002"]
    assert len([next(iteration), next(iteration)]) == 2
    bad = loader.stats()["bad"]
    assert bad["by_kind"] == {"BadSample": 3}
    assert [one["key"] for one in bad["last"]] == ["s00002", "s00005", "s00007"]
    with tarfile.open(spoilt) as tar:
        offsets = {member.name: member.offset_data for member in tar.getmembers()}
    first, second, third = bad["last"]
    assert [first["offset"], second["offset"], third["offset"]] == [
        offsets["s00002.png"],
        offsets["s00005.cls"],
        offsets["s00007.png"],
    ]
    assert (first["kind"], first["url"], first["field"]) == ("BadSample", spoilt, "image")
    assert third["field"] == "label"
    assert "seven" in third["message"]

    def status(*options):
        code = "from forebay._cli import main; main()"
        command = [sys.executable, "-c", code, "status", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def is_reported():
        told = [job["bad_samples"] for job in json.loads(status("--json"))["jobs"]]
        return {"counts": {"BadSample": 3}, "last": bad["last"]} in told

    # The daemon reports it while the loader goes on; each look starts a process.
    assert any(is_reported() for _ in range(20))
    (job,) = (job for job in json.loads(status("--json"))["jobs"] if job["name"] == "spoilt job")
    assert [list(reasons) for reasons in job["decoders"].values()] == [["no_device"]]
    text = status()
    assert re.search(r"decoded: \d+ by cpu \(no_device\)", text)
    assert "skipped: 3 BadSample" in text
    assert all(one["key"] in text for one in bad["last"])
    # The learnt sample counts end the job; the next epoch opens it again.
    assert list(iteration) == []
    assert not json.loads(status("--json"))["jobs"]
    iter(loader)
    assert any(is_reported() for _ in range(20))


def test_stats_list_only_the_last_16_skipped_samples(make, shard_of):
    samples = [(f"s{number:05}", {"cls": b"no number"}) for number in range(40)]
    loader = make(shard_of(samples), fields={"label": forebay.Int("cls")}, on_error="skip")
    assert sum(len(batch["label"]) for batch in loader) == 0
    bad = loader.stats()["bad"]
    assert bad["by_kind"] == {"BadSample": 40}
    assert [one["key"] for one in bad["last"]] == [f"s{number:05}" for number in range(24, 40)]


def test_repeated_key_is_another_sample(make, shard_of):
    once = shard_of([sample(1)])
    again = shard_of([sample(1), sample(2), sample(1)])
    (batch,) = make([once, again], fields={"label": forebay.Int("cls")})
    assert batch["label"].tolist() == [1, 1, 2, 1]
    assert len(batch["__key__"]) == 4


def test_on_error_stop_ends_only_the_epoch(make, spoilt):
    loader = make(spoilt, fields=FIELDS, batch_size=2, on_error="stop")
    for epoch in range(2):
        assert loader.epoch == epoch
        assert [batch["label"].tolist() for batch in loader] == [[0, 1]]
    several = make(epoch_samples=8, rank=0, world_size=2, on_error="stop")
    with pytest.raises(forebay.Invalid, match="ranks or workers"):
        iter(several)


def test_stopping_handler_is_rejected_if_ranks_would_wait(make, spoilt):
    options = {"fields": FIELDS, "on_error": lambda error: "stop", "epoch_samples": 10}
    alone = make(spoilt, batch_size=2, rank=0, world_size=1, **options)
    assert [batch["label"].tolist() for batch in alone] == [[0, 1]]
    several = iter(make(spoilt, batch_size=1, rank=0, world_size=2, **options))
    assert next(several)["label"].tolist() == [0]
    with pytest.raises(forebay.Invalid, match="ranks or workers"):
        next(several)


def test_error_beyond_max_errors_is_raised(make, spoilt):
    loader = make(spoilt, fields=FIELDS, batch_size=2, on_error="skip", max_errors=2)
    with pytest.raises(forebay.BadSample, match="max_errors=2"):
        list(loader)
    assert len(list(make(spoilt, fields=FIELDS, on_error="skip", max_errors=3))) == 3


def test_handler_decides_for_each_error(make, spoilt):
    seen = []

    def decide(error):
        seen.append(error.places["key"])
        return "skip" if len(seen) < 3 else "raise"

    with pytest.raises(forebay.BadSample, match="s00007"):
        list(make(spoilt, fields=FIELDS, batch_size=2, on_error=decide))
    assert seen == ["s00002", "s00005", "s00007"]
    with pytest.raises(forebay.Invalid, match="'ignore'"):
        list(make(spoilt, fields=FIELDS, on_error=lambda error: "ignore"))


def test_missing_field_error_lists_the_present_fields(make):
    with pytest.raises(forebay.BadSample, match=r"no field .nope..*it has .*cls") as caught:
        list(make(fields={"label": forebay.Int("nope")}))
    assert caught.value.places["field"] == "label"


@pytest.mark.parametrize("tail", [{"pad_last": True}, {}], ids=["padded", "even"])
def test_bad_sample_repeated_as_padding_counts_once(make, shard_of, tail):
    samples = [sample(number) for number in range(2)]
    # The last two ranks repeat these samples, and so does padding of the first two.
    samples[0][1]["cls"] = b"no number"
    url, had = shard_of(samples), []
    for rank in range(4):
        loader = make(
            url,
            fields={"label": forebay.Int("cls")},
            epoch_samples=2,
            rank=rank,
            world_size=4,
            on_error="skip",
            max_errors=1,
            **tail,
        )
        (batch,) = list(loader)
        had.append((loader.stats()["errors"], batch["label"][batch["__valid__"]].tolist()))
    assert had == [(1, []), (0, [1]), (0, []), (0, [])]


@pytest.mark.parametrize("workers", [0, 3])
def test_errors_count_once_across_prefetch_and_restart(make, shard_of, workers):
    samples = [sample(number) for number in range(12)]
    for number in (2, 5, 8, 11):
        samples[number][1]["cls"] = b"no number"
    seen, failures = [], []

    def decide(error):
        seen.append(error.places["key"])
        return "skip"

    def transform(batch):
        if batch["label"][0] == 3 and len(failures) < 3:
            failures.append(1)
            raise RuntimeError("again")
        return batch

    loader = make(
        shard_of(samples),
        fields={"label": forebay.Int("cls")},
        batch_size=3,
        on_error=decide,
        max_errors=4,
        workers=workers,
        transform=transform,
    )
    iteration = iter(loader)
    labels = next(iteration)["label"].tolist()
    # The handler has not seen the errors of batches that are only prefetched.
    assert seen == ["s00002"]
    assert {name: loader.stats()[name] for name in ("batches", "samples", "errors")} == {
        "batches": 1,
        "samples": 2,
        "errors": 1,
    }
    for _ in range(3):
        with pytest.raises(RuntimeError, match="again"):
            next(iteration)
    for batch in iteration:
        labels += batch["label"].tolist()
    assert labels == [0, 1, 3, 4, 6, 7, 9, 10]
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["errors"]) == (4, 8, 4)
    assert seen == ["s00002", "s00005", "s00008", "s00011"]


def test_repeated_bad_sample_counts_each_time(make, shard_of):
    samples = [sample(number) for number in range(2)]
    samples[0][1]["cls"] = b"no number"
    seen = []

    def decide(error):
        seen.append(error.places["key"])
        return "skip"

    options = {"fields": {"label": forebay.Int("cls")}, "batch_size": 2, "epoch_samples": 6}
    loader = make(shard_of(samples), on_error=decide, **options)
    assert [batch["label"].tolist() for batch in loader] == [[1], [1], [1]]
    assert seen == ["s00000"] * 3
    assert loader.stats()["errors"] == 3
    limited = iter(make(shard_of(samples), on_error="skip", max_errors=1, **options))
    assert next(limited)["label"].tolist() == [1]
    with pytest.raises(forebay.BadSample, match="error 2 of this epoch, above max_errors=1"):
        next(limited)


def test_missing_shard_is_named_in_the_error(make, tmp_path):
    missing = str(tmp_path / "missing.tar")
    with pytest.raises(forebay.NotFound, match=r"missing\.tar") as caught:
        list(make(missing))
    assert caught.value.places["url"] == missing


def test_truncated_shard_error_names_url_and_offset(make, shards, tmp_path):
    whole = Path(shards[0]).read_bytes()
    broken = tmp_path / "broken.tar"
    broken.write_bytes(whole[: len(whole) // 2 + 100])
    with pytest.raises(forebay.Corrupt, match=r"broken\.tar") as caught:
        list(make(str(broken)))
    assert int(caught.value.places["offset"]) > 0
    keys = [key for batch in make(str(broken), on_error="skip") for key in batch["__key__"]]
    assert keys == [f"s{number:05}" for number in range(len(keys))]
    assert 3 <= len(keys) < 10


def test_wrong_checksum_is_reported_after_the_samples(make, shard_of, tmp_path):
    dice = numpy.random.default_rng(7)
    large = [(f"s{number:05}", {"bin": dice.bytes(1 << 20)}) for number in range(24)]
    packed = bytearray(gzip.compress(Path(shard_of(large)).read_bytes(), compresslevel=1))
    # The stream's checksum is at its end, behind the few samples that are read.
    packed[-5] ^= 0x10
    wrong = tmp_path / "wrong.tar.gz"
    wrong.write_bytes(packed)
    options = {"fields": {"bin": forebay.Bytes("bin")}, "batch_size": 2, "epoch_samples": 2}
    with pytest.raises(forebay.Corrupt) as caught:
        list(make(str(wrong), **options))
    assert caught.value.places["url"] == str(wrong)
    loader = make(str(wrong), on_error="skip", **options)
    assert [batch["__key__"] for batch in loader] == [["s00000", "s00001"]]
    assert loader.stats()["errors"] == 1


IMAGE = {"image": forebay.Image("png", size=8)}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "whole number"),
        ({"batch_size": True}, "batch_size"),
        ({"shuffle": "yes"}, "'global'"),
        ({"window": 0}, "window"),
        ({"seed": -1}, "seed"),
        ({"drop_last": True, "pad_last": True}, "exclude"),
        ({"epoch_samples": 0}, "epoch_samples"),
        ({"on_error": "ignore"}, "'skip'"),
        ({"max_errors": -1, "on_error": "skip"}, "max_errors"),
        ({"max_errors": 3}, "on_error='raise' skips none"),
        ({"max_errors": 3, "on_error": "stop"}, "max_errors"),
        ({"urls": "pipe:cat /data/{0..3}.tar"}, "allow_pipe=True"),
        ({"urls": ["/a.tar", " PIPE:cat x"]}, "allow_pipe=True"),
        ({"urls": "pipe:", "allow_pipe": True}, "followed by the command"),
        ({"urls": "/a.tar", "allow_pipe": "yes"}, "allow_pipe"),
        ({"rank": 0}, "together"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"lanes": 0}, "lanes"),
        ({"split": "random"}, "static"),
        ({"uneven": True}, "belongs to split=.dynamic"),
        ({"device": "cuda:0", "framework": "torch"}, r"\.to\(\)"),
        ({"device": "cuda", "fields": IMAGE, "framework": "numpy"}, "NumPy has no memory"),
        (
            {"device": "cuda", "fields": IMAGE, "framework": "torch"}
            | {"workers": 1, "worker_type": "process"},
            "worker_type='thread'",
        ),
        ({"device": "tpu"}, "'cuda:0'"),
        ({"device": "cuda:x"}, "'cuda:0'"),
        ({"framework": "tensorflow"}, "'torch'"),
        ({"framework": "numpy", "pin_memory": True}, "pin_memory"),
        ({"prefetch": 0}, "prefetch"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "3"}, "timeout"),
        ({"batch_size": 10**5000}, "batch_size"),
        ({"seed": -(10**5000)}, "seed"),
        ({"timeout": 10**5000}, "timeout"),
        ({"drop_last": "no"}, "drop_last"),
        ({"pad_last": None}, "pad_last"),
        ({"pin_memory": "no"}, "pin_memory"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"shuffle": 3}, "shuffle"),
        ({"job": 3}, "job"),
        ({"job": "\ud800"}, "job"),
        ({"manifest": 3}, "manifest"),
        ({"urls": b"/a.tar"}, "urls"),
        ({"urls": ["/\udce4.tar"]}, "UTF-8"),
        ({"fields": {"\ud800": forebay.Int("cls")}}, "name of a field"),
        ({"daemon": "tcp://host"}, "unix:"),
        ({"workers": -1}, "workers"),
        ({"worker_type": "fork"}, "'process'"),
        ({"worker_type": "process"}, "give their number"),
        ({"worker_type": "process", "workers": 1, "framework": "jax"}, "device_put"),
        ({"worker_type": "process", "workers": 1, "transform": lambda batch: batch}, "transform="),
        ({"worker_type": "process", "workers": 1, "select": lambda sample: True}, "select="),
        (
            {
                "worker_type": "process",
                "workers": 1,
                "fields": {"label": forebay.Int("cls", map=lambda label: label)},
            },
            "map of field 'label'",
        ),
        ({"select": 3}, "select="),
        ({"transform": 3}, "transform"),
        ({"urls": []}, "URL list"),
        ({"urls": 7}, "list of URLs"),
        ({"urls": "https://h/*.tar"}, "braces"),
        ({"urls": "/nowhere/{0..", "framework": None}, "urls"),
    ],
)
def test_invalid_argument_is_rejected_with_advice(make, options, word):
    with pytest.raises(forebay.Invalid, match=word) as caught:
        make(**options)
    assert isinstance(caught.value, ValueError)


def test_manifest_without_a_shard_is_rejected(make, manifest, shards, tmp_path):
    with pytest.raises(forebay.Invalid, match="does not list"):
        make([*shards, str(tmp_path / "new.tar")], manifest=manifest)
    assert make(shards[1:3], manifest=manifest).num_samples == 20
    with pytest.raises(forebay.NotFound, match=r"nowhere\.json"):
        make(manifest=str(tmp_path / "nowhere.json"))


def test_several_ranks_without_sample_counts_are_rejected(make):
    with pytest.raises(forebay.Invalid, match="forebay index"):
        iter(make(rank=0, world_size=2))


def test_unknown_url_scheme_is_rejected(make):
    with pytest.raises(forebay.Invalid, match="ftp"):
        list(make("ftp://host/a.tar"))


def test_closed_loader_rejects_use_but_keeps_its_state(make):
    loader = make()
    iteration = iter(loader)
    next(iteration)
    state = loader.state_dict()
    loader.close()
    loader.close()
    for use in (lambda: iter(loader), lambda: next(iteration)):
        with pytest.raises(forebay.Closed, match="make a new one"):
            use()
    assert loader.state_dict() == state
    assert loader.stats()["batches"] == 1
    assert "closed" in repr(loader)


def test_every_error_kind_has_a_picklable_class():
    kinds = [name for name in errors.__all__ if name != "ForebayError"]
    assert len(kinds) == 8
    for name in kinds:
        error = getattr(forebay, name)("what happened", {"url": "u"})
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.kind, str(copy)) == (type(error), name, "what happened")
        assert copy.places == {"url": "u"}


def test_stats_account_for_every_wait(make):
    loader = make(fields=FIELDS)
    assert loader.stats()["batches"] == 0
    list(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["errors"]) == (15, 60, 0)
    assert stats["decoders"] == {"cpu": {"no_device": 60}}
    padded = make(fields=FIELDS, batch_size=7, pad_last=True, epoch_samples=60)
    assert sum(len(batch["label"]) for batch in padded) == 63
    assert padded.stats()["samples"] == 60
    for fields in (None, {"label": FIELDS["label"]}):
        plain = make(fields=fields)
        list(plain)
        assert (plain.stats()["samples"], plain.stats()["decoders"]) == (60, {})
    wait = stats["wait"]
    assert sum(wait["by_cause"].values()) == pytest.approx(wait["total_seconds"])
    causes = {"origin", "index", "tier_read", "ring_empty", "decode", "h2d", "slab", "peer"}
    assert set(wait["by_cause"]) == causes
    assert sum(stats["bytes"].values()) > 0


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "3"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, (0, 1)),
        (
            {
                "RANK": "5",
                "WORLD_SIZE": "6",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "SLURM_STEP_ID": "0",
            },
            (5, 6),
        ),
    ],
)
def test_rank_comes_from_arguments_then_torch_then_slurm(monkeypatch, env, place):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert ranks.resolve(None, None)[:2] == place
    assert ranks.resolve(1, 4)[:2] == (1, 4)


def test_invalid_rank_variable_is_rejected(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(forebay.Invalid, match="RANK is 'first'"):
        ranks.resolve(None, None)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(forebay.Invalid, match="rank 2"):
        ranks.resolve(None, None)


def test_decode_threads_are_a_fair_share_of_usable_cores(monkeypatch):
    monkeypatch.setattr(ranks._native, "cores", lambda: 12)
    assert ranks.threads({}) == 12
    assert ranks.threads({"LOCAL_WORLD_SIZE": "5"}) == 2
    assert ranks.threads({"LOCAL_WORLD_SIZE": "100"}) == 1
    assert ranks.threads({"LOCAL_WORLD_SIZE": "5", "FOREBAY_DECODE_THREADS": "7"}) == 7


def test_cores_outside_the_affinity_do_not_count():
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from forebay import ranks\n"
        "sys.exit(ranks.threads({}) != 1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("client", [None, object()])
def test_rank_is_found_with_a_jax_that_does_not_tell_its_state(monkeypatch, client):
    monkeypatch.setattr(ranks, "_torch", lambda: None)
    jax = types.SimpleNamespace(
        distributed=types.SimpleNamespace(), process_index=lambda: 1, process_count=lambda: 2
    )
    state = types.SimpleNamespace(global_state=types.SimpleNamespace(client=client))
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", state)
    assert ranks.resolve(None, None)[:2] == ((0, 1) if client is None else (1, 2))


def test_tensors_in_tuples_are_pinned(monkeypatch):
    class Tensor:
        device = types.SimpleNamespace(type="cpu")
        is_pinned = False

        def pin_memory(self):
            pinned = Tensor()
            pinned.is_pinned = True
            return pinned

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    pair = collections.namedtuple("pair", ["image", "labels"])
    made = _batch._pinned({"both": pair(Tensor(), [Tensor()]), "also": (Tensor(), 1)})
    assert isinstance(made["both"], pair)
    assert made["both"].image.is_pinned
    assert made["both"].labels[0].is_pinned
    assert (made["also"][0].is_pinned, made["also"][1]) == (True, 1)


def test_pin_memory_without_torch_warns_and_is_ignored(shards):
    code = (
        "import sys, forebay\n"
        "loader = forebay.DataLoader(sys.argv[1], batch_size=4, pin_memory=True, timeout=60.0)\n"
        "print(len(list(loader)), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, shards[0]]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout == "3 False\n"
    assert "numpy cannot pin memory" in ran.stderr
