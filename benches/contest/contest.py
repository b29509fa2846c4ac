"""The contest: who takes part, at what settings, and their runs in turns.

Its rule: nothing is counted that was not the same work. Each run is a process of its own; the order
turns round every round; whoever delivers other samples than the first contender ends the run.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import conversions
import roster
import search
import shards
from contender import Task
from conversions import Conversion
from place import no_room, out_of_page_cache, place
from players import Failed, Player, player
from request import Request
from roster import Contender

# Searches take runs of this share of a measured one; those of a sweep, of which there are many,
# shorter ones, and end when they know it to a tenth.
SHORT, SHORTER = 1 / 6, 1 / 20
SWEEP_NARROW = 1.1
# A loader's epoch plays the shards so often, or until it has so many samples: its end, after which
# its pipeline fills anew, is then seldom.
REPEATS_MAX, SAMPLES = 64, 1_000_000
# Means of as many random crops differ by less than this over the root of their number: some five
# standard deviations of a difference of two.
MEAN_TOLERANCE = 2.0
# Attempts to bear out a speed by long runs.
ATTEMPTS = 5


class Tell(Protocol):
    """Says at what round a contender is, of how many, doing what; and what a run came to."""

    def __call__(
        self,
        contender: str,
        number: int,
        of: int,
        what: str,
        run: dict[str, Any] | None = None,
        /,
    ) -> None:
        """Say it."""


class Contest:
    """One request's contest."""

    def __init__(self, request: Request, before: Callable[[], None], tell: Tell) -> None:
        self.request, self.before, self.tell = request, before, tell
        self.work = Path(request.work)
        self.cache = self.work / "forebay-cache"
        self.fields = shards.fields(request.shards[0], request.images)
        first = sum(1 for _ in shards.samples(request.shards[0]))
        self.repeats = min(REPEATS_MAX, math.ceil(SAMPLES / (first * len(request.shards))))
        self.contenders: list[Contender] = []
        self.absent: list[dict[str, str]] = []
        self.conversions: dict[str, Conversion] = {}
        self.digest: tuple[str, dict[str, Any]] | None = None
        self.crc = "zlib"

    def run(self) -> list[dict[str, Any]]:
        """Play it all and return the contenders' figures."""
        self.gather()
        for one in self.contenders:
            self.convert(one)
        # A cache that an earlier contest left would not be cold.
        shutil.rmtree(self.cache, ignore_errors=True)
        for one in self.contenders:
            self.sweep(one)
        first = {one.name: self.first_epoch(one) for one in self.contenders}
        if self.request.find_rate:
            rounds, sustained = self.sustained()
        else:
            nominal = {one.name: 1.0 for one in self.contenders}
            rounds, sustained = self.rounds(self.contenders, nominal, "measuring"), {}
        return [
            {
                "name": one.name,
                "version": one.version,
                "versions": one.versions,
                "python": one.python,
                "configuration": {**one.configuration, "crc": self.crc},
                "sweep": one.sweep,
                "conversion_seconds": self.converted(one, "seconds"),
                "conversion_bytes": self.converted(one, "bytes"),
                "storage": one.storage,
                "first_epoch": first[one.name],
                "rounds": rounds[one.name],
                "sustained": sustained.get(one.name),
            }
            for one in self.contenders
        ]

    def gather(self) -> None:
        """Find out who can take part."""
        request = self.request
        all_isal = True
        for kind in dict.fromkeys(request.contenders):
            python = request.python(kind)
            self.tell(kind, 0, 0, "looking")
            found = roster.probe(kind, python, request.images)
            if why := roster.why_not(kind, python, found):
                self.absent.append({"name": kind, "why": why})
                continue
            all_isal = all_isal and found["isal"]
            one = Contender(
                name=kind,
                kind=kind,
                python=python,
                version=roster.version(kind, found),
                versions=found["versions"],
                configurations=roster.configurations(kind, request.images),
            )
            self.contenders += self.faces(one)
        # All take the same checksum, the fast one if all have it.
        self.crc = "isal" if all_isal else "zlib"

    def faces(self, one: Contender) -> Iterator[Contender]:
        """Yield a contender once for each level of storage that it reads from."""
        if one.kind != "forebay":
            yield one
            return
        one.storage = "o_direct"
        yield one
        if why := no_room(self.request.shards, self.request.memory_bytes):
            self.absent.append({"name": "forebay-memory", "why": why})
        else:
            yield Contender(
                "forebay-memory",
                one.kind,
                one.python,
                one.version,
                one.versions,
                one.configurations,
                storage="memory",
            )

    def convert(self, one: Contender) -> None:
        """Make the data set in the contender's own format."""
        name = roster.RULES[one.kind].conversion
        if name is None:
            return
        self.tell(one.name, 0, 0, "converting")
        self.conversions[one.name] = conversions.convert(
            name,
            one.python,
            one.version,
            self.request.shards,
            self.fields,
            self.work,
            self.request.command(),
        )

    def converted(self, one: Contender, what: str) -> Any:
        """Return a figure of the contender's conversion, if it has one."""
        made = self.conversions.get(one.name)
        return None if made is None else getattr(made, what)

    def sweep(self, one: Contender) -> None:
        """Try all configurations of a contender; what feeds the fastest accelerator is taken.

        Not what has the highest rate: who loads while the accelerator works may be slower than who
        does not, and feed it better. One that does not feed the fastest accelerator so far is out,
        and its own is not sought: of a loader without workers that takes minutes.
        """
        one.configuration = one.configurations[0]
        if len(one.configurations) == 1:
            return
        fastest = 0.0
        with self.player(one, one.configuration) as at_work:
            for number, configuration in enumerate(one.configurations):
                self.tell(one.name, number + 1, len(one.configurations), "sweeping")
                at_work.play("configure", configuration=configuration)
                seconds = self.request.seconds * SHORTER
                found = self.search(one, at_work, seconds, SWEEP_NARROW, beyond=fastest)
                one.sweep.append({**configuration, **found})
                if found["au"] is not None and found["au"] >= search.AU_MIN:
                    fastest, one.configuration = found["speed"], configuration

    def first_epoch(self, one: Contender) -> dict[str, Any]:
        """Play an epoch from cold: nothing in the page cache, nothing in a tier."""
        self.tell(one.name, 0, 0, "first epoch")
        out_of_page_cache(self.files(one))
        with self.player(one, one.configuration, warm=False) as at_work:
            return self.checked(one, at_work.play("first_epoch"))

    def rounds(
        self, contenders: list[Contender], speeds: dict[str, float], what: str
    ) -> dict[str, list[dict[str, Any]]]:
        """Let `contenders` take turns, there and back, each at its accelerator's speed."""
        figures: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contenders}
        for number in range(self.request.rounds):
            for one in contenders if number % 2 == 0 else contenders[::-1]:
                self.tell(one.name, number + 1, self.request.rounds, what)
                with self.player(one, one.configuration) as at_work:
                    self.warm(one, at_work)
                    step = self.request.step_seconds / speeds[one.name]
                    played = self.play(one, at_work, step, self.request.seconds)
                figures[one.name].append({"round": number, **played})
                self.tell(one.name, number + 1, self.request.rounds, "played", played)
        return figures

    def sustained(
        self,
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
        """Find everybody's fastest accelerator, and bear it out by long runs in turns."""
        speeds = {one.name: self.speed(one) for one in self.contenders}
        pending = list(self.contenders)
        rounds, found = dict[str, list[dict[str, Any]]](), dict[str, dict[str, Any]]()
        for _ in range(ATTEMPTS):
            rounds |= self.rounds(pending, speeds, "verifying")
            for one in list(pending):
                au = [run["au_ideal"] for run in rounds[one.name]]
                slower = search.lowered(speeds[one.name], au)
                found[one.name] = self.verdict(speeds[one.name], rounds[one.name])
                if slower is None:
                    pending.remove(one)
                else:
                    speeds[one.name] = slower
        for one in pending:
            # What was not borne out is not called sustained.
            found[one.name]["rate_over_nominal"] = None
        return rounds, found

    def verdict(self, speed: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what runs at `speed` came to."""
        rates = [run["samples_per_second"] for run in runs]
        rate = statistics.median(rates)
        nominal = self.request.batch_size / self.request.step_seconds
        return {
            "rate_over_nominal": round(rate / nominal, 2),
            "samples_per_second": rate,
            "lowest": min(rates),
            "highest": max(rates),
            "au": statistics.median(run["au_ideal"] for run in runs),
            "speed": speed,
        }

    def speed(self, one: Contender) -> float:
        """Return the greatest speed at which short runs keep the accelerator busy."""
        self.tell(one.name, 0, 0, "searching")
        with self.player(one, one.configuration) as at_work:
            self.warm(one, at_work)
            found = self.search(one, at_work, self.request.seconds * SHORT, search.NARROW)
            speed: float = found["speed"]
            return speed

    def search(
        self,
        one: Contender,
        at_work: Player,
        seconds: float,
        narrow: float,
        beyond: float = 0.0,
    ) -> dict[str, Any]:
        """Return the greatest speed that runs of `seconds` bear out, and what they were like.

        If it is not above `beyond`, that is all that is found out.
        """
        nominal = self.request.batch_size / self.request.step_seconds
        runs: dict[float, dict[str, Any]] = {}

        def measure(speed: float) -> float:
            step = self.request.step_seconds / speed
            runs[speed] = self.play(one, at_work, step, seconds)
            au: float = runs[speed]["au_ideal"]
            return au

        unlimited: float = self.play(one, at_work, 0.0, seconds)["samples_per_second"]
        most = search.ceiling(unlimited / nominal)
        if beyond == 0.0 or (beyond < most and measure(beyond) >= search.AU_MIN):
            speed = max(beyond, search.fastest(unlimited / nominal, measure, narrow))
        else:
            speed = beyond
        run = runs.get(speed, {})
        return {
            "speed": speed,
            # None where the unlimited rate said enough.
            "samples_per_second": run.get("samples_per_second"),
            "au": run.get("au_ideal"),
            "unlimited_samples_per_second": unlimited,
        }

    def warm(self, one: Contender, at_work: Player) -> None:
        """Fill a tier that begins empty with each daemon."""
        if one.storage == "memory":
            at_work.play("first_epoch")

    def play(
        self, one: Contender, at_work: Player, step_seconds: float, seconds: float
    ) -> dict[str, Any]:
        """Have a contender's accelerator run, and make sure that it was warm."""
        played = at_work.play(
            "accelerator", step_seconds=step_seconds, seconds=seconds, repeats=self.repeats
        )
        before, after = played.pop("before"), played.pop("after")
        if one.kind == "forebay":
            fetched = after["loader"]["bytes"]["origin"] - before["loader"]["bytes"]["origin"]
            if fetched > 0:
                raise Failed(
                    f"{one.name} took {fetched} bytes from the shards' origin in a run that should"
                    " be warm: its cache has no room for them all (FOREBAY_CAPACITY)"
                )
        return played

    def files(self, one: Contender) -> list[str]:
        """Return the files that a contender reads through the page cache."""
        made = self.conversions.get(one.name)
        if one.kind in ("forebay", "dali") or made is None:
            return self.request.shards
        return conversions.files(made.folder)

    @contextmanager
    def player(
        self, one: Contender, configuration: dict[str, Any], warm: bool = True
    ) -> Iterator[Player]:
        """Start a contender in its place; rivals' files are read first, if it is to be warm."""
        made = self.conversions.get(one.name)
        task = Task(
            images=self.request.images,
            fields=self.fields,
            shards=self.request.shards,
            batch_size=self.request.batch_size,
            configuration=configuration,
            source=None if made is None else made.folder,
            crc=self.crc,
            preread=self.files(one) if warm and one.storage == "page_cache" else [],
        )
        forebay, before = self.request.command(), self.before
        with (
            place(one, self.request.shards, self.cache, forebay, before) as environment,
            player(one.name, one.kind, one.python, task, environment, before) as at_work,
        ):
            yield at_work

    def checked(self, one: Contender, epoch: dict[str, Any]) -> dict[str, Any]:
        """Make sure that an epoch held the same samples as the first contender's."""
        digest = epoch["digest"]
        if self.digest is None:
            self.digest = (one.name, digest)
        compare(self.digest[0], self.digest[1], one.name, digest)
        return epoch


def compare(first: str, expected: dict[str, Any], name: str, digest: dict[str, Any]) -> None:
    """Raise `Failed` if `name` delivered other samples than `first`."""
    for what in ("samples", "payload_bytes", "crc_sum", "label_sum"):
        if digest[what] != expected[what]:
            raise Failed(
                f"{name} delivered other samples than {first}: its {what} is {digest[what]},"
                f" not {expected[what]}"
            )
    tolerance = MEAN_TOLERANCE / math.sqrt(max(1, digest["samples"]))
    if abs(digest["image_mean"] - expected["image_mean"]) > tolerance:
        raise Failed(f"{name}: its images are not those of {first}")
