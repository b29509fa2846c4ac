"""Archives of ``torch.save`` without a CRC-32 of their own.

Forebay takes a checksum of every byte and compares it on each way back; ``torch.load`` never looks
at the archive's. Taking it costs half a second of CPU per gigabyte, while the disk waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch.serialization

_lock = threading.Lock()
# Threads inside of `without_checksums`, and the setting from before the first of them.
_inside = 0
_before = True


@contextmanager
def without_checksums() -> Iterator[None]:
    """Leave the CRC-32 out of what this thread saves.

    The setting belongs to the thread, in older torch to the process. There, saves of other threads
    may lack it meanwhile, and a save may take it once another one has ended: both are read like any
    other.
    """
    global _inside, _before
    change = getattr(torch.serialization, "set_crc32_options", None)
    if change is None:
        # Older torch has no such setting.
        yield
        return
    with _lock:
        if _inside == 0:
            _before = torch.serialization.get_crc32_options()
        _inside += 1
        change(False)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            change(_before)
