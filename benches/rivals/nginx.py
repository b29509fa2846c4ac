"""nginx over a folder, as the store of a benchmark or for comparison."""

from __future__ import annotations

import subprocess
from pathlib import Path


def serve(
    folder: Path, listen: str, *, inside: tuple[str, ...] = (), more: str = ""
) -> subprocess.Popen[bytes]:
    """Serve `folder/store` at `listen`; its own files are in `folder`.

    `inside` is a command that runs another, as in a network namespace; `more` goes into the
    server's part of the configuration.
    """
    (folder / "nginx.conf").write_text(
        # As root, for folders that nobody else may enter.
        f"user root; daemon off; worker_processes 1; pid {folder}/nginx.pid;\n"
        f"error_log {folder}/nginx.log;\n"
        "events {}\nhttp { access_log off; server {\n"
        f"listen {listen}; root {folder}/store; keepalive_requests 1000000; {more}\n"
        "} }\n"
    )
    return subprocess.Popen([*inside, "nginx", "-c", f"{folder}/nginx.conf"])
