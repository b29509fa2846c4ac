"""Device that decodes images and assembles arrays: a GPU or the CPU.

A requested GPU is used, or the loader does not open. Without a request, an available GPU is
used, and the log names it, or the reason against it.
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

# Places of nvJPEG in wheels, below the package folder: torchvision's own, and NVIDIA's.
_PATTERNS = (
    "torchvision.libs/libnvjpeg*.so*",
    "nvidia/cu13/lib/libnvjpeg.so*",
    "nvidia/nvjpeg/lib/libnvjpeg.so*",
)

# Place of nvJPEG in CUDA's own packages.
_TOOLKIT = Path("/usr/local/cuda/lib64")

_NUMPY = "NumPy has no memory on a GPU: use framework='torch' or 'jax'"

# Variable that restricts nvJPEG to one of its backends: 5 or 3 (engines), or 4 (cores).
_BACKEND = "FOREBAY_NVJPEG_BACKEND"

# Variables of launchers with this process's rank on its node.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


class Wish:
    """Value of a loader's `device` argument.

    Parameters
    ----------
    device : None, str or torch.device
        The user's value: None, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Raises
    ------
    Invalid
        For any other value.
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
        """Reject options that a requested GPU does not support.

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
        """Return true if a loader without `device` is better off with a GPU.

        User code expects the CPU's tensors, and torch's workers must not touch CUDA.
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
    """Open the GPU for these fields in this process; None for the CPU.

    Raises
    ------
    ForebayError
        The reason a requested GPU cannot be used.
    """
    if not wish.is_cuda and not suits:
        return None
    if framework == "numpy":
        raise _refused(_NUMPY)
    ordinal = _ordinal() if wish.ordinal is None else wish.ordinal
    try:
        # Arrays alone need no decoder.
        nvjpeg = libraries() if _images(fields) else None
        device = _native.Device(ordinal, nvjpeg, _number(_BACKEND))
    except ForebayError as error:
        if wish.is_cuda:
            raise
        # A machine without a GPU is no news; a GPU that is there and idle is.
        is_there = _count() > 0
        level = logging.WARNING if is_there or not isinstance(error, NotFound) else logging.DEBUG
        _log.log(level, "the CPU decodes images, because no GPU can: %s", error)
        return None
    _log.info("cuda:%d decodes images", ordinal)
    return device


class Kept:
    """A loader's device, opened once in each process: starting nvJPEG takes half a second."""

    def __init__(self) -> None:
        self._opened: tuple[int, _native.Device | None] | None = None

    def get(self, *arguments: Any) -> _native.Device | None:
        """Return the device that `opened` opens with these arguments.

        Raises
        ------
        ForebayError
            The reason a requested GPU cannot be used.
        """
        here = _native.forks()
        if self._opened is None or self._opened[0] != here:
            self._opened = here, opened(*arguments)
        return self._opened[1]

    def drop(self) -> None:
        """Give its memory back once nothing else uses the device."""
        self._opened = None


def libraries() -> list[str]:
    """Return files that may be nvJPEG, the best first.

    The one in FOREBAY_NVJPEG; then torchvision's, which is in the process anyway if torchvision is
    used; then those of NVIDIA's packages.
    """
    named = os.environ.get("FOREBAY_NVJPEG")
    found = [named] if named else []
    for home in _homes():
        for pattern in _PATTERNS:
            found += sorted(map(str, home.glob(pattern)))
    return [*found, *sorted(map(str, _TOOLKIT.glob("libnvjpeg.so*")))]


def _homes() -> list[Path]:
    """Return the folders that contain NVIDIA's or torchvision's packages."""
    homes: list[Path] = []
    for package in ("torchvision", "nvidia"):
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else list(spec.submodule_search_locations or [])
        homes += [Path(place).parent for place in places]
    return list(dict.fromkeys(homes))


def _ordinal() -> int:
    """Return this process's GPU, among those it can see.

    Torch's current device if torch has one already: the training loop uses it. Else the rank on the
    node; but the only GPU if a launcher shows each rank its own alone.
    """
    ranks = [rank for rank in map(_number, _LOCAL_RANKS) if rank is not None]
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        current = int(torch.cuda.current_device())
        # Torch's default, too, for a script that names its GPU in each call.
        if current == 0 and any(ranks[:1]) and _count() > 1:
            _log.warning(
                "rank %d of this node decodes on cuda:0, torch's current device: call "
                "torch.cuda.set_device before the first batch, or give device='cuda:N'",
                ranks[0],
            )
        return current
    return ranks[0] if ranks and _count() != 1 else 0


def _number(variable: str) -> int | None:
    """Return an environment variable's whole number; None if it is unset or empty."""
    text = os.environ.get(variable, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise Invalid(f"{variable}={text!r} is not a number; unset it") from None


def _count() -> int:
    """Return the number of GPUs that this process can see."""
    return _native.Device.count()


def _refused(why: str) -> Invalid:
    return Invalid(f"device='cuda' does not go with this loader; {why}", {"option": "device"})
