"""A machine without tools: a folder with the base of Debian, in which commands run as root.

It is no virtual machine: kernel and network are those of this one, and nothing but the command
runs, in a process namespace that ends with it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Mounts what programs expect, then becomes the command. `$1` is the folder, `$2` a script.
ENTER = """
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$1" /bin/sh -ec "$2"
"""


class Machine:
    """A copy of a prepared folder.

    Parameters
    ----------
    base
        Folder that `make setup-packages` made; it stays as it is.
    root
        Folder of the copy, which must not exist.
    """

    def __init__(self, base: Path, root: Path) -> None:
        # Links, owners and modes as they are: shutil copies no owners.
        subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
        self.root = root

    def put(self, source: Path, to: str) -> str:
        """Copy a file to the folder `to` of the machine; return its path there."""
        folder = self.root / to.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder)
        return f"{to.rstrip('/')}/{source.name}"

    def run(
        self, script: str, environment: dict[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root.

        Raises
        ------
        AssertionError
            If it fails and `check` is true; the text is what it said.
        """
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command += ["sh", "-c", ENTER, "sh", str(self.root), script]
        variables = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **(environment or {})}
        ended = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert ended.returncode == 0 or not check, ended.stdout + ended.stderr
        return ended

    def has(self, path: str) -> bool:
        """Return if the machine has a file, folder or link of this path."""
        here = self.root / path.lstrip("/")
        return here.exists() or here.is_symlink()
