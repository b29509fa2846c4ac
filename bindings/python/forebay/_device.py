"""Where images are decoded and arrays are put together: on which GPU, or on the CPU.

One rule: a GPU that was asked for is used, or the loader does not open. Where none was asked for,
one is used if it is there for the taking, and a line of the log says which it is, or why not.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay import _native
from forebay.errors import ForebayError, Invalid, NotFound
from forebay.fields import Field, Image, Npy

_log = logging.getLogger("forebay")

# Where wheels keep nvJPEG, below the folder of packages: torchvision's own, and NVIDIA's.
_PATTERNS = (
    "torchvision.libs/libnvjpeg*.so*",
    "nvidia/cu13/lib/libnvjpeg.so*",
    "nvidia/nvjpeg/lib/libnvjpeg.so*",
)

# Where CUDA's own packages put it.
_TOOLKIT = Path("/usr/local/cuda/lib64")

_NUMPY = "NumPy has no memory on a GPU: use framework='torch' or 'jax'"

# The place of this process among those of its node, by who started it.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


class Wish:
    """What a loader's `device` asks for.

    Parameters
    ----------
    device : None, str or torch.device
        As users give it: None, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Raises
    ------
    Invalid
        For any other.
    """

    def __init__(self, device: Any) -> None:
        self.is_open = device is None
        self.is_cuda, self.ordinal = False, None
        if device is None or str(device) == "cpu":
            return
        named = re.fullmatch(r"cuda(?::(\d+))?", str(device))
        if named is None:
            raise Invalid(
                f"device={str(device)!r} is not known; give 'cpu', 'cuda' or 'cuda:0', or leave it "
                "unset",
                {"option": "device"},
            )
        self.is_cuda = True
        self.ordinal = None if named[1] is None else int(named[1])

    def check(
        self,
        fields: Mapping[str, Field] | None,
        framework: str | None,
        worker_type: str,
    ) -> None:
        """Refuse what a GPU cannot do for a loader that asks for one.

        Raises
        ------
        Invalid
            Naming the option.
        """
        if not self.is_cuda:
            return
        if framework == "numpy":
            raise _refused(_NUMPY)
        if worker_type == "process":
            raise _refused(
                "worker_type='process' takes batches to processes that do not have this one's GPU: "
                "use worker_type='thread'"
            )
        if not any(map(_is_made_there, (fields or {}).values())):
            raise _refused(
                "none of fields= is an Image, or an Npy with ragged='list', and a GPU makes "
                "nothing else: leave device unset and move batches with .to()"
            )

    def suits(
        self,
        fields: Mapping[str, Field] | None,
        framework: str,
        has_code: bool,
        in_worker: bool,
    ) -> bool:
        """Whether a loader that was told nothing is better off with a GPU.

        Code of the user's counts on the CPU's tensors, and workers of torch's must not touch CUDA.
        """
        images = _images(fields)
        return (
            self.is_open
            and framework in ("torch", "jax")
            and not has_code
            and not in_worker
            and bool(images)
            and all(image.size is not None for image in images)
        )


def _images(fields: Mapping[str, Field] | None) -> list[Image]:
    return [field for field in (fields or {}).values() if isinstance(field, Image)]


def _is_made_there(field: Field) -> bool:
    return isinstance(field, Image) or (isinstance(field, Npy) and not field.has_lengths)


def opened(
    wish: Wish, fields: Mapping[str, Field] | None, framework: str, suits: bool
) -> _native.Device | None:
    """The GPU that makes these fields, opened in this process; None for the CPU.

    Raises
    ------
    ForebayError
        Why the GPU that was asked for cannot be used.
    """
    if not wish.is_cuda and not suits:
        return None
    if framework == "numpy":
        raise _refused(_NUMPY)
    ordinal = _ordinal() if wish.ordinal is None else wish.ordinal
    try:
        # Arrays alone want no decoder.
        device = _native.Device(ordinal, libraries() if _images(fields) else None)
    except ForebayError as error:
        if wish.is_cuda:
            raise
        # That a machine has no GPU is no news.
        level = logging.DEBUG if isinstance(error, NotFound) else logging.WARNING
        _log.log(level, "the CPU decodes images, for no GPU can: %s", error)
        return None
    _log.info("cuda:%d decodes images", ordinal)
    return device


def libraries() -> list[str]:
    """Files that may be nvJPEG, the best first.

    What FOREBAY_NVJPEG names; then torchvision's own, which is in the process anyway if that is
    used; then what NVIDIA's packages bring.
    """
    named = os.environ.get("FOREBAY_NVJPEG")
    found = [named] if named else []
    for home in _homes():
        for pattern in _PATTERNS:
            found += sorted(map(str, home.glob(pattern)))
    return [*found, *sorted(map(str, _TOOLKIT.glob("libnvjpeg.so*")))]


def _homes() -> list[Path]:
    """Folders of packages that packages of NVIDIA's or torchvision are in."""
    homes: list[Path] = []
    for package in ("torchvision", "nvidia"):
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else list(spec.submodule_search_locations or [])
        homes += [Path(place).parent for place in places]
    return list(dict.fromkeys(homes))


def _ordinal() -> int:
    """The GPU of this process: that of its place on the node, else the one that torch is at."""
    for name in _LOCAL_RANKS:
        if name in os.environ:
            try:
                return int(os.environ[name])
            except ValueError:
                raise Invalid(f"{name}={os.environ[name]!r} is no number; unset it") from None
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0


def _refused(why: str) -> Invalid:
    return Invalid(f"device='cuda' does not go with this loader; {why}", {"option": "device"})
