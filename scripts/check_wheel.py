"""Checks a wheel that is to be published: the glibc that it needs, its libraries, its size.

    check_wheel.py dist/forebay-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl --glibc 2.28

Rule: what the tag in a wheel's name promises is read from the symbols of the binaries themselves.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

# Libraries of glibc itself, and of the compiler, which every manylinux image has (PEP 600).
ALLOWED = re.compile(
    r"(libc\.so\.6|libm\.so\.6|libdl\.so\.2|librt\.so\.1|libpthread\.so\.0|libutil\.so\.1"
    r"|libgcc_s\.so\.1|ld-linux-(x86-64|aarch64)\.so\.\d)"
)
# Machines by the last words of a wheel's name, as ELF calls them.
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
# Registries and readers bear larger files, but each machine of a cluster downloads this one.
MEGABYTES_MAX = 20.0
MAGIC = b"\x7fELF"


@dataclass
class Binary:
    """Facts of one ELF file."""

    name: str
    machine: str
    glibc: tuple[int, ...] = ()
    libraries: list[str] = field(default_factory=list)
    run_paths: list[str] = field(default_factory=list)
    has_symbols: bool = False


def read(name: str, content: bytes) -> Binary:
    """Return the facts of an ELF file with this content."""
    elf = ELFFile(io.BytesIO(content))
    binary = Binary(name, elf["e_machine"])
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            names = [aux.name for _, auxiliaries in section.iter_versions() for aux in auxiliaries]
            found = [re.fullmatch(r"GLIBC_([\d.]+)", name) for name in names]
            versions = [tuple(map(int, match[1].split("."))) for match in found if match]
            binary.glibc = max([binary.glibc, *versions])
        elif isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    binary.libraries.append(tag.needed)
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    binary.run_paths.append(str(tag.entry.d_val))
        elif section.name == ".symtab":
            binary.has_symbols = True
    return binary


def binaries(wheel: Path) -> Iterator[Binary]:
    """Yield the ELF files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if content.startswith(MAGIC):
                yield read(name, content)


def mistakes(wheel: Path, glibc: tuple[int, ...], megabytes: float) -> list[str]:
    """Return what is wrong with a wheel."""
    found = []
    size = wheel.stat().st_size / 1e6
    if size > megabytes:
        found.append(f"{size:.1f} MB; {megabytes:.0f} MB are allowed")
    tag = wheel.stem.rsplit("-", 1)[-1]
    promised = "manylinux_" + "_".join(map(str, glibc))
    if not tag.startswith(promised):
        found.append(f"the tag is {tag}, not {promised}")
    all_binaries = list(binaries(wheel))
    if not all_binaries:
        found.append("no binary is in it")
    for binary in all_binaries:
        wanted = next((elf for name, elf in MACHINES.items() if tag.endswith(name)), None)
        if binary.machine != wanted:
            found.append(f"{binary.name}: built for {binary.machine}, tagged {tag}")
        if binary.glibc > glibc:
            found.append(f"{binary.name}: needs glibc {'.'.join(map(str, binary.glibc))}")
        found += [
            f"{binary.name}: needs {library}, which machines may lack"
            for library in binary.libraries
            if not ALLOWED.fullmatch(library)
        ]
        if binary.run_paths:
            found.append(f"{binary.name}: searches libraries at paths of the building machine")
        if binary.has_symbols:
            found.append(f"{binary.name}: not stripped")
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--glibc", default="2.28", help="the oldest that it must run with")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES_MAX)
    arguments = parser.parse_args()
    glibc = tuple(map(int, arguments.glibc.split(".")))
    failed = False
    for wheel in arguments.wheels:
        for binary in binaries(wheel):
            version = ".".join(map(str, binary.glibc))
            print(f"{binary.name}: {binary.machine}, glibc {version}, {binary.libraries}")
        found = mistakes(wheel, glibc, arguments.megabytes)
        failed = failed or bool(found)
        verdict = "\n  ".join(found) if found else "as promised"
        print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB: {verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
