"""The command that starts daemons and their readers."""

from __future__ import annotations

import subprocess

from forebay._launch import command


def test_command_imports_little(tmp_path):
    """A file system's readers start with the first shards of a job."""
    python, *arguments = command()
    line = [python, "-X", "importtime", *arguments, "--version"]
    ran = subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True)
    imported = {entry.rpartition("|")[2].strip() for entry in ran.stderr.splitlines()}
    assert {name for name in imported if name.startswith("forebay")} == {
        "forebay._cli",
        "forebay._launch",
        "forebay._native",
    }
    assert "typing" not in imported


def test_files_of_the_working_directory_hide_nothing(tmp_path):
    for name in ("forebay", "signal", "typing", "types"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of a stranger')\n")
    line = [*command(), "--version"]
    ran = subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ran.stdout.startswith("forebay ")
