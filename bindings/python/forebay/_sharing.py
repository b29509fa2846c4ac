"""Transfer of objects between processes: the object by pickle, its payload beside it in shared
memory.

The memory has no name, and belongs to the processes that map it. A dying process leaves
nothing behind, and received data stays readable while it is kept.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import sys
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

# Alignment of arrays: enough for the widest vector loads, and one cache line.
_ALIGN = 64


def send(connection: Connection, value: Any) -> None:
    """Send `value`: arrays, CPU tensors and memoryviews in it are copied once.

    Raises
    ------
    Exception
        Pickle's error for an unpicklable value, before anything is sent; `OSError` if the other
        side is gone.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(value)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    begins, end = [], 0
    for part in parts:
        begins.append(end)
        end += -(-part.nbytes // _ALIGN) * _ALIGN
    memory = os.memfd_create("forebay-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, end)
        for begin, part in zip(begins, parts, strict=True):
            _write(memory, part, begin)
        connection.send([(begin, part.nbytes) for begin, part in zip(begins, parts, strict=True)])
        # The socket, not the process id, determines the receiver of a descriptor.
        reduction.send_handle(connection, memory, None)
    finally:
        os.close(memory)


def receive(connection: Connection) -> Any:
    """Receive a value sent by `send`.

    Raises
    ------
    EOFError, OSError
        If the other side is gone.
    """
    ranges = connection.recv()
    descriptor = reduction.recv_handle(connection)
    try:
        # All of it is read soon: one call maps its pages instead of a fault for each.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        memory = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=flags))
    finally:
        os.close(descriptor)
    stream, *buffers = (memory[begin : begin + length] for begin, length in ranges)
    return pickle.loads(stream, buffers=buffers)


def _write(file: int, part: memoryview, at: int) -> None:
    while part.nbytes:
        written = os.pwrite(file, part, at)
        part, at = part[written:], at + written


class _Pickler(pickle.Pickler):
    """Pickler that leaves payload to the caller, also where pickle would copy it, or could not."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce `value`."""
        if type(value) is memoryview:
            return _view, (pickle.PickleBuffer(value), value.readonly)
        torch: Any = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if value.is_nested:
            # Tensors of layout=torch.jagged have a class of their own, and consist of plain
            # tensors.
            raise pickle.PicklingError(
                "a nested tensor of layout=torch.strided cannot be sent to another process; make "
                "it with layout=torch.jagged"
            )
        if not _is_plain(value, torch):
            return NotImplemented
        dense = value.contiguous()
        array = (ctypes.c_ubyte * dense.nbytes).from_address(dense.data_ptr())
        # The array keeps the tensor alive, and the buffer the array.
        array.owner = dense
        dtype = str(value.dtype).rpartition(".")[2]
        return _tensor, (pickle.PickleBuffer(array), dtype, tuple(value.shape))


def _is_plain(tensor: Any, torch: Any) -> bool:
    """Return true if its bytes are its whole content."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.nbytes > 0
    )


def _view(buffer: memoryview, readonly: bool) -> memoryview:
    view = memoryview(buffer)
    return view.toreadonly() if readonly else view


def _tensor(buffer: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=getattr(torch, dtype)).reshape(shape)
