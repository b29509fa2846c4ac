"""Kills a training at a random moment, resumes it on half of its ranks, and compares the two.

    python examples/resume.py

It starts examples/elastic.py three times, against a real S3 server on this machine:

1. undisturbed, on four ranks;
2. on four ranks, all of which are killed (SIGKILL) after a random step;
3. on two ranks, which go on from the newest checkpoint that the killed ones published.

Model, optimizer and the loader's state are saved in one checkpoint. So the resumed run continues
with the next sample, although other ranks read it: the losses of all steps are those of the
undisturbed run, and each sample of each epoch is trained on exactly once. The work after the last
published checkpoint is lost with the kill, and made again.

It exits with 0 if both hold, and with 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

# The contest's scripts start and end daemons as well; they lie in the crate that embeds them.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli/bench/contest"))

import daemons
import numpy
import stage

from forebay import checkpoint

# Numbers of a sample, and classes; those of elastic.py.
WIDTH, CLASSES = 16, 8
# Shards, so that ranks read different ones.
SHARDS = 8
# Part of the undisturbed loss by which another number of ranks, which sums in another order, may
# differ.
TOLERANCE = 1e-3
# Seconds for the upload of a small checkpoint on a busy machine.
PATIENCE = 120.0
# Rows of the table.
NAMES = ("undisturbed", "killed", "resumed")


@dataclass
class Run:
    """One start of the training, from the records of its ranks."""

    name: str
    ranks: int
    # Steps made before it, as its checkpoint says.
    start: int
    # By step: epoch, loss, and the samples of all ranks.
    steps: dict[int, tuple[int, float, list[str]]]

    @classmethod
    def read(cls, name: str, folder: Path) -> Run:
        """Read the records of a run; a step counts that all ranks finished."""
        start, per_rank = 0, []
        for path in sorted(folder.glob("rank-*.jsonl")):
            # A killed rank may leave half a line.
            whole = path.read_text().rpartition("\n")[0].splitlines()
            first, *others = map(json.loads, whole)
            start = first["steps"]
            per_rank.append({line["step"]: line for line in others})
        done = set.intersection(*map(set, per_rank))
        steps = {}
        for step in sorted(done):
            lines = [of_rank[step] for of_rank in per_rank]
            keys = [key for line in lines for key in line["keys"]]
            steps[step] = (lines[0]["epoch"], lines[0]["loss"], keys)
        return cls(name, len(per_rank), start, steps)

    @property
    def last(self) -> int:
        """Return the last step."""
        return max(self.steps, default=self.start)


def followed(killed: Run, resumed: Run) -> dict[int, tuple[int, float, list[str]]]:
    """Return the steps that count: the killed run's up to its checkpoint, then the others."""
    before = {step: of for step, of in killed.steps.items() if step <= resumed.start}
    return before | resumed.steps


def faults(calm: Run, steps: dict[int, tuple[int, float, list[str]]]) -> list[str]:
    """Return the differences of a run from the undisturbed one, in words."""
    found = []
    if steps.keys() != calm.steps.keys():
        found.append(f"{len(steps)} steps were made, and {len(calm.steps)} without the kill")
    for step in sorted(steps.keys() & calm.steps.keys()):
        _, wanted, keys = calm.steps[step]
        _, loss, others = steps[step]
        if Counter(keys) != Counter(others):
            found.append(f"step {step} trained on other samples")
        if abs(loss - wanted) > TOLERANCE * abs(wanted):
            found.append(f"step {step} has a loss of {loss:.6f}, and {wanted:.6f} without the kill")
    for epoch in sorted({of[0] for of in calm.steps.values()}):
        every = {key for of in calm.steps.values() for key in of[2]}
        counts = Counter(key for of in steps.values() if of[0] == epoch for key in of[2])
        for what, wrong in (
            ("twice or more", [key for key, count in counts.items() if count > 1]),
            ("never", sorted(every - counts.keys())),
        ):
            if wrong:
                found.append(f"epoch {epoch}: {len(wrong)} samples came {what}, {wrong[0]} first")
    return found


def table(runs: list[Run]) -> str:
    """Return the runs as a table."""
    rows = [f"{'run':12} {'ranks':>5} {'steps':>10} {'samples':>8} {'first loss':>11} {'last':>8}"]
    for run in runs:
        samples = sum(len(keys) for _, _, keys in run.steps.values())
        losses = [run.steps[step][1] for step in sorted(run.steps)] or [float("nan")]
        made = f"{run.start + 1}...{run.last}"
        rows.append(
            f"{run.name:12} {run.ranks:>5} {made:>10} {samples:>8} {losses[0]:>11.4f}"
            f" {losses[-1]:>8.4f}"
        )
    return "\n".join(rows)


def verdict(runs: list[Run]) -> tuple[str, bool]:
    """Compare the runs; return the report, and True if the kill changed nothing."""
    calm, killed, resumed = runs
    steps = followed(killed, resumed)
    wrong = faults(calm, steps)
    said = [
        table(runs),
        "",
        f"The kill came after step {killed.last}. The newest published checkpoint was that of",
        f"step {resumed.start}, so {killed.last - resumed.start} steps were lost, and made again.",
    ]
    if wrong:
        return "\n".join([*said, "Different from the undisturbed run:", *wrong]), False
    epochs = Counter(epoch for epoch, _, keys in steps.values() for _ in keys)
    counts = ", ".join(str(epochs[epoch]) for epoch in sorted(epochs))
    furthest = max(steps, key=lambda step: abs(steps[step][1] - calm.steps[step][1]))
    apart = abs(steps[furthest][1] - calm.steps[furthest][1])
    said += [
        f"Samples of each epoch, each exactly once: {counts}.",
        "Loss of each step as in the undisturbed run: the largest difference is",
        f"{apart:.1e} of {calm.steps[furthest][1]:.4f}, in step {furthest}.",
    ]
    return "\n".join(said), True


def make_shards(folder: Path, samples: int) -> tuple[Path, Path]:
    """Write shards of points in clusters, and their manifest; return the folder of both."""
    loose = folder / "loose"
    loose.mkdir(parents=True)
    draw = numpy.random.default_rng(0)
    centres = draw.normal(size=(CLASSES, WIDTH))
    for number in range(samples):
        label = number % CLASSES
        point = io.BytesIO()
        numpy.save(point, (centres[label] + draw.normal(size=WIDTH)).astype(numpy.float32))
        (loose / f"{number:06}.npy").write_bytes(point.getvalue())
        (loose / f"{number:06}.cls").write_text(str(label))
    bucket = folder / "store" / "bucket"
    bucket.mkdir(parents=True)
    pack: list[str | Path] = [daemons.FOREBAY, "pack", loose, "-o", bucket / "train-{:06d}.tar"]
    each = str(-(-samples // SHARDS))
    subprocess.run([*pack, "--samples", each], check=True, stdout=subprocess.DEVNULL)
    manifest = bucket / "train.json"
    return bucket.parent, manifest


def free_port() -> int:
    """Return a port at which ranks can meet."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def play(ranks: int, arguments: list[str], record: Path, fatal: int | None) -> None:
    """Run the training on some ranks; kill them all once rank 0 reports the step `fatal`."""
    record.mkdir()
    script = Path(__file__).with_name("elastic.py")
    command = [sys.executable, str(script), *arguments, "--record", str(record)]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    meet |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    with ExitStack() as stack:
        started = []
        for rank in range(ranks):
            environment = os.environ | meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                # What dying ranks say about each other teaches nothing.
                stderr=None if fatal is None else subprocess.DEVNULL,
                text=True,
            )
            started.append(stack.enter_context(process))
            # None survives this process's own end.
            stack.callback(process.kill)
        assert started[0].stdout is not None
        for line in started[0].stdout:
            if fatal is not None and line.startswith(f"step {fatal} "):
                for process in started:
                    process.kill()
        codes = [process.wait() for process in started]
    if fatal is None and any(codes):
        sys.exit(f"the ranks ended with {codes}")
    if fatal is not None and -signal.SIGKILL not in codes:
        sys.exit("the run ended before its kill; give more --samples or --epochs")


def experiment(options: argparse.Namespace, folder: Path) -> list[Run]:
    """Make the shards and the three runs; return what they recorded."""
    per_epoch = -(-options.samples // options.global_batch)
    # A random step, after at least one save that is surely staged.
    low, high = 2 * options.every + 1, options.epochs * per_epoch
    if low >= high:
        sys.exit(f"{high} steps are too few for saves every {options.every}")
    fatal = random.Random(options.seed).randrange(low, high)
    print(f"seed {options.seed}: the kill comes after step {fatal} of {high}", flush=True)
    store, manifest = make_shards(folder, options.samples)
    with ExitStack() as stack:
        os.environ.update(stack.enter_context(stage.s3_server(store)))
        variables = dict(os.environ)
        cache = stack.enter_context(stage.private_cache())
        stack.enter_context(daemons.private_daemon(variables, cache))
        os.environ.update(variables)
        urls = f"s3://bucket/train-{{000000..{SHARDS - 1:06}}}.tar"
        common = [urls, "--manifest", str(manifest), "--epochs", str(options.epochs)]
        common += ["--global-batch", str(options.global_batch), "--every", str(options.every)]
        for name, ranks, url, ends in (
            ("undisturbed", options.ranks, "s3://bucket/undisturbed", None),
            ("killed", options.ranks, "s3://bucket/run", fatal),
            ("resumed", options.ranks // 2, "s3://bucket/run", None),
        ):
            print(f"{name}: {ranks} ranks", flush=True)
            play(ranks, [*common, "--checkpoints", url], folder / name, ends)
            if ends is not None:
                # The node goes on without its trainers.
                checkpoint.wait(f"{url}/step-{options.every:06}", "published", PATIENCE)
    return [Run.read(name, folder / name) for name in NAMES]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, help="before the kill (default: 4)")
    parser.add_argument("--samples", type=int, default=1000, help="of an epoch (default: 1000)")
    parser.add_argument("--epochs", type=int, default=3, help="(default: 3)")
    parser.add_argument("--global-batch", type=int, default=32, help="of all ranks (default: 32)")
    parser.add_argument("--every", type=int, default=10, help="steps between saves (default: 10)")
    parser.add_argument("--seed", type=int, help="of the moment of the kill (default: random)")
    options = parser.parse_args()
    if options.ranks < 2 or options.ranks % 2 or options.global_batch % options.ranks:
        parser.error("--ranks must be even, and divide --global-batch")
    if options.seed is None:
        options.seed = random.randrange(2**16)
    # A polite end of this process ends everything it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        runs = experiment(options, Path(folder))
    report, is_same = verdict(runs)
    print(f"\n{report}")
    return 0 if is_same else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
