r"""DLIO's data loader over Forebay: the reference MLPerf Storage benchmark drives it.

    dlio_benchmark workload=resnet50_h100 ++workload.framework=pytorch \
        ++workload.dataset.format=jpeg ++workload.dataset.num_samples_per_file=1 \
        ++workload.reader.data_loader=custom ++workload.reader.data_loader_sampler=none \
        ++workload.reader.data_loader_classname=forebay.dlio.ForebayDataLoader \
        '++workload.forebay.train="s3://bucket/train-{000000..000099}.tar"'

DLIO does not know tars. It counts its data set's files to size an epoch; the shards, made of these
files by ``forebay pack`` or of anything else, must hold at least as many samples.

DLIO gets what it asks for, or an error. Unsupported options are rejected by name, and an epoch that
ends too early is an error.

Written for dlio_benchmark 2.0.0. ``import forebay`` imports nothing of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from dlio_benchmark.common.enumerations import (  # type: ignore[import-not-found]
    DataLoaderType,
    DatasetType,
)
from dlio_benchmark.data_loader.base_data_loader import (  # type: ignore[import-not-found]
    BaseDataLoader,
)

from forebay.errors import Invalid
from forebay.fields import Bytes, Field, Image, Npy
from forebay.loader import DataLoader

__all__ = ["ForebayDataLoader"]

# Keys of the workload's section `forebay`.
_KEYS = frozenset({"train", "valid", "train_manifest", "valid_manifest", "field", "decode"})
# Formats that DLIO's own readers decode, with their extensions in shards.
_DECODED = {"jpeg": "jpg;jpeg", "png": "png", "npy": "npy"}
# DLIO's own value for 0.
_PREFETCH = 2


class ForebayDataLoader(BaseDataLoader):  # type: ignore[misc]
    """A `forebay.DataLoader` with the workload's settings.

    ``batch_size``, ``prefetch_size``, ``seed`` and the ranks are DLIO's; ``file_shuffle`` or
    ``sample_shuffle`` mean ``shuffle=True``. ``read_threads`` has no effect: the daemon reads, and
    threads of this process decode, one per CPU. The workload's section ``forebay`` has these keys:

    ``train``, ``valid``
        URLs of shards, one text with braces or a list.
    ``train_manifest``, ``valid_manifest``
        Files made by ``forebay index``; several ranks need them.
    ``decode``
        True decodes samples as DLIO's own readers do: images to uint8 of DLIO's
        ``record_length_resize``
        (a square of as many bytes), arrays as they are. Default: for the formats jpeg, png and npy.
        Otherwise samples are bytes, in shared memory.
    ``field``
        Extension in the shards, if it is not the format's name.

    Raises
    ------
    Invalid
        For settings that are missing, unknown, or unsupported.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.CUSTOM)
        self._name = "train" if dataset_type is DatasetType.TRAIN else "valid"
        self._loader: DataLoader | None = None

    def read(self) -> None:
        """Open the loader, once before the first epoch."""
        args, settings = self._args, _settings()
        if args.preprocess_time or args.preprocess_time_stdev:
            raise Invalid(
                "DLIO's reader.preprocess_time makes its own readers sleep, and samples are"
                " really decoded here: leave it out",
                {"option": "reader.preprocess_time"},
            )
        urls = settings.get(self._name)
        if urls is None:
            raise Invalid(
                f"the workload names no shards: ++workload.forebay.{self._name}="
                "'\"s3://bucket/train-{000000..000099}.tar\"'",
                {"option": f"forebay.{self._name}"},
            )
        shuffled = any(str(kind) != "off" for kind in (args.file_shuffle, args.sample_shuffle))
        self._loader = DataLoader(
            urls if isinstance(urls, str) else list(urls),
            batch_size=self.batch_size,
            fields={"sample": _field(self.format_type.value, args.max_dimension, settings)},
            shuffle=shuffled,
            seed=args.seed,
            drop_last=True,
            manifest=settings.get(f"{self._name}_manifest"),
            rank=args.my_rank,
            world_size=args.comm_size,
            prefetch=args.prefetch_size or _PREFETCH,
            # DLIO looks at no byte of a batch: Forebay has to have read them.
            verify="always",
            job=f"dlio-{args.model}",
        )
        # DLIO never closes a loader: it ends with this object, or with the process.
        weakref.finalize(self, self._loader.close)

    def next(self) -> Iterator[Any]:
        """Play one epoch; DLIO takes as many batches as it counted, and ignores the rest."""
        loader = self._loader
        if loader is None:
            raise Invalid("next() before read()")
        if not self._args.seed_change_epoch:
            loader.set_epoch(0)
        expected, batches = self.num_samples // (self.batch_size * self._args.comm_size), 0
        for batch in loader:
            batches += 1
            yield batch["sample"]
        if batches < expected:
            raise Invalid(
                f"the shards gave {batches} batches of {self.batch_size} to each of"
                f" {self._args.comm_size} ranks, and DLIO counts {expected}: num_files_{self._name}"
                " times num_samples_per_file has to be the number of samples in them",
                {"option": f"forebay.{self._name}"},
            )

    def finalize(self) -> None:
        """Do nothing: DLIO calls it after each epoch, and the job continues with the next.

        The loader is closed when DLIO drops this object, at the end of its process at the latest.
        """


def _settings() -> Mapping[str, Any]:
    """Return the workload's section `forebay`, which DLIO itself does not keep."""
    from hydra import compose  # type: ignore[import-not-found]
    from hydra.core.hydra_config import HydraConfig  # type: ignore[import-not-found]
    from omegaconf import OmegaConf  # type: ignore[import-not-found]

    run = HydraConfig.get()
    config = compose(run.job.config_name, overrides=list(run.overrides.task))
    section: dict[str, Any] = OmegaConf.to_container(config.workload).get("forebay") or {}
    if unknown := sorted(section.keys() - _KEYS):
        raise Invalid(
            f"unknown in the workload's section forebay: {', '.join(unknown)}; known:"
            f" {', '.join(sorted(_KEYS))}",
            {"option": f"forebay.{unknown[0]}"},
        )
    return section


def _field(kind: str, side: int, settings: Mapping[str, Any]) -> Field:
    """Return the field for samples of DLIO's format `kind`."""
    extension = settings.get("field", _DECODED.get(kind, kind))
    decode = settings.get("decode", kind in _DECODED)
    if not isinstance(decode, bool):
        # A text that says false would count as true.
        raise Invalid(
            f"forebay.decode has to be true or false, without quotes, and is {decode!r}",
            {"option": "forebay.decode"},
        )
    if not decode:
        return Bytes(extension, copy=False)
    if kind == "npy":
        return Npy(extension, ragged="list")
    if kind not in _DECODED:
        raise Invalid(
            f"DLIO's format {kind} is not decoded here: ++workload.forebay.decode=false",
            {"option": "forebay.decode"},
        )
    return Image(extension, size=side)
