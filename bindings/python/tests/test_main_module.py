"""Functions of `__main__` with `worker_type="process"`: workers import the script, if they can."""

from __future__ import annotations

import functools
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

import forebay

# Prints the batches, or the kind of the error and the option that it names.
PLAY = """
def play(url, **options):
    try:
        with forebay.DataLoader(
            url, batch_size=4, framework="numpy", timeout=60.0, workers=1, worker_type="process",
            fields={"label": forebay.Int("cls")}, **options
        ) as loader:
            print("made", flush=True)
            print(sum(list(loader)), flush=True)
    except forebay.ForebayError as error:
        print(error.kind, error.places.get("option"), flush=True)
"""
FUNCTION = """
def count(batch):
    return len(batch["__key__"])
"""
HEAD = "import sys, functools, forebay\n" + FUNCTION + PLAY
GUARDED = HEAD + "if __name__ == '__main__':\n    play(sys.argv[1], transform=count)\n"
BARE = HEAD + "play(sys.argv[1], transform=count)\n"

WORKS = ["made", "10"]
REJECTED = ["Invalid worker_type"]
FAILED = ["made", "Invalid worker_type"]


def said(command: list[str], text: str | None = None, folder: Path | None = None) -> list[str]:
    ran = subprocess.run(
        [sys.executable, *command],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split("\n")[:-1]


def test_guarded_script_works(shards: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GUARDED)
    assert said([str(tmp_path / "train.py"), shards[0]]) == WORKS
    # By a relative path, and from another folder later.
    (tmp_path / "moved.py").write_text(
        GUARDED.replace("    play(", "    import os\n    os.chdir('/')\n    play(")
    )
    assert said(["moved.py", shards[0]], folder=tmp_path) == WORKS
    assert said(["-m", "train", shards[0]], folder=tmp_path) == WORKS
    with_runpy = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    assert said(["-c", with_runpy, str(tmp_path / "train.py"), shards[0]]) == WORKS


def test_module_of_a_package_works(shards: list[str], tmp_path: Path) -> None:
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(GUARDED)
    assert said(["-m", "parts.train", shards[0]], folder=tmp_path) == WORKS


def test_main_file_of_a_package_is_rejected(shards: list[str], tmp_path: Path) -> None:
    package = tmp_path / "whole"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(GUARDED)
    assert said(["-m", "whole", shards[0]], folder=tmp_path) == REJECTED
    assert said([str(package), shards[0]]) == REJECTED
    zipapp.create_archive(package, tmp_path / "whole.pyz")
    assert said([str(tmp_path / "whole.pyz"), shards[0]]) == REJECTED
    # Functions of its other modules are fine.
    (package / "code.py").write_text(FUNCTION)
    (package / "__main__.py").write_text(
        "import sys, forebay\nfrom whole.code import count\n"
        + PLAY
        + "if __name__ == '__main__':\n    play(sys.argv[1], transform=count)\n"
    )
    assert said(["-m", "whole", shards[0]], folder=tmp_path) == WORKS


@pytest.mark.parametrize("way", ["-c", "stdin", "interactive"])
def test_program_without_a_file_is_rejected(shards: list[str], way: str) -> None:
    text = f"import sys\nsys.argv[1:] = {[shards[0]]!r}\n" + BARE
    if way == "-c":
        assert said(["-c", text]) == REJECTED
    elif way == "stdin":
        assert said(["-"], text) == REJECTED
    else:
        assert said(["-i", "-q"], f"exec({text!r})\n") == REJECTED


def test_program_without_a_file_may_use_modules(shards: list[str], tmp_path: Path) -> None:
    (tmp_path / "code_of_mine.py").write_text(FUNCTION)
    text = "import sys, forebay\nfrom code_of_mine import count\n" + PLAY
    text += f"play({shards[0]!r}, transform=count)\n"
    assert said(["-c", text], folder=tmp_path) == WORKS
    # Python makes processes import the file `<stdin>`, whatever they need.
    assert said(["-"], text, folder=tmp_path) == REJECTED


def test_every_way_to_name_a_function_is_seen(shards: list[str], tmp_path: Path) -> None:
    text = (
        "import sys, functools, forebay\n"
        + FUNCTION
        + "class Class:\n"
        + "    def __call__(self, batch):\n        return 1\n"
        + "    def method(self, batch):\n        return 1\n"
        + "    @staticmethod\n    def static(batch):\n        return 1\n"
        + PLAY
        + f"url = {shards[0]!r}\n"
        + "play(url, select=count)\n"
        + "play(url, transform=functools.partial(count))\n"
        + "play(url, transform=Class().method)\n"
        + "play(url, transform=Class.static)\n"
        + "play(url, transform=Class())\n"
        + "play(url, transform=lambda batch: 1)\n"
        + "def outer():\n    def inner(batch):\n        return 1\n    return inner\n"
        + "play(url, transform=outer())\n"
    )
    assert said(["-c", text]) == REJECTED * 7
    fields = (
        "import forebay\ndef double(value):\n    return value\n"
        "options = dict(workers=1, worker_type='process')\n"
        "for field in (forebay.Int('cls', map=double), forebay.Int('cls', map=lambda v: v)):\n"
        "    try:\n"
        f"        forebay.DataLoader({shards[0]!r}, fields=dict(label=field), **options)\n"
        "    except forebay.Invalid as error:\n        print(error.places['option'])\n"
    )
    assert said(["-c", fields]) == ["worker_type"] * 2


def test_script_without_a_guard_is_named(shards: list[str], tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(BARE)
    # The worker runs the script as far as the first batch.
    unguarded = ["made", *FAILED]
    assert said([str(script), shards[0]]) == unguarded
    # Also where its functions are in a module, and where it hides errors.
    (tmp_path / "code_of_mine.py").write_text(FUNCTION)
    script.write_text(
        "import sys, forebay\nfrom code_of_mine import count\n"
        + PLAY
        + "try:\n    play(sys.argv[1], transform=count)\nexcept BaseException:\n    pass\n"
    )
    assert said([str(script), shards[0]]) == unguarded


def test_loader_may_be_made_outside_of_the_guard(shards: list[str], tmp_path: Path) -> None:
    script = tmp_path / "half.py"
    script.write_text(
        "import sys, forebay\n"
        + FUNCTION
        + "loader = forebay.DataLoader(\n"
        + f"    {shards[0]!r}, batch_size=4, framework='numpy', timeout=60.0, workers=1,\n"
        + "    worker_type='process', transform=count)\n"
        + "if __name__ == '__main__':\n    print(sum(loader))\n    loader.close()\n"
    )
    assert said([str(script)]) == ["10"]


def test_function_below_the_guard_is_named(shards: list[str], tmp_path: Path) -> None:
    script = tmp_path / "below.py"
    script.write_text(
        "import sys, forebay\n"
        + PLAY
        + "if __name__ == '__main__':\n"
        + "    def count(batch):\n        return 1\n"
        + "    play(sys.argv[1], transform=count)\n"
    )
    assert said([str(script), shards[0]]) == FAILED


class Unloadable:
    """A function that does not survive its journey."""

    def __call__(self, batch: Any) -> Any:
        return batch

    def __setstate__(self, state: Any) -> None:
        raise LookupError("lost")

    def __getstate__(self) -> Any:
        return {"some": "state"}


def test_failure_to_load_is_reported_by_the_worker(make: Any) -> None:
    options = {"workers": 1, "worker_type": "process"}
    loader = make(transform=Unloadable(), **options)
    with pytest.raises(forebay.Invalid) as caught:
        list(loader)
    assert caught.value.places["option"] == "worker_type"
    assert "lost" in str(caught.value)
    for function in (lambda batch: batch, functools.partial(lambda batch: batch)):
        with pytest.raises(forebay.Invalid) as caught:
            make(transform=function, **options)
        assert caught.value.places["option"] == "worker_type"
