"""Filters over the columns of a member index, on a real S3 server: chosen samples, order, states,
other world sizes, and errors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import forebay
from conftest import write_shard
from forebay import _native
from forebay._launch import command

FIELDS = {"label": forebay.Int("cls")}
COUNTS = (9, 4, 0, 30, 17)
WHERE = "width >= 512 and nsfw < 0.1"
# The shard of which no sample passes.
NONE = 1


def document(number: int, shard: int) -> dict[str, object]:
    """Return the JSON of a sample; every fifth has no nsfw."""
    wide = shard != NONE and number % 3 > 0
    found: dict[str, object] = {"width": 512 + number if wide else number, "lang": "de"}
    if number % 5:
        found |= {"nsfw": (number % 7) / 40, "caption": "é" * number, "lang": "en"}
    return found


def passes(number: int, shard: int) -> bool:
    found = document(number, shard)
    return found["width"] >= 512 and found.get("nsfw", 1.0) < 0.1


def key(number: int, shard: int) -> str:
    return f"{shard}-{number:03}"


PASSING = [
    key(number, shard)
    for shard, count in enumerate(COUNTS)
    for number in range(count)
    if passes(number, shard)
]


def run(*arguments: object) -> int:
    return _native.main([str(argument) for argument in arguments], command())


def write(folder: Path) -> list[str]:
    """Write the shards; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, count in enumerate(COUNTS):
        samples = [
            (
                key(number, shard),
                {
                    "cls": b"%d" % number,
                    "json": json.dumps(document(number, shard)).encode(),
                    "txt": b"t" * number,
                },
            )
            for number in range(count)
        ]
        write_shard(folder / f"{shard}.tar", samples)
    return [f"{shard}.tar" for shard in range(len(COUNTS))]


@pytest.fixture(scope="module")
def data(store, tmp_path_factory):
    """Shards in a bucket, with manifest and member index, as arguments of a loader."""
    bucket, environment = store
    names = write(bucket / "where")
    urls = [f"s3://bucket/where/{name}" for name in names]
    manifest = tmp_path_factory.mktemp("where") / "m.json"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        columns = ("--columns", "json:width,nsfw,caption.len,lang", "--columns", "cls")
        assert run("index", *urls, "-o", manifest, *columns, "--columns", "txt.len") == 0
        yield {"urls": urls, "manifest": str(manifest)}


def keys(loader):
    return [
        key
        for batch in loader
        for key, valid in zip(batch["__key__"], batch["__valid__"], strict=True)
        if valid
    ]


def loader(data, **options):
    settings = {"batch_size": 4, "fields": FIELDS, "framework": "numpy", "timeout": 60.0}
    return forebay.DataLoader(**(data | settings | options))


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_epoch_has_the_samples_that_pass(data, shuffle):
    with loader(data, where=WHERE, shuffle=shuffle, window=2, seed=3) as filtered:
        assert filtered.num_samples == len(PASSING)
        assert len(filtered) == -(-len(PASSING) // 4)
        first, second = keys(filtered), keys(filtered)
    assert sorted(first) == sorted(second) == sorted(PASSING)
    assert (first == PASSING) == (shuffle is False)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("caption.len is null", lambda number, _: number % 5 == 0),
        ("lang in ('de', 'fr')", lambda number, _: number % 5 == 0),
        ("cls between 3 and 5 or txt.len > 20", lambda number, _: 3 <= number <= 5 or number > 20),
        ("not caption.len >= 2", lambda number, _: number % 5 == 0 or number < 2),
    ],
)
def test_columns_come_from_members(data, where, expected):
    wanted = [
        key(number, shard)
        for shard, count in enumerate(COUNTS)
        for number in range(count)
        if expected(number, shard)
    ]
    with loader(data, where=where) as filtered:
        assert keys(filtered) == wanted


def test_ranks_of_other_worlds_go_on_exactly(data):
    options = {"where": WHERE, "shuffle": True, "seed": 7, "batch_size": 2}
    seen = []
    for rank in range(2):
        with loader(data, rank=rank, world_size=2, **options) as part:
            batches = iter(part)
            for _ in range(2):
                batch = next(batches)
                seen += list(batch["__key__"])
            state = json.loads(json.dumps(part.state_dict()))
    for rank in range(3):
        with loader(data, rank=rank, world_size=3, **options) as part:
            part.load_state_dict(state)
            seen += keys(part)
    assert sorted(seen) == sorted(PASSING)


@pytest.mark.parametrize("other", [None, "width >= 512"])
def test_state_of_another_filter_is_rejected(data, other):
    with loader(data, where=WHERE) as one, loader(data, where=other) as two:
        with pytest.raises(forebay.Invalid) as caught:
            two.load_state_dict(one.state_dict())
        assert caught.value.places["option"] == "where"


def test_streams_are_filtered_together_and_alone(data):
    stream = forebay.Stream(data["urls"], manifest=data["manifest"], where="cls < 20")
    other = forebay.Stream(data["urls"], manifest=data["manifest"])
    few = [key for key in PASSING if int(key[-3:]) < 20]
    with loader({"urls": [stream, other]}, where=WHERE) as mixed:
        assert mixed.num_samples == len(few) + len(PASSING)
        assert sorted(keys(mixed)) == sorted(few + PASSING)
    with loader({"urls": [stream, other]}) as mixed:
        assert mixed.num_samples == sum(COUNTS) + sum(min(count, 20) for count in COUNTS)


def test_dynamic_split_reads_passing_samples(data):
    options = {"rank": 0, "world_size": 1, "job": "where-dynamic"}
    with loader(data, where=WHERE, split="dynamic", **options) as shared:
        assert sorted(keys(shared)) == sorted(PASSING)
        state = shared.state_dict()
    other = loader(data, where="width >= 512", split="dynamic", **options)
    with other, pytest.raises(forebay.Invalid):
        other.load_state_dict(state)


def test_indexed_samples_are_those_that_pass(data):
    with forebay.IndexedDataset(**data, fields=FIELDS, framework="numpy", where=WHERE) as dataset:
        assert len(dataset) == len(PASSING)
        assert [sample["__key__"] for sample in dataset] == PASSING
        assert list(dataset[[3, -1]]["__key__"]) == [PASSING[3], PASSING[-1]]


def test_shard_without_passing_samples_is_not_opened(data, store, home):
    shard = store[0] / "where" / f"{NONE}.tar"
    away = shard.with_suffix(".away")
    shard.rename(away)
    try:
        with loader(data, where=WHERE, shuffle=True) as filtered:
            assert sorted(keys(filtered)) == sorted(PASSING)
        with loader(data, on_error="raise") as whole, pytest.raises(forebay.NotFound):
            keys(whole)
    finally:
        away.rename(shard)


@pytest.mark.parametrize("in_place", [False, True])
def test_index_of_another_version_is_rejected(tmp_path, home, in_place):
    names = write(tmp_path / "data")
    urls = [str(tmp_path / "data" / name) for name in names]
    manifest = tmp_path / "m.json"
    assert run("index", *urls, "-o", manifest, "--columns", "json:width") == 0
    # As many samples, in another order.
    samples = [
        (key(number, 0), {"cls": b"%d" % number, "json": b"{}", "txt": b""}) for number in range(9)
    ]
    write_shard(tmp_path / "data/0.tar", samples[::-1])
    arguments = {"urls": urls, "manifest": str(manifest)}
    if not in_place:
        # Another folder: the data set moved.
        shutil.copytree(tmp_path / "data", tmp_path / "moved")
        arguments["urls"] = [url.replace("/data/", "/moved/") for url in urls]
    filtered = loader(arguments, where="width >= 0")
    with filtered, pytest.raises(forebay.Invalid) as caught:
        keys(filtered)
    assert caught.value.places["url"].endswith("0.tar")
    assert {"listed", "found"} <= set(caught.value.places)


def test_moved_data_set_keeps_its_index(data, store, tmp_path, home):
    shutil.copytree(store[0] / "where", tmp_path / "here")
    urls = [str(tmp_path / "here" / Path(url).name) for url in data["urls"]]
    with loader(data | {"urls": urls}, where=WHERE) as moved:
        assert keys(moved) == PASSING


def test_packed_shards_have_a_member_index(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(7):
        (photos / f"{number}.cls").write_text(str(number))
        (photos / f"{number}.json").write_text(json.dumps({"width": number * 100}))
    pattern = tmp_path / "out-{:06d}.tar"
    columns = ("--columns", "json:width", "--columns", "cls")
    assert run("pack", photos, "-o", pattern, "--samples", 3, *columns) == 0
    urls = sorted(str(path) for path in tmp_path.glob("out-*.tar"))
    manifest = str(tmp_path / "out.json")
    with loader({"urls": urls, "manifest": manifest}, where="width > 250 and cls != 5") as packed:
        assert keys(packed) == ["3", "4", "6"]


@pytest.mark.parametrize(
    ("where", "places"),
    [
        ("widht >= 512", {"position": "1", "column": "widht", "meant": "width"}),
        ("width >= 512 and", {"position": "17"}),
        ("width >= 'a'", {"position": "10", "column": "width"}),
        ("lang > 'de'", {"column": "lang"}),
        ("width > 1e9", {"option": "where"}),
        (" ", {"option": "where"}),
        (3, {}),
    ],
)
def test_invalid_filter_is_rejected(data, where, places):
    with pytest.raises(forebay.Invalid) as caught:
        loader(data, where=where)
    found = caught.value.places
    assert {name: found.get(name) for name in places} == places


def test_filter_without_columns_names_what_there_is(data, tmp_path):
    with pytest.raises(forebay.Invalid) as caught:
        loader(data, where="height > 3")
    assert caught.value.places["columns"] == "width, nsfw, caption.len, lang, cls, txt.len"
    assert "forebay index --members --columns" in str(caught.value)
    bare = tmp_path / "m.json"
    shutil.copy(data["manifest"], bare)
    with pytest.raises(forebay.Invalid, match="--columns"):
        loader(data | {"manifest": str(bare)}, where=WHERE)
    with pytest.raises(forebay.Invalid, match="--columns"):
        loader({"urls": data["urls"]}, where=WHERE)
    # An index that was cut, or belongs to another manifest.
    members = Path(data["manifest"] + ".members").read_bytes()
    index = Path(str(bare) + ".members")
    index.write_bytes(members[:-1])
    with pytest.raises(forebay.ForebayError) as caught:
        loader(data | {"manifest": str(bare)}, where=WHERE)
    assert caught.value.places["path"] == str(index)
