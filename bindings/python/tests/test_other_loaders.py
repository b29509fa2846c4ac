"""Arguments, names and wrappers of torch's loader and webdataset: each error names our own way."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset

import forebay
from forebay import DataLoader, IndexedDataset, Invalid, Stream, WebDataset, WebLoader
from forebay import webdataset as ours
from forebay.webdataset import theirs

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("ended_workers"),
    # webdataset leaves files open until garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata's last release calls a deprecated function of torch.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


LABEL = {"label": forebay.Int("cls")}
ALL = [f"s{number:05}" for number in range(60)]


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "args", "kw", "kwargs"}


OURS = parameters(DataLoader)
TORCHS = sorted(parameters(torch.utils.data.DataLoader.__init__) - OURS - {"dataset"})
WEBDATASETS = sorted(parameters(webdataset.WebDataset) - OURS)

# Arguments that the sentence for each of torch's names.
NAMED = {
    "num_workers": "workers=",
    "collate_fn": "transform=",
    "sampler": "shuffle=",
    "batch_sampler": "shuffle=",
    "worker_init_fn": "transform=",
    "multiprocessing_context": "worker_type=",
    "generator": "seed=",
    "prefetch_factor": "prefetch=",
    "persistent_workers": "workers=",
    "pin_memory_device": "pin_memory=",
    "in_order": "workers=",
}


@pytest.mark.parametrize("name", TORCHS)
def test_argument_of_torch_names_ours(shards: list[str], name: str) -> None:
    for value in (None, 4):
        with pytest.raises(TypeError) as caught:
            DataLoader(shards, **{name: value})
        error = caught.value
        assert isinstance(error, Invalid)
        assert (error.kind, error.places["option"]) == ("Invalid", name)
        assert NAMED[name] in str(error)
        assert NAMED[name].rstrip("=") in OURS


@pytest.mark.parametrize("name", WEBDATASETS)
def test_argument_of_webdataset_is_answered(shards: list[str], name: str) -> None:
    with pytest.raises(TypeError) as caught:
        DataLoader(shards, **{name: True})
    assert isinstance(caught.value, Invalid)
    assert caught.value.places["option"] == name
    # Not the list of all arguments.
    assert "worker_type=" not in str(caught.value)


def test_misspelt_argument_is_asked_about(shards: list[str]) -> None:
    for made, wrong, right in (
        (DataLoader, "batchs_size", "batch_size="),
        (DataLoader, "shufle", "shuffle="),
        (IndexedDataset, "manifests", "manifest="),
        (WebDataset, "nodesplit", "nodesplitter="),
        (Stream, "weights", "weight="),
        (WebLoader, "num_worker", "num_workers="),
    ):
        with pytest.raises(TypeError, match=right) as caught:
            made(shards, **{wrong: 1})  # type: ignore[operator]
        assert isinstance(caught.value, Invalid)
        assert caught.value.places["option"] == wrong
    with pytest.raises(TypeError, match="worker_type="):
        DataLoader(shards, qqq=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (IndexedDataset, ["batch_size", "num_workers", "shuffle", "sampler", "transform"]),
        (WebDataset, ["batch_size", "num_workers", "collate_fn", "shuffle", "transform"]),
        (Stream, ["batch_size", "shuffle", "epoch_samples", "probability"]),
        (WebLoader, ["workers", "prefetch", "transform", "seed"]),
    ],
)
def test_other_classes_name_their_own_way(shards: list[str], made: Any, names: list[str]) -> None:
    for name in names:
        with pytest.raises(TypeError) as caught:
            made(shards, **{name: 4})
        assert isinstance(caught.value, Invalid)
        assert caught.value.places["option"] == name
        assert "did you mean" not in str(caught.value)


def test_arguments_by_position_are_named(shards: list[str]) -> None:
    for made in (DataLoader, IndexedDataset, Stream):
        with pytest.raises(TypeError, match="by name") as caught:
            made(shards, 4)  # type: ignore[operator]
        assert isinstance(caught.value, Invalid)
    with pytest.raises(TypeError):
        DataLoader()  # type: ignore[call-arg]
    # The signature stays visible to editors.
    assert "prefetch" in inspect.signature(DataLoader).parameters
    assert next(iter(inspect.signature(DataLoader).parameters)) == "urls"


def test_values_of_torch_are_rejected_by_name(shards: list[str]) -> None:
    for option, value in (("batch_size", None), ("timeout", 0), ("shuffle", None)):
        with pytest.raises(Invalid) as caught:
            DataLoader(shards, **{option: value})
        assert caught.value.places["option"] == option
    numbers = torch.utils.data.TensorDataset(torch.arange(4))
    for urls in (
        numbers,
        torch.utils.data.DataLoader(numbers),
        WebDataset(shards),
        webdataset.WebDataset(shards, shardshuffle=False),
    ):
        for made in (DataLoader, WebDataset, IndexedDataset):
            with pytest.raises(Invalid) as caught:
                made(urls)
            assert caught.value.places["option"] == "urls"


def test_shared_arguments_mean_the_same_as_in_torch(make: Callable[..., Any]) -> None:
    loader = make(fields=LABEL, batch_size=7, shuffle=True, drop_last=True, pin_memory=False)
    batches = list(loader)
    assert [len(batch["label"]) for batch in batches] == [7] * 8
    seen = [int(value) for batch in batches for value in batch["label"]]
    assert len(set(seen)) == 56
    assert seen != sorted(seen)


def test_missing_attribute_names_our_way(make: Callable[..., Any]) -> None:
    loader = make(fields=LABEL)
    for name in ("dataset", "sampler", "batch_sampler", "batch_size", "num_workers", "map"):
        assert not hasattr(loader, name)
        with pytest.raises(AttributeError) as caught:
            getattr(loader, name)
        assert isinstance(caught.value, Invalid)
        assert caught.value.places["name"] == name
    with pytest.raises(AttributeError, match="state_dict"):
        loader.state_dic  # noqa: B018
    assert getattr(loader, "_absent", None) is None


def missing_methods() -> set[str]:
    """Return what webdataset's data set and loader have, and ours have not."""
    theirs = (webdataset.WebDataset("x.tar", shardshuffle=False), webdataset.WebLoader([]))
    names = {name for one in theirs for name in dir(one)} - {"_", *dir(WebDataset)}
    # torch's loader has more, which does not come from webdataset.
    return {name for name in names if name[0] != "_"} | {"filter", "num_workers"}


@pytest.mark.parametrize("name", sorted(missing_methods()))
def test_missing_method_of_a_chain_names_our_way(shards: list[str], name: str) -> None:
    chain = WebDataset(shards)
    for one in (chain, chain.shuffle(10), WebLoader(chain, batch_size=None)):
        assert not hasattr(one, name)
        with pytest.raises(AttributeError) as caught:
            getattr(one, name)
        assert isinstance(caught.value, Invalid)
        assert ": " in str(caught.value)
    with pytest.raises(AttributeError, match="map_tuple"):
        chain.map_tupel  # noqa: B018


# torch's loader around ours


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}])
@pytest.mark.parametrize("counted", [True, False])
def test_torch_around_our_loader_names_the_way(
    make: Callable[..., Any], manifest: str, options: Any, counted: bool
) -> None:
    loader = make(fields=LABEL, manifest=manifest if counted else None)
    with pytest.raises(TypeError, match=r"forebay\.torch\.IterableDataset") as caught:
        list(torch.utils.data.DataLoader(loader, **options))
    assert isinstance(caught.value, Invalid)
    with pytest.raises(TypeError, match=r"forebay\.IndexedDataset"):
        loader[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_torch_may_not_batch_our_batches(shards: list[str], manifest: str, workers: int) -> None:
    from forebay.torch import IterableDataset

    dataset = IterableDataset(shards, batch_size=4, fields=LABEL, manifest=manifest, timeout=60.0)
    for options in ({}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}):
        loader = torch.utils.data.DataLoader(dataset, num_workers=workers, **options)
        with pytest.raises(Invalid, match="batch_size=None") as caught:
            list(loader)
        assert workers or caught.value.places["option"] == "batch_size"
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert [tuple(batch["label"].shape) for batch in loader] == [(4,)] * 15
    # Without any loader around it, too.
    assert len(list(dataset)) == 15


class Bare(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    """A naive wrapper, as a user might write it."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Rows(Bare):
    """A wrapper that takes the batches apart."""

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield from batch["label"]


@pytest.mark.parametrize("workers", [0, 1])
def test_torch_may_not_batch_a_wrapped_loader(make: Callable[..., Any], workers: int) -> None:
    def loader(dataset: Any, **options: Any) -> Any:
        return torch.utils.data.DataLoader(dataset, num_workers=workers, **options)

    ours = make(fields=LABEL, framework="torch")
    for options in ({}, {"batch_size": 2, "drop_last": True}):
        with pytest.raises(Invalid, match="batch_size=None"):
            list(loader(Bare(ours), **options))
    assert [len(batch["label"]) for batch in loader(Bare(ours), batch_size=None)] == [4] * 15
    assert [len(batch) for batch in loader(Rows(ours), batch_size=30)] == [30, 30]


def test_stateful_dataloader_may_not_batch_our_batches(shards: list[str], manifest: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    from forebay.torch import IterableDataset

    dataset = IterableDataset(shards, batch_size=4, manifest=manifest, timeout=60.0)
    with pytest.raises(Invalid, match="batch_size=None"):
        list(stateful.StatefulDataLoader(dataset))


# Names of webdataset

PUBLIC = sorted(name for name in dir(webdataset) if not name.startswith("_"))


INSTEAD = [name for name in PUBLIC if name in theirs._INSTEAD]


def test_name_of_webdataset_is_found_or_answered() -> None:
    assert len(PUBLIC) > 80
    for name in set(PUBLIC) - set(INSTEAD):
        scope: dict[str, Any] = {}
        exec(f"from forebay.webdataset import {name}", scope)
        assert scope[name] is getattr(ours, name)
        # A module of ours must not hide a function of theirs.
        theirs_is_module = inspect.ismodule(getattr(webdataset, name))
        assert inspect.ismodule(scope[name]) == theirs_is_module, name


@pytest.mark.parametrize("name", INSTEAD)
def test_name_of_webdataset_names_our_own_way(name: str) -> None:
    assert not hasattr(ours, name)
    with pytest.raises(AttributeError) as missing:
        getattr(ours, name)
    with pytest.raises(ImportError) as unimported:
        exec(f"from forebay.webdataset import {name}")
    for error in (missing.value, unimported.value):
        assert isinstance(error, Invalid)
        assert (error.kind, error.places["name"]) == ("Invalid", name)
        assert str(error) == str(missing.value)
        assert theirs._INSTEAD[name] in str(error)


def test_unknown_name_stays_an_attribute_error() -> None:
    assert not hasattr(ours, "nonsense")
    with pytest.raises(ImportError):
        exec("from forebay.webdataset import nonsense")
    with pytest.raises(ImportError):
        importlib.import_module("forebay.webdataset.nonsense")


def test_names_without_webdataset_say_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(AttributeError, match="install webdataset") as caught:
        ours.ShardWriter  # noqa: B018
    assert isinstance(caught.value, Invalid)
    with pytest.raises(ImportError, match="install webdataset"):
        exec("from forebay.webdataset import TarWriter")


def test_writers_make_shards_for_the_chain(tmp_path: Path) -> None:
    with ours.ShardWriter(f"{tmp_path}/%06d.tar", maxcount=3, verbose=0) as sink:
        for number in range(7):
            sink.write({"__key__": f"k{number}", "cls": number, "txt": f"t{number}"})
    data = WebDataset(f"{tmp_path}/{{000000..000002}}.tar", timeout=60.0)
    assert [sample["cls"] for sample in data.decode()] == list(range(7))
    with ours.TarWriter(f"{tmp_path}/one.tar") as sink:
        sink.write({"__key__": "k", "cls": 5})
    assert [sample["__key__"] for sample in WebDataset(f"{tmp_path}/one.tar")] == ["k"]


def number_of(sample: Any) -> int:
    return int(sample["__key__"][1:])


def below_ten(number: int) -> bool:
    return number < 10


def test_stages_of_webdataset_work_on_our_chain(shards: list[str]) -> None:
    def data() -> WebDataset:
        return WebDataset(shards, timeout=60.0)

    assert [sample["cls"] for sample in data().compose(ours.decode())] == list(range(60))
    stages = (ours.map(number_of), ours.select(below_ten), ours.batched(4, collation_fn=None))
    assert list(data().compose(*stages)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    shuffled = [number_of(sample) for sample in data().compose(ours.shuffle(20))]
    assert sorted(shuffled) == list(range(60))
    assert shuffled != sorted(shuffled)
    pipeline = ours.DataPipeline(data(), ours.to_tuple("__key__"), ours.slice(5))
    assert list(pipeline) == [(key,) for key in ALL[:5]]
    mixed = ours.RoundRobin([data(), data()], longest=True)
    assert [number_of(sample) for sample in mixed] == [n for n in range(60) for _ in range(2)]
    drawn = ours.RandomMix([data(), data()], longest=True)
    assert sorted(number_of(sample) for sample in drawn) == sorted([*range(60)] * 2)
    assert sum(1 for _ in itertools.islice(ours.repeatedly(data()), 70)) == 70
    assert list(ours.MockDataset({"a": 1}, 2)) == [{"a": 1}] * 2
