"""Tensors of torch's files, read straight into the memory of the state that is restored.

``torch.load`` reads a file into memory of its own first, and takes a CRC-32 that repeats what
Forebay has checked. Here it reads the description alone: with ``map_location="meta"``, torch tells
the offset of a tensor's bytes in the file. They go from lent memory to their place in one pass.
"""

from __future__ import annotations

import sys
from typing import IO, Any

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from forebay.checkpoint._files import StoredFile


def restore(
    stored: StoredFile, view: IO[bytes], item: ReadItem, offset: int, planner: LoadPlanner
) -> bool:
    """Restore a tensor, or a part of one.

    Parameters
    ----------
    stored
        The file.
    view
        Bytes of the file from `offset` on that hold the tensor, as ``torch.save`` wrote them.
    item
        Part that is wanted.
    planner
        Plan that knows the place for it.

    Returns
    -------
    bool
        False if torch itself has to read it: no bytes of it are read then.
    """
    if item.type != LoadItemType.TENSOR or not _is_native(view):
        return False
    view.seek(0)
    saved = torch.load(view, map_location="meta", weights_only=True)
    start = _start(saved)
    if start is None:
        return False
    for dimension, (first, length) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        saved = saved.narrow(dimension, first, length)
    target = planner.resolve_tensor(item).detach()
    if target.size() != saved.size():
        raise AssertionError(
            f"{item.storage_index}: the checkpoint has the shape {tuple(saved.size())}, the state "
            f"{tuple(target.size())}"
        )
    stored.seek(offset + start + saved.storage_offset() * saved.itemsize)
    if _takes_bytes(target, saved):
        _fill(stored, target)
    elif saved.numel():
        # All elements between the first and the last: wanted columns of a matrix lie apart.
        strides = zip(saved.size(), saved.stride(), strict=True)
        between = torch.empty(
            1 + sum((size - 1) * stride for size, stride in strides), dtype=saved.dtype
        )
        _fill(stored, between)
        target.copy_(between.as_strided(saved.size(), saved.stride()))
    planner.commit_tensor(item, target)
    return True


def _is_native(view: IO[bytes]) -> bool:
    """Return True for an archive in this machine's byte order.

    torch crashes on the description of another one. An archive without a mark has the machine's
    order, as for torch.
    """
    try:
        # Python's own reader of archives rejects those without a CRC-32.
        archive: Any = torch._C.PyTorchFileReader(view)
    except RuntimeError:
        return False
    mark = "byteorder"
    order: bytes | None = archive.get_record(mark) if archive.has_record(mark) else None
    return order is None or order == sys.byteorder.encode()


def _start(saved: Any) -> int | None:
    """Return the offset of a tensor's storage; None if torch does not tell, or it is not plain."""
    if type(saved) is not torch.Tensor or saved.layout != torch.strided or saved.is_quantized:
        return None
    if saved.is_conj() or saved.is_neg():
        # Its bytes are not its values.
        return None
    start: int | None = getattr(saved.untyped_storage(), "_checkpoint_offset", None)
    return start


def _takes_bytes(target: torch.Tensor, saved: torch.Tensor) -> bool:
    """Return True if the bytes of `saved`, in their order, are those of `target`."""
    return (
        type(target) is torch.Tensor
        and target.device.type == "cpu"
        and target.layout == torch.strided
        and target.dtype == saved.dtype
        and target.is_contiguous()
        and saved.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
    )


def _fill(stored: StoredFile, target: torch.Tensor) -> None:
    """Fill a contiguous tensor with the next bytes of the file."""
    if not target.numel():
        return
    read = stored.readinto(target.reshape(-1).view(torch.uint8).numpy())
    if read != target.nbytes:
        raise EOFError(f"a tensor of a checkpoint ends after {read} of its bytes")
