"""DLIO, the reference benchmark of MLPerf Storage, reads through Forebay's plug-in."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / ".tools/dlio"
FILES = 48
BATCH = 4
EPOCHS = 2
# Several processes on few cores import torch and pandas first.
TIMEOUT_S = 300

pytestmark = [
    pytest.mark.skipif(
        sys.version_info >= (3, 13),
        reason="needs dlio: its tracer, pydftracer, has no wheel for this Python",
    ),
    pytest.mark.skipif(
        not (TOOL / ".stamp").exists(), reason="needs dlio: `make setup-tests` installs it"
    ),
]

Ended = subprocess.CompletedProcess[str]
Run = Callable[..., Ended]

# The plug-in under test; it also writes a file of notes per rank: the hash of each sample that DLIO
# received, and the closing of the loader.
NOTING = """
import hashlib, os
import forebay.dlio

NOTES = os.environ["FOREBAY_TEST_NOTES"]


def note(rank, *words):
    with open(f"{NOTES}/{rank}", "a") as file:
        print(*words, file=file)


class Loader(forebay.dlio.DataLoader):
    def __init__(self, *arguments, rank, **named):
        super().__init__(*arguments, rank=rank, **named)
        self.own_rank = rank

    def close(self):
        note(self.own_rank, "closed")
        super().close()


forebay.dlio.DataLoader = Loader


class Noting(forebay.dlio.ForebayDataLoader):
    def next(self):
        rank = self._args.my_rank
        note(rank, "epoch")
        for batch in super().next():
            for sample in batch:
                note(rank, hashlib.sha256(bytes(sample)).hexdigest())
            yield batch
"""


# Source of the starvation benchmark's profiles.
PROFILES = Path(__file__).parents[3] / "cli/bench/src/starvation/profile.rs"
PROFILE = re.compile(r'Profile \{ name: "(.+)", batch_size: (\d+), step_seconds: ([\d._]+),')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dlio")


def dlio(folder: Path, workload: str, *overrides: str, ranks: int = 1) -> Ended:
    """Run a workload of DLIO with overrides, on `ranks` ranks; all its files are in `folder`."""
    start = [TOOL / "bin/mpiexec", "-n", str(ranks)] if ranks > 1 else []
    own = [
        f"workload={workload}",
        "++workload.framework=pytorch",
        "++workload.reader.data_loader=custom",
        f"++workload.dataset.num_files_train={FILES}",
        f"++workload.dataset.data_folder={folder}/data",
        f"++workload.reader.batch_size={BATCH}",
        "++workload.train.computation_time=0.01",
        f"++workload.train.epochs={EPOCHS}",
        f"++workload.output.folder={folder}/out",
        f"hydra.run.dir={folder}/hydra",
    ]
    return subprocess.run(
        [*start, TOOL / "bin/python", "-m", "dlio_benchmark.main", *own, *overrides],
        env={
            **os.environ,
            "PYTHONPATH": str(folder / "plug-in"),
            "FOREBAY_TEST_NOTES": str(folder / "notes"),
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def packed(folder: Path) -> list[str]:
    """Pack DLIO's files into shards, install the plug-in, and return overrides that use both."""
    forebay = Path(sys.executable).with_name("forebay")
    shards = folder / "train-{:06d}.tar"
    command = [forebay, "pack", folder / "data/train", "-o", shards, "--samples", "16"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = sorted(map(str, folder.glob("train-*.tar")))
    assert len(found) == FILES / 16
    manifest = folder / "manifest.json"
    subprocess.run([forebay, "index", *found, "-o", manifest], check=True)

    (folder / "plug-in").mkdir()
    (folder / "plug-in/noting.py").write_text(NOTING)
    (folder / "notes").mkdir()
    return [
        "++workload.reader.data_loader_sampler=none",
        "++workload.reader.data_loader_classname=forebay.dlio.ForebayDataLoader",
        # Hydra interprets braces unless they are quoted.
        f'++workload.forebay.train="{folder}/train-{{000000..{len(found) - 1:06d}}}.tar"',
        f"++workload.forebay.train_manifest={manifest}",
    ]


@pytest.fixture(scope="module")
def train(folder: Path) -> Run:
    """A function that runs DLIO's ResNet-50 over shards of photos that DLIO made."""
    photos = [
        "++workload.dataset.format=jpeg",
        "++workload.dataset.num_samples_per_file=1",
        "++workload.dataset.record_length=4096",
        "++workload.dataset.record_length_resize=1024",
    ]
    making = ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
    made = dlio(folder, "resnet50_h100", *photos, *making)
    assert made.returncode == 0, made.stdout
    through = packed(folder)

    def run(*overrides: str, ranks: int = 1) -> Ended:
        for notes in (folder / "notes").iterdir():
            notes.unlink()
        return dlio(folder, "resnet50_h100", *photos, *through, *overrides, ranks=ranks)

    return run


def steps(folder: Path, rank: int = 0) -> list[int]:
    """Return DLIO's count of steps for each epoch."""
    output = json.loads((folder / f"out/{rank}_output.json").read_text())
    return [len(output[str(epoch)]["compute"]["block1"]) for epoch in range(1, EPOCHS + 1)]


def notes(folder: Path, rank: int = 0) -> tuple[list[Counter[str]], str]:
    """Return the samples that a rank noted in each epoch, and its last note."""
    _, *epochs = (folder / f"notes/{rank}").read_text().split("epoch\n")
    noted = [Counter(epoch.split()) for epoch in epochs]
    last = epochs[-1].split()[-1]
    del noted[-1][last]
    return noted, last


def samples(folder: Path) -> Counter[str]:
    """Return the hashes of all samples in the shards, with their counts."""
    found: Counter[str] = Counter()
    for shard in folder.glob("train-*.tar"):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[hashlib.sha256(file.read()).hexdigest()] += 1
    return found


def test_dlio_counts_every_step_of_each_epoch(train: Run, folder: Path) -> None:
    run = train()
    assert run.returncode == 0, run.stdout
    assert "custom data loader class ForebayDataLoader" in run.stdout
    assert steps(folder) == [FILES // BATCH] * EPOCHS
    summary = json.loads((folder / "out/summary.json").read_text())
    assert 0 < summary["metric"]["train_au_mean_percentage"] <= 100


def test_ranks_together_read_every_sample_of_each_epoch(train: Run, folder: Path) -> None:
    run = train(
        "++workload.reader.sample_shuffle=seed",
        "++workload.forebay.decode=false",
        "++workload.reader.data_loader_classname=noting.Noting",
        ranks=2,
    )
    assert run.returncode == 0, run.stdout
    (first, closed), (second, closed_as_well) = notes(folder, 0), notes(folder, 1)
    assert closed == closed_as_well == "closed"
    expected = samples(folder)
    assert expected.total() == FILES
    for epoch in range(EPOCHS):
        assert first[epoch] + second[epoch] == expected
    for rank in range(2):
        assert steps(folder, rank) == [FILES // BATCH // 2] * EPOCHS


@pytest.mark.parametrize(
    ("workload", "kind"), [("unet3d_h100", "npz"), ("cosmoflow_h100", "tfrecord")]
)
def test_other_workloads_get_the_bytes_of_their_files(
    tmp_path: Path, workload: str, kind: str
) -> None:
    # DLIO reads no byte of a batch, and without TensorFlow it writes no records: random bytes do.
    files, dice = tmp_path / "data/train", random.Random(kind)
    files.mkdir(parents=True)
    # DLIO also lists the folder of validation files.
    (tmp_path / "data/valid").mkdir()
    for number in range(FILES):
        name = files / f"img_{number:02d}_of_{FILES}.{kind}"
        name.write_bytes(dice.randbytes(dice.randrange(1, 9000)))
    noting = "++workload.reader.data_loader_classname=noting.Noting"
    no_checkpoint = "++workload.workflow.checkpoint=False"
    run = dlio(tmp_path, workload, *packed(tmp_path), noting, no_checkpoint)
    assert run.returncode == 0, run.stdout
    assert steps(tmp_path) == [FILES // BATCH] * EPOCHS
    noted, closed = notes(tmp_path)
    assert closed == "closed"
    assert noted == [samples(tmp_path)] * EPOCHS


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["++workload.forebay.train=${workload.dataset.data_folder}/../train-000000.tar"],
            "DLIO counts 12",
        ),
        (["++workload.forebay.decode='false'"], "has to be true or false"),
        (["++workload.forebay.trian=x"], "unknown in the workload's section forebay: trian"),
        (["++workload.reader.preprocess_time=0.1"], "leave it out"),
    ],
)
def test_invalid_workload_is_rejected_with_the_reason(
    train: Run, overrides: list[str], message: str
) -> None:
    run = train("++workload.forebay.train_manifest=null", *overrides)
    assert run.returncode != 0
    assert message in run.stdout


def test_starvation_profiles_match_dlio_workloads() -> None:
    found = PROFILE.findall(PROFILES.read_text())
    profiles = {name: (int(batch), float(step.replace("_", ""))) for name, batch, step in found}
    assert len(profiles) == 6
    read = """
import json, pathlib, sys
import dlio_benchmark, yaml
folder = pathlib.Path(dlio_benchmark.__file__).parent / "configs/workload"
texts = {name: (folder / f"{name}.yaml").read_text() for name in sys.argv[1:]}
print(json.dumps({name: yaml.safe_load(text) for name, text in texts.items()}))
"""
    names = [name.replace("-", "_") for name in profiles]
    command = [TOOL / "bin/python", "-c", read, *names]
    workloads = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    for name, profile in profiles.items():
        workload = workloads[name.replace("-", "_")]
        theirs = (workload["reader"]["batch_size"], workload["train"]["computation_time"])
        assert profile == theirs, name
