"""The contest: finds the contenders, tunes them, and runs them in turns.

Only equal work counts. Each run is a process of its own, and the order reverses every round. A
contender that fails, or that delivers other samples than the first one, is out: the report keeps
the step and the reason, and the others go on. Without Forebay, or without a rival, the contest
ends.
"""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import conversions
import roster
import search
import shards
from contender import Task, words
from conversions import Conversion
from handover import HANDOVER
from place import in_memory, no_room, out_of_page_cache, page_cache, place
from players import Failed, Player, player
from request import Request
from roster import PAGE_CACHE, Contender, Tried

# Of a sweep's runs, in which nobody computes, and of a search's: the share of a measured run's
# seconds that they take at least and at most, and the steps that they are to have within that. A
# loader with workers delivers in bunches, so a few steps tell nothing.
SWEPT, SWEPT_MOST, SWEPT_STEPS = 1 / 20, 1 / 4, 16
TRIED, TRIED_MOST, TRIED_STEPS = 1 / 6, 1 / 3, 24
# Of a contender's configurations, but for what is tried under an accelerator only, those are tried
# there whose rate where nobody computes is this share of the highest at least, and no more than so
# many: who loads while the accelerator works may be slower than who does not, and feed it better.
SHORT_LIST, SHORT_LIST_MOST = 0.75, 2
# The shares of a measured run's seconds that a run takes at least and at most, and its steps.
Length = tuple[float, float, int]
WHOLE: Length = (1.0, 1.0, 1)
# Steps under an accelerator that do not count, so that batches made while the pipeline filled have
# gone by and every piece of memory was used once: so many, or twice as many as batches are ready at
# most if that is more (of four workers, with four each, 32). What takes longer than the longest run
# of its kind has no batches ready whose memory would be new.
WARM_UP, WARM_UP_ROUNDS = 16, 2
# To be taken instead of an earlier configuration, one has to feed an accelerator this much faster.
BETTER = 1.02
# An epoch plays the shards this often, or until it has this many samples: its end, after which the
# pipeline fills anew, is then rare.
REPEATS_MAX, SAMPLES = 64, 1_000_000
# Means of equally many random crops differ by less than this over the root of their number: some
# five standard deviations of a difference of two.
MEAN_TOLERANCE = 2.0


class Tell(Protocol):
    """Reports a contender's progress (round, of how many, doing what) and the figures of a run."""

    def __call__(
        self,
        contender: str,
        number: int,
        of: int,
        what: str,
        run: dict[str, Any] | None = None,
        /,
    ) -> None:
        """Report it."""


@dataclass(frozen=True)
class Fallen:
    """A contender that is out: the step that failed, and the reason."""

    contender: Contender
    doing: str
    why: str


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
        self.fallen: list[Fallen] = []
        self.conversions: dict[str, Conversion] = {}
        self.digest: tuple[str, dict[str, Any]] | None = None
        self.crc = "zlib"

    def run(self) -> None:
        """Play it all; measured figures stay with the contenders even when it ends early."""
        self.gather()
        without = [one["why"] for one in self.absent if one["name"].startswith("forebay")]
        is_there = any(one.kind == "forebay" for one in self.contenders)
        if "forebay" in self.request.contenders and not is_there:
            # The rivals alone answer nothing, and take hours for it.
            raise Failed("; ".join(without))
        is_against_others = any(kind != "forebay" for kind in self.request.contenders)
        if is_against_others and all(one.kind == "forebay" for one in self.contenders):
            # Against nobody there is nothing to play.
            self.contenders = []
        if not self.contenders:
            return
        self.have_all("converting", self.convert)
        self.have_all("looking", self.weigh)
        self.have_all("sweeping", self.sweep)
        self.have_all("first epoch", self.first_epoch)
        if self.request.find_rate:
            self.sustained()
        else:
            self.rounds()

    def have_all(self, doing: str, play: Callable[[Contender], None], turned: bool = False) -> None:
        """Run a step for every contender, in order or in reverse."""
        for one in self.contenders[::-1] if turned else self.contenders[:]:
            self.have(one, doing, play)

    def have(self, one: Contender, doing: str, play: Callable[[Contender], None]) -> None:
        """Run a step for one contender; one that fails is out."""
        try:
            play(one)
        # A full disk is blamed on the contender that was writing.
        except (Failed, OSError, subprocess.SubprocessError) as error:
            why = str(error) if isinstance(error, Failed) else f"{one.name}: {words(error)}"
            self.contenders.remove(one)
            self.fallen.append(Fallen(one, doing, why))
            told = f"{one.name} is out ({doing}): {why}"
            print(f"contest: {told}", file=sys.stderr, flush=True)
            if one.kind == "forebay" or not self.contenders:
                raise Failed(told) from error

    def failed(self) -> list[dict[str, Any]]:
        """Return the contenders that are out: step, reason, and figures until then."""
        return [
            {**self.figures(fallen.contender), "doing": fallen.doing, "why": fallen.why}
            for fallen in self.fallen
        ]

    def figures(self, one: Contender) -> dict[str, Any]:
        """Return a contender's figures."""
        return {
            "name": one.name,
            "version": one.version,
            "versions": one.versions,
            "python": one.python,
            "configuration": {**one.configuration, "crc": self.crc},
            "settings": one.settings,
            "sweep": [tried.document() for tried in one.sweep],
            "conversion_seconds": self.converted(one, "seconds"),
            "conversion_bytes": self.converted(one, "bytes"),
            "storage": one.storage,
            "first_epoch": one.first_epoch,
            "rounds": one.rounds,
            "sustained": one.sustained,
        }

    def gather(self) -> None:
        """Find the contenders that can take part."""
        request = self.request
        all_isal = True
        kinds = list(dict.fromkeys(request.contenders))
        self.tell(", ".join(kinds), 0, 0, "looking")

        def probe(kind: str) -> dict[str, Any]:
            return roster.probe(kind, request.python(kind), request.images, request.model)

        with ThreadPoolExecutor(roster.PROBES) as threads:
            probed = list(threads.map(probe, kinds))
        for kind, found in zip(kinds, probed, strict=True):
            python = request.python(kind)
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
                settings=roster.settings(
                    kind,
                    request.images,
                    request.model,
                    request.usable(),
                    roster.decoders(found),
                ),
            )
            self.contenders += self.faces(one)
        # All take the same checksum, the fast one if all have it.
        self.crc = "isal" if all_isal else "zlib"

    def faces(self, one: Contender) -> Iterator[Contender]:
        """Yield a contender once for each storage tier that it reads from."""
        if one.kind != "forebay":
            yield one
            return
        one.storage = "o_direct"
        if why := in_memory(self.work):
            self.absent.append({"name": one.name, "why": why})
        else:
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

    def weigh(self, one: Contender) -> None:
        """Check that a contender's files are in memory once they were read."""
        if one.storage == PAGE_CACHE:
            one.storage = page_cache(self.files(one), self.request.memory_bytes)

    def converted(self, one: Contender, what: str) -> Any:
        """Return a figure of the contender's conversion, if it has one."""
        made = self.conversions.get(one.name)
        return None if made is None else getattr(made, what)

    def sweep(self, one: Contender) -> None:
        """Try a contender's settings; the ones that feed the fastest accelerator win.

        Settings are tried one after the other without computation, each with the best of those
        before. Then the short list is tried under an accelerator, and the ways to take batches over
        with the best of it. A model always computes: there the fastest of the tried settings wins.
        """
        one.configuration = {name: values[0] for name, values in one.settings.items()}
        if all(len(values) == 1 for values in one.settings.values()) and not self.request.find_rate:
            return
        names = list(one.settings)
        # What shows only while an accelerator works, and is tried there.
        under = [HANDOVER] if HANDOVER in names and not self.request.model else []
        self.time_settings(one, [name for name in names if name not in under])
        if self.request.model is not None:
            return
        listed = self.short_list(one.sweep)[:SHORT_LIST_MOST]
        if len(listed) == 1 and not under and not self.request.find_rate:
            return
        for number, tried in enumerate(listed):
            self.tell(one.name, number + 1, len(listed), "searching")
            self.try_configuration(one, tried)
        if under:
            self.try_handovers(one)

    def try_handovers(self, one: Contender) -> None:
        """Try the other ways to take batches over, with the best of the other settings."""
        taken = one.configuration
        self.time_settings(one, [HANDOVER])
        one.configuration = taken
        for tried in self.short_list(one.sweep):
            others = {**tried.configuration, HANDOVER: taken[HANDOVER]}
            if others == taken != tried.configuration:
                self.tell(one.name, 0, 0, f"searching {HANDOVER}")
                self.try_configuration(one, tried)

    @staticmethod
    def short_list(sweep: list[Tried]) -> list[Tried]:
        """Return the configurations near the highest rate, the fastest first."""
        listed = sorted(sweep, key=lambda tried: -tried.rate)
        return [tried for tried in listed if tried.rate >= SHORT_LIST * listed[0].rate]

    def time_settings(self, one: Contender, names: list[str]) -> None:
        """Time settings without computation, and take the best of each before the next.

        A configuration that cannot be played loses; if the first one cannot, the contender has
        failed.
        """
        with ExitStack() as stack:
            at_work: Player | None = None
            # With nothing to set there is still a rate to begin with.
            for name in names or [""]:
                rates: dict[Any, float] = {}
                for number, value in enumerate(values := one.settings.get(name, ("",))):
                    if isinstance(value, int) and roster.is_hopeless(value, rates):
                        continue
                    self.tell(one.name, number + 1, len(values), f"sweeping {name}")
                    own = {name: value} if name else {}
                    if at_work is None:
                        at_work = stack.enter_context(self.player(one, one.configuration))
                    tried = self.timed(one, at_work, {**one.configuration, **own})
                    rates[value] = tried.rate
                    if tried.why is not None and len(one.sweep) == 1:
                        raise Failed(tried.why)
                    if tried.why is not None:
                        # Its process has ended, or hangs.
                        stack.close()
                        at_work = None
                one.configuration = max(one.sweep, key=lambda tried: tried.rate).configuration

    def timed(self, one: Contender, at_work: Player, configuration: dict[str, Any]) -> Tried:
        """Time a configuration without computation, unless it was timed before."""
        for tried in one.sweep:
            if tried.configuration == configuration:
                return tried
        try:
            at_work.play("configure", configuration=configuration)
            self.warm(one, at_work)
            run = self.play(one, at_work, 0.0, (SWEPT, SWEPT_MOST, SWEPT_STEPS), configuration)
            tried = Tried(configuration, run["samples_per_second"])
        except Failed as error:
            tried = Tried(configuration, 0.0, str(error))
        one.sweep.append(tried)
        return tried

    def try_configuration(self, one: Contender, tried: Tried) -> None:
        """Find the fastest accelerator that a configuration feeds, if it beats the best so far."""
        try:
            found = self.fastest(one, tried)
        except Failed as error:
            tried.why = str(error)
            return
        if found is not None and found > (one.speed or 0.0):
            one.configuration, one.speed = tried.configuration, found

    def fastest(self, one: Contender, tried: Tried) -> float | None:
        """Search for that speed; return None if it does not beat the best so far."""
        au_min = self.request.au_min
        begin = tried.rate / self.nominal / au_min
        with self.player(one, tried.configuration) as at_work:
            self.warm(one, at_work)

            def measure(speed: float) -> float:
                step = self.request.step_seconds / speed
                run = self.play(
                    one, at_work, step, (TRIED, TRIED_MOST, TRIED_STEPS), tried.configuration
                )
                tried.speed, tried.au = speed, run["au_ideal"]
                return tried.au

            if one.speed is not None:
                to_beat = one.speed * BETTER
                if measure(to_beat) < au_min:
                    return None
                begin = max(begin, to_beat)
            return search.fastest(begin, measure, au_min)

    def first_epoch(self, one: Contender) -> None:
        """Play an epoch from cold: nothing in the page cache or in a tier; then digest one."""
        self.tell(one.name, 0, 0, "first epoch")
        out_of_page_cache(self.files(one))
        if one.storage == "o_direct":
            # Its sweep filled it, or an earlier contest.
            shutil.rmtree(self.cache, ignore_errors=True)
            self.is_cache_filled = True
        with self.player(one, one.configuration, warm=False) as at_work:
            epoch = at_work.play("first_epoch")
            one.first_epoch = {**epoch, "digest": at_work.play("digest")}
        self.check(one, one.first_epoch["digest"])

    def rounds(self) -> None:
        """Let all contenders take turns, there and back, at the accelerator's nominal speed."""
        for number in range(self.request.rounds):

            def measure(one: Contender, number: int = number) -> None:
                run = self.long_run(one, 1.0, number, "measuring")
                one.rounds.append({"round": number, **run})
                self.told(one, number, run)

            self.have_all("measuring", measure, turned=number % 2 == 1)

    def long_run(self, one: Contender, speed: float, number: int, what: str) -> dict[str, Any]:
        """Play one measured run."""
        self.tell(one.name, number + 1, self.request.rounds, what)
        with self.player(one, one.configuration) as at_work:
            self.warm(one, at_work)
            step = self.request.step_seconds / speed
            return self.play(one, at_work, step, WHOLE, one.configuration)

    def told(self, one: Contender, number: int, run: dict[str, Any]) -> None:
        """Report a measured run once it is among the contender's figures."""
        self.tell(one.name, number + 1, self.request.rounds, "played", run)

    def sustained(self) -> None:
        """Confirm every contender's fastest accelerator by long runs in turns, there and back."""
        au_min, rounds = self.request.au_min, self.request.rounds
        # A contender without a sustained speed starts from the nominal one.
        proofs = {
            one.name: search.Proof(one.speed or 1.0, au_min, rounds) for one in self.contenders
        }

        def verify(one: Contender) -> None:
            proof = proofs[one.name]
            number = len(proof.runs)
            run = self.long_run(one, proof.speed, number, "verifying")
            proof.heard(run)
            one.rounds = proof.kept or proof.runs
            if proof.is_over:
                one.sustained = self.verdict(proof)
            self.told(one, number, run)

        pending = self.contenders[:]
        while pending:
            for one in pending:
                self.have(one, "verifying", verify)
            pending = [
                one
                for one in pending[::-1]
                if one in self.contenders and not proofs[one.name].is_over
            ]

    def verdict(self, proof: search.Proof) -> dict[str, Any]:
        """Return the outcome of long runs; an unconfirmed speed is not called sustained."""
        rates = [run["samples_per_second"] for run in proof.kept]
        rate = statistics.median(rates)
        return {
            "rate_over_nominal": rate / self.nominal if proof.is_borne_out else None,
            "samples_per_second": rate,
            "lowest": min(rates),
            "highest": max(rates),
            "au": statistics.median(run["au_ideal"] for run in proof.kept),
            "speed": proof.kept_speed,
            "tried": proof.tried,
        }

    @property
    def nominal(self) -> float:
        """Samples per second of one accelerator at its nominal speed."""
        return self.request.batch_size / self.request.step_seconds

    def warm(self, one: Contender, at_work: Player) -> None:
        """Fill an empty tier: in memory each daemon's, on a disk the contest's first."""
        if one.storage == "memory" or (one.storage == "o_direct" and not self.is_cache_filled):
            at_work.play("first_epoch")
            self.is_cache_filled = self.is_cache_filled or one.storage == "o_direct"

    def play(
        self,
        one: Contender,
        at_work: Player,
        step_seconds: float,
        length: Length,
        configuration: dict[str, Any],
    ) -> dict[str, Any]:
        """Run a contender's accelerator, and check that the run was warm."""
        least, most, steps = length
        ahead = roster.most_ahead(one.kind, configuration)
        played = at_work.play(
            "accelerator",
            step_seconds=step_seconds,
            seconds=self.request.seconds * least,
            seconds_max=self.request.seconds * most,
            steps=steps,
            # Where nobody computes, settings are held against each other, which start alike.
            warm_up=max(WARM_UP, WARM_UP_ROUNDS * ahead) if step_seconds > 0 else 1,
            repeats=self.repeats,
        )
        # Of all that the CPUs could have done: the rest is what nobody made use of.
        could = played["wall_seconds"] * self.request.usable()
        played["cpu_share"] = played["cpu_seconds"] / could
        before, after = played.pop("before"), played.pop("after")
        if one.kind == "forebay":
            fetched = after["loader"]["bytes"]["origin"] - before["loader"]["bytes"]["origin"]
            if fetched > 0:
                raise Failed(
                    f"{one.name} fetched {fetched} bytes from the origin in a run that should"
                    " be warm: its cache is too small for all of them (FOREBAY_CAPACITY)"
                )
        return played

    def files(self, one: Contender) -> list[str]:
        """Return the files a contender reads through the page cache."""
        made = self.conversions.get(one.name)
        if one.kind in ("forebay", "dali") or made is None:
            return self.request.shards
        return conversions.files(made.folder)

    @contextmanager
    def player(
        self, one: Contender, configuration: dict[str, Any], warm: bool = True
    ) -> Iterator[Player]:
        """Start a contender's process; for a warm run a rival's files are read first."""
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
            preread=self.files(one) if warm and one.storage == PAGE_CACHE else [],
        )
        forebay, before = self.request.command(), self.before
        with (
            place(one, self.request.shards, self.cache, forebay, before) as environment,
            player(one.name, one.kind, one.python, task, environment, before) as at_work,
        ):
            yield at_work

    def check(self, one: Contender, digest: dict[str, Any]) -> None:
        """Check that an epoch held the same samples as the first contender's."""
        if self.digest is None:
            self.digest = (one.name, digest)
        compare(self.digest[0], self.digest[1], one.name, digest)


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
