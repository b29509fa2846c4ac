"""Compile the CUDA kernels to PTX, beside their sources; ``--check`` compares instead of writing.

NVRTC needs no GPU. Its release is old on purpose: PTX names the CUDA release it is written for, and
older drivers reject it.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from importlib.metadata import files
from pathlib import Path

# The package of the compiler; scripts/requirements-tests.txt pins its release.
PACKAGE = "nvidia-cuda-nvrtc-cu12"
# The oldest architecture that this release compiles for without a warning. A driver translates it
# for its own device.
ARCHITECTURE = "compute_70"
KERNELS = Path(__file__).parents[1] / "loader/decode/src/cuda"


class Refused(Exception):
    """A source that the compiler rejected; the text is its log."""


def library() -> Path:
    """Return the path of the compiler."""
    for file in files(PACKAGE) or []:
        if file.name.startswith("libnvrtc.so"):
            return Path(str(file.locate()))
    raise SystemExit(f"ptx: {PACKAGE} has no libnvrtc: make setup-tests")


def compiled(source: Path) -> str:
    """Return the PTX of a source.

    Raises
    ------
    Refused
        With the compiler's log.
    """
    nvrtc = ctypes.CDLL(str(library()))
    program = ctypes.c_void_p()
    text, name = source.read_bytes(), source.name.encode()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    if made != 0:
        raise Refused(f"nvrtcCreateProgram: error {made}")
    try:
        options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), array) != 0:
            raise Refused(_text(nvrtc, "ProgramLog", program))
        return _text(nvrtc, "PTX", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.value.decode()


def main() -> int:
    """Write or compare the PTX of every kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    stale = []
    for source in sorted(KERNELS.glob("*.cu")):
        ptx, text = source.with_suffix(".ptx"), compiled(source)
        if not check:
            ptx.write_text(text)
        elif not ptx.exists() or ptx.read_text() != text:
            stale.append(ptx.name)
    if stale:
        print(
            f"ptx: {', '.join(stale)} is not what its source compiles to: make ptx", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
