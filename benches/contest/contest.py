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
from roster import Contender, Tried

# Of a sweep's runs, in which nobody computes, and of a search's: the share of a measured run's
# seconds that they take at least and at most, and the steps that they are to have within that. A
# loader with workers delivers in bunches, so a few steps tell nothing.
SWEPT, SWEPT_MOST, SWEPT_STEPS = 1 / 20, 1 / 4, 16
TRIED, TRIED_MOST, TRIED_STEPS = 1 / 6, 1 / 3, 24
# Of a contender's configurations those are tried under an accelerator whose rate where nobody
# computes is this share of the highest at least, and no more than so many: who loads while the
# accelerator works may be slower than who does not, and feed it better.
SHORT_LIST, SHORT_LIST_MOST = 0.75, 2
# The shares of a measured run's seconds that a run takes at least and at most, and its steps.
Length = tuple[float, float, int]
WHOLE: Length = (1.0, 1.0, 1)
# Steps under an accelerator that do not count, so that every batch that a loader keeps was there
# once: twice as many as four workers, two batches ahead each, hold.
WARM_UP = 16
# To be taken instead of an earlier configuration, one has to feed an accelerator this much faster.
BETTER = 1.02
# A loader's epoch plays the shards so often, or until it has so many samples: its end, after which
# its pipeline fills anew, is then seldom.
REPEATS_MAX, SAMPLES = 64, 1_000_000
# Means of as many random crops differ by less than this over the root of their number: some five
# standard deviations of a difference of two.
MEAN_TOLERANCE = 2.0


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
        self.is_cache_filled = False
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
        if self.absent and all(one.kind == "forebay" for one in self.contenders):
            # Against nobody there is nothing to play.
            return []
        for one in self.contenders:
            self.convert(one)
        for one in self.contenders:
            self.sweep(one)
        first = {one.name: self.first_epoch(one) for one in self.contenders}
        if self.request.find_rate:
            rounds, sustained = self.sustained()
        else:
            rounds, sustained = self.rounds(), {}
        return [
            {
                "name": one.name,
                "version": one.version,
                "versions": one.versions,
                "python": one.python,
                "configuration": {**one.configuration, "crc": self.crc},
                "sweep": [tried.document() for tried in one.sweep],
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
            found = roster.probe(kind, python, request.images, request.model)
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
                settings=roster.settings(kind, request.images),
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
                one.settings,
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
        """Try what there is to set of a contender; what feeds the fastest accelerator is taken.

        Settings are tried one after the other, each with the best of those before, where nobody
        computes; then the short list of them under an accelerator. A model computes always: of what
        was tried under it the fastest is taken.
        """
        one.configuration = {name: values[0] for name, values in one.settings.items()}
        if all(len(values) == 1 for values in one.settings.values()) and not self.request.find_rate:
            return
        with self.player(one, one.configuration) as at_work:
            self.time_configuration(one, at_work, one.configuration)
            for name, values in one.settings.items():
                for number, value in enumerate(values):
                    self.tell(one.name, number + 1, len(values), f"sweeping {name}")
                    self.time_configuration(one, at_work, {**one.configuration, name: value})
                one.configuration = max(one.sweep, key=lambda tried: tried.rate).configuration
        if self.request.model is not None:
            return
        listed = sorted(one.sweep, key=lambda tried: -tried.rate)[:SHORT_LIST_MOST]
        listed = [tried for tried in listed if tried.rate >= SHORT_LIST * listed[0].rate]
        if len(listed) == 1 and not self.request.find_rate:
            return
        for number, tried in enumerate(listed):
            self.tell(one.name, number + 1, len(listed), "searching")
            self.try_configuration(one, tried)

    def time_configuration(
        self, one: Contender, at_work: Player, configuration: dict[str, Any]
    ) -> None:
        """Time a configuration where nobody computes, unless that was done."""
        if any(tried.configuration == configuration for tried in one.sweep):
            return
        at_work.play("configure", configuration=configuration)
        self.warm(one, at_work)
        run = self.play(one, at_work, 0.0, (SWEPT, SWEPT_MOST, SWEPT_STEPS))
        one.sweep.append(Tried(configuration, run["samples_per_second"]))

    def try_configuration(self, one: Contender, tried: Tried) -> None:
        """Find the fastest accelerator that a configuration feeds, if it is faster than before."""
        au_min = self.request.au_min
        begin = tried.rate / self.nominal / au_min
        with self.player(one, tried.configuration) as at_work:
            self.warm(one, at_work)

            def measure(speed: float) -> float:
                step = self.request.step_seconds / speed
                run = self.play(one, at_work, step, (TRIED, TRIED_MOST, TRIED_STEPS))
                tried.speed, tried.au = speed, run["au_ideal"]
                return tried.au

            if one.speed is not None:
                to_beat = one.speed * BETTER
                if measure(to_beat) < au_min:
                    return
                begin = max(begin, to_beat)
            found = search.fastest(begin, measure, au_min)
        if found is not None and found > (one.speed or 0.0):
            one.configuration, one.speed = tried.configuration, found

    def first_epoch(self, one: Contender) -> dict[str, Any]:
        """Play an epoch from cold: nothing in the page cache, nothing in a tier."""
        self.tell(one.name, 0, 0, "first epoch")
        out_of_page_cache(self.files(one))
        if one.storage == "o_direct":
            # Its sweep filled it, or an earlier contest.
            shutil.rmtree(self.cache, ignore_errors=True)
            self.is_cache_filled = True
        with self.player(one, one.configuration, warm=False) as at_work:
            return self.checked(one, at_work.play("first_epoch"))

    def rounds(self) -> dict[str, list[dict[str, Any]]]:
        """Let all take turns, there and back, each at the accelerator's nominal speed."""
        figures: dict[str, list[dict[str, Any]]] = {one.name: [] for one in self.contenders}
        for number in range(self.request.rounds):
            for one in self.contenders if number % 2 == 0 else self.contenders[::-1]:
                run = self.long_run(one, 1.0, number, "measuring")
                figures[one.name].append({"round": number, **run})
        return figures

    def long_run(self, one: Contender, speed: float, number: int, what: str) -> dict[str, Any]:
        """Play one measured run, and tell of it."""
        self.tell(one.name, number + 1, self.request.rounds, what)
        with self.player(one, one.configuration) as at_work:
            self.warm(one, at_work)
            run = self.play(one, at_work, self.request.step_seconds / speed, WHOLE)
        self.tell(one.name, number + 1, self.request.rounds, "played", run)
        return run

    def sustained(
        self,
    ) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
        """Bear out everybody's fastest accelerator by long runs in turns, there and back."""
        au_min, rounds = self.request.au_min, self.request.rounds
        # Of whom no speed held, the nominal one is tried.
        proofs = {
            one.name: search.Proof(one.speed or 1.0, au_min, rounds) for one in self.contenders
        }
        pending = self.contenders
        while pending:
            for one in pending:
                proof = proofs[one.name]
                run = self.long_run(one, proof.speed, len(proof.runs), "verifying")
                proof.heard(run)
            pending = [one for one in pending[::-1] if not proofs[one.name].is_over]
        return (
            {name: proof.kept for name, proof in proofs.items()},
            {name: self.verdict(proof) for name, proof in proofs.items()},
        )

    def verdict(self, proof: search.Proof) -> dict[str, Any]:
        """Return what long runs came to; what was not borne out is not called sustained."""
        rates = [run["samples_per_second"] for run in proof.kept]
        rate = statistics.median(rates)
        return {
            "rate_over_nominal": round(rate / self.nominal, 2) if proof.is_borne_out else None,
            "samples_per_second": rate,
            "lowest": min(rates),
            "highest": max(rates),
            "au": statistics.median(run["au_ideal"] for run in proof.kept),
            "speed": proof.kept_speed,
        }

    @property
    def nominal(self) -> float:
        """Samples per second of one accelerator at its nominal speed."""
        return self.request.batch_size / self.request.step_seconds

    def warm(self, one: Contender, at_work: Player) -> None:
        """Fill a tier that is empty: in memory each daemon's, on a disk the contest's first."""
        if one.storage == "memory" or (one.storage == "o_direct" and not self.is_cache_filled):
            at_work.play("first_epoch")
            self.is_cache_filled = self.is_cache_filled or one.storage == "o_direct"

    def play(
        self, one: Contender, at_work: Player, step_seconds: float, length: Length
    ) -> dict[str, Any]:
        """Have a contender's accelerator run, and make sure that it was warm."""
        least, most, steps = length
        played = at_work.play(
            "accelerator",
            step_seconds=step_seconds,
            seconds=self.request.seconds * least,
            seconds_max=self.request.seconds * most,
            steps=steps,
            # Where nobody computes, settings are held against each other, which start alike.
            warm_up=WARM_UP if step_seconds > 0 else 1,
            repeats=self.repeats,
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
            model=self.request.model,
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
