"""The loader: batches of tensors from WebDataset shards, resumable, in an order that is a function
of the data set, the seed and the epoch alone.
"""

from __future__ import annotations

import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from forebay import (
    _device,
    _foreign,
    _leases,
    _lookahead,
    _native,
    _options,
    _paths,
    _settings,
    _state,
    _steps,
    frameworks,
    ranks,
    schedule,
)
from forebay._batch import Assembler
from forebay._epoch import Epoch
from forebay._shard_counts import ShardCounts
from forebay._stop import Guard
from forebay._turns import Turns
from forebay._usercode import UserCode
from forebay._values import U64_MAX, whole
from forebay._workers import Processes, Threads, Workers, closed, refuse_in_unborn_worker
from forebay.errors import ForebayError, Invalid
from forebay.fields import Field
from forebay.schedule import Change
from forebay.streams import checked_weights
from forebay.tokens import Tokens

__all__ = ["DataLoader"]


class DataLoader:
    """Batches from WebDataset shards, read through the node's cache and decoded off the GIL.

    One iteration is one epoch. A batch is a dict: one entry for each of `fields`, and

    - ``"__key__"``, ``"__url__"``: the samples' keys and shards, sequences of str;
    - ``"__valid__"``: bool, shape ``(batch,)``; False for padding rows;
    - ``"<name>_present"`` for a field with ``optional=True``;
    - ``"<name>_len"`` for one with ``ragged="pad"`` or ``"nested"``: int64, shape ``(batch,)``.

    Tensors own their memory and may be written. Threads may share an iterator: each batch goes to
    one of them.

    Parameters
    ----------
    urls : str, path or list of them, Join, or list of Stream
        Shards: ``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``, ``file:`` or bare
        paths. In one text braces expand (``{000..099}``), ``::`` joins parts, ``*`` matches local
        files and objects of a bucket, and ``s3://bucket/folder/`` means every shard below it; a
        list is taken literally. A list of `forebay.Stream` mixes data sets; a `forebay.Join` makes
        one sample of those with one key in several shards.
    batch_size : int
        Samples per rank and batch.
    batch_by : Tokens, optional
        Batches of at most so many tokens, in place of `batch_size`.
    pack : bool
        Rows of `batch_by` one after the other, ``(tokens,)``, with ``"cu_seqlens"`` (int32,
        ``(batch + 1,)``), ``"position_ids"`` and ``"max_seqlen"``; False pads them.
    fields : dict of str to Field, optional
        Fields to deliver, as in ``{"image": forebay.Image("jpg")}``. None: every field as a list of
        bytes, under its own extension.
    transform : callable, optional
        Called with each batch; its result is delivered in place of the batch.
    select : callable, optional
        Called with each sample: a dict of its decoded fields (None for a missing one),
        ``"__key__"`` and ``"__url__"``, before any ``map``. Samples with a false result are left
        out: their batch is shorter, and positions do not change.
    drop_empty : bool, optional
        True leaves out batches that skipped and deselected samples leave without a sample;
        positions do not change. None: True, unless ranks that step together would then have
        different numbers of batches.
    workers : int
        Number of workers that run `select`, the fields' ``map`` and `transform`; 0 runs them where
        ``next`` is called. The order of batches is kept.
    worker_type : {"thread", "process"}
        Kind of workers. Processes start by "spawn" at the first batch; functions must be picklable,
        as those of a module are.
    shuffle : {False, True, "none", "window", "global"}
        False is "none", the list's order; True is "window": exact over `window` whole shards at
        a time; "global": exact over everything.
    window : int
        Shards mixed at once, over all lanes together.
    seed : int
        Key of every random draw, 0 to 2**64 - 1.
    drop_last, pad_last : bool
        Treatment of an epoch's last, incomplete global batch: dropped; filled with repeated samples
        marked in ``"__valid__"``; or by default split evenly among the ranks.
    epoch_samples : int, optional
        Samples per epoch over all ranks, if not the data set's own number.
    manifest : path or URL, optional
        A file made by ``forebay index``. Several ranks need it, or `epoch_samples`; a single rank
        learns the sample counts in its first epoch.
    where : str, optional
        Filter over the columns of the manifest's member index: ``"width >= 512 and nsfw < 0.1"``.
        Samples that do not pass are not read, have no position and are not counted.
    on_error : {"raise", "skip", "stop"} or callable
        Treatment of a sample that cannot be used. "skip" logs and counts it: its batch is
        shorter. "stop" ends the epoch there (one rank only). A function of the `ForebayError`
        returns one of these words, once for each error, when its batch is about to be delivered.
    max_errors : int, optional
        Errors skipped per epoch before one is raised. Not for "raise" and "stop", which skip none.
    on_change : {"raise", "serve"}
        Treatment of a shard that changes at its origin during an epoch: an `Unavailable`, or its
        new version.
    verify : {"arrival", "always"}
        Samples in a memory tier are compared with the CRC32C of their arrival by the daemon, from
        time to time ("arrival"), or also for each batch, which copies them ("always").
    rank, world_size : int, optional
        Default: ``torch.distributed``, ``jax.distributed``, ``RANK`` and ``WORLD_SIZE``, the
        variables of an ``srun`` step, or 0 of 1. Resolved at the first iteration.
    lanes : int, optional
        Parallel streams that shards are dealt to; part of the order. Default: by world and batch.
    split : {"static", "dynamic"}
        Distribution of shards to ranks: "static" by the order alone; "dynamic" from a shared queue,
        at each rank's pace. Ranks then have different numbers of batches, and the time and rank of
        a sample vary; each sample still comes once.
    uneven : bool
        True allows different numbers of batches under ``torch.distributed``, for
        ``split="dynamic"``.
    device : None, str or torch.device
        Decoder of images and place of tensors: "cpu", or "cuda" (the GPU of this process's rank on
        its node) or "cuda:N". On a GPU every dense tensor of a batch is there, except ``__valid__``
        and ``<field>_present``; `Image` needs a `size`. None: a GPU if there is one, the tensors
        are torch's or JAX's, and there is no `transform`, `select` or `map`.
    pin_memory : bool, optional
        Copy tensors to pinned memory, as torch's own loader does.
    framework : {"torch", "jax", "numpy"}, optional
        Framework of the tensors. Default: torch if the program has imported it, else NumPy.
    prefetch : int
        Batches kept ready ahead, at most.
    timeout : float
        Seconds; bounds every wait.
    allow_pipe : bool
        True allows shards made by commands: ``"pipe:aws s3 cp s3://bucket/{000..099}.tar -"``. They
        run for this process, by ``/bin/sh`` and with its rights, never in the daemon: take none
        from a list that you do not trust. A command's output is cached under its text for this
        user, and the command does not run again meanwhile.
    daemon : str, optional
        None (or ``FOREBAY_DAEMON``): the node's daemon if it answers, else this user's own,
        started if need be. "embedded": always the latter. "unix:PATH": the daemon there.
    job : str, optional
        Name shown to admins; with ``split="dynamic"`` it separates the queues of jobs.

    Raises
    ------
    Invalid
        Here, for an invalid argument.
    ForebayError
        At the first iteration, if the job cannot be opened.
    """

    @_foreign.explained(_foreign.LOADER)
    def __init__(
        self,
        urls: _options.Sources,
        *,
        batch_size: int = 256,
        batch_by: Tokens | None = None,
        pack: bool = False,
        fields: Mapping[str, Field] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        select: Callable[[dict[str, Any]], Any] | None = None,
        drop_empty: bool | None = None,
        workers: int = 0,
        worker_type: _options.WorkerType = "thread",
        shuffle: _options.Shuffle = False,
        window: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        pad_last: bool = False,
        epoch_samples: int | None = None,
        manifest: str | os.PathLike[str] | None = None,
        where: str | None = None,
        on_error: _options.OnError = "raise",
        max_errors: int | None = None,
        on_change: _options.OnChange = "raise",
        verify: _options.Verify = "arrival",
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        split: _options.Split = "static",
        uneven: bool = False,
        device: Any = None,
        pin_memory: bool | None = None,
        framework: frameworks.Name | None = None,
        prefetch: int = 4,
        timeout: float = 300.0,
        allow_pipe: bool = False,
        daemon: str | None = None,
        job: str | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        _paths.settle_environment()
        with Guard():
            self._options = _options.check(**arguments)
        self._arguments = self._options.settled(arguments)
        self._turns = Turns()  # Held while a batch is taken and while the position moves.
        if rank is not None:
            ranks.resolve(rank, world_size)
        # The epoch's first batch here, and the stride to the next: not 1 in a worker of torch's.
        self._first, self._step = 0, 1
        self._at = self._start(0)  # Position of the next batch.
        # Delivered batches that the caller holds back, and the positions of the latest ones.
        self._held, self._latest = 0, deque[_state.Position](maxlen=_lookahead.HELD_MAX)
        self._begun, self._chosen, self._closed = False, False, False
        self._current: weakref.ref[Epoch] | None = None
        self._lanes, self._version = self._options.lanes, _native.ORDER_VERSION
        self._counted = ShardCounts(self._options)
        self._steps = _steps.Steps(self._options)
        self._weights: list[Change] = []  # Set while the job ran.
        self._learnt: int | None = None  # Samples of a complete epoch over all ranks.
        self._process, self._gpu = _native.forks(), _device.Kept()
        self._native: _native.Loader | None = None
        self._before: _native.Loader | None = None  # For its counts.
        self._place: ranks.Place | None = None
        self._assemble: Assembler | None = None
        self._workers: Workers | None = None
        self._last_stats: str | None = None
        self._counts = _state.Counts()
        self._leases: _leases.Leases | None = None
        if self._options.split == "dynamic":
            self._leases = _leases.Leases(self._options, self._order(), self._counted.shards)

    # Iteration

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch: the next one, if the last was begun and not finished."""
        with self._turns.of(self._assemble):
            self._opened()
            if self._begun:
                self._advance()
            self._begun = True
            if self._leases is not None and self._place is not None:
                self._leases.begin(self._at.epoch, self._place)
            epoch = Epoch(self)
            self._current = weakref.ref(epoch)
            epoch._begun()
            return epoch

    @property
    def epoch(self) -> int:
        """The current epoch, or else the one that the next iteration plays."""
        return self._at.epoch + (1 if self._left_alone() else 0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, from its start.

        After `load_state_dict`, choosing the loaded epoch keeps the loaded position.

        Parameters
        ----------
        epoch : int
            0 or more.
        """
        epoch = whole("epoch", epoch, 0, U64_MAX)
        with self._turns.of(self._assemble):
            if self._begun or epoch != self._at.epoch:
                self._move(self._start(epoch))
            self._chosen = True

    def set_weights(self, weights: Sequence[float]) -> None:
        """Change the weights of mixed streams, from the next batch on.

        They replace schedules, and are part of states. All ranks make a change before one batch.

        Parameters
        ----------
        weights : sequence of float
            One for each stream, 0 or more.

        Raises
        ------
        Invalid
            If the streams have no weights, or for a list that does not fit them.
        """
        new, total = checked_weights(self._options.mixture, weights), self._total() or 0
        with self._turns.of(self._assemble):
            at = self._start(self.epoch) if self._left_alone() else self._at
            first = at.epoch * total + self._steps.settled(at, total, self._job())
            self._change(schedule.changed(self._weights, (first, new)))

    def _change(self, weights: list[Change]) -> None:
        if weights != self._weights:
            self._weights = weights
            self._let_go()

    def __len__(self) -> int:
        """Return the batches per epoch of each rank.

        Raises
        ------
        TypeError
            Without sample counts; the text says how to get them.
        """
        _foreign.refuse_torchs_sampler()
        if self._leases is not None:
            raise TypeError(
                "with split='dynamic' the number of batches of a rank depends on its speed and is "
                "unknown; loader.num_samples counts the samples of all ranks"
            )
        return self._steps.left(_state.Position(self.epoch), self.num_samples, self._job())

    def __bool__(self) -> bool:
        """Return true: `if loader:` asks for a loader, not for its length, which may be unknown."""
        return True

    @property
    def num_samples(self) -> int:
        """Samples in an epoch over all ranks.

        Raises
        ------
        TypeError
            Without sample counts; the text says how to get them.
        """
        return self._counted.total()

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch, counting delivered batches, not prefetched ones.

        It is the same on every rank, and valid for another world size and `batch_size`. After a
        ``break`` it is the position of the break.

        Returns
        -------
        dict
            Numbers and text only: fit for JSON, pickle and ``torch.save``.
        """
        at, total = self._unheld(), self._total()
        if self._leases is not None:
            return self._leases.state(self._own_native(), at.epoch, self._held)
        if total is not None and self._steps.is_over(at, total, self._job()):
            at = self._start(at.epoch + 1)
        return self._saved(at)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`.

        Parameters
        ----------
        state : dict
            From `state_dict` of a loader with the same data set and order.

        Raises
        ------
        Invalid
            Naming the first option that differs.
        """
        with self._turns.of(self._assemble):
            self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        split = state.get("split", "static")
        if split != self._options.split:
            raise Invalid(
                f"the state was saved with split={split!r}, this loader has "
                f"split={self._options.split!r}; use the same value, or start without the state",
                {"option": "split"},
            )
        if self._leases is not None:
            epoch, place = self._leases.load(state)
            self._move(self._start(epoch))
            self._leases.move(place)
            self._chosen = False
            return
        self._count(self._counted.of_state(state))
        order = self._order() | {"lanes": self._options.lanes}  # Default ones give way.
        position, lanes, version = _state.load(state, order, self._counted.shards)
        self._change(schedule.saved(state))
        if (lanes, version) != (self._lanes, self._version):
            self._lanes, self._version = self._options.lanes or lanes, version
            self._let_go()
        self._move(position)
        self._chosen = False

    # Reports and closing

    def stats(self) -> dict[str, Any]:
        """Return the counts of this process.

        Returns
        -------
        dict
            ``batches`` and ``samples`` (without padding) delivered; ``errors`` skipped, and in
            ``bad`` their counts ``by_kind`` and the ``last`` 16; samples rejected by `select`
            (``deselected``); ``slowest``, 16 decodes and calls of user code by ``seconds``. Of
            everything read, some of it ahead: ``decoders``, rows by decoder and reason; ``wait``
            with ``total_seconds``, ``by_cause`` (which sum to it) and ``p50_seconds`` to
            ``max_seconds``; ``bytes`` from the cache (``tier``) and, as they came, from the
            ``origin``; ``private_copies`` of views; ``reconnects``; ``daemon_pid``.
        """
        if self._native is not None and self._process == _native.forks():
            self._last_stats = self._native.stats()
        native = json.loads(self._last_stats or _native.no_stats())
        return _state.stats(self._counts, native)

    def close(self) -> None:
        """End the job. Delivered batches stay valid; the position can still be saved."""
        self._closed = True
        self._acknowledge(self._held)
        if self._leases is not None:
            self._leases.leave(self._own_native(), self._held)
        self._gpu.drop()
        self._let_go()
        self._end_workers()

    def __enter__(self) -> DataLoader:
        """Return the loader itself, closed when the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    if not TYPE_CHECKING:
        # Hidden from type checkers, which report numbers and unknown names by themselves.
        def __getitem__(self, number: Any) -> NoReturn:
            """Reject: samples have no numbers here; see `forebay.IndexedDataset`."""
            raise _foreign.by_number()

        def __getattr__(self, name: str) -> NoReturn:
            raise _foreign.unknown_attribute(type(self), name, _foreign.LOADERS_OWN)

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments alone: the receiving process opens a job of its own.
        return _remake, (self._arguments,)

    def __repr__(self) -> str:
        urls = self._options.urls
        more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
        state = "closed" if self._closed else f"epoch {self.epoch}, batch {self._at.batch}"
        fields = "every field" if self._options.fields is None else ", ".join(self._options.fields)
        return f"<forebay.DataLoader {urls[0]}{more}: {fields}; {self._options.batches()}; {state}>"

    # For Epoch

    def _opened(self) -> _native.Loader:
        """Return the native loader of this process, opened if need be."""
        if self._closed:
            raise closed()
        if self._options.worker_type == "process":
            refuse_in_unborn_worker()
        if self._process != _native.forks():
            # After a fork, sockets and threads are the parent's: drop them untouched.
            self._native, self._workers, self._process = None, None, _native.forks()
            self._before = None
            self._last_stats, self._counts = None, _state.Counts()
        if self._native is None:
            place = ranks.resolve(self._options.rank, self._options.world_size)
            if self._options.rank is None and self._step == 1:
                ranks.refuse_many_workers()
            if self._place != place:
                ranks.log_once(place)
            self._place = place
            if self._leases is not None:
                _leases.refuse_ranks_in_step(self._options.uneven)
                if ranks.torch_worker() is not None:
                    _leases.refuse_torchs_loader()
            if self._options.on_error == "stop":
                self._may_stop()
            self._assembler()
            device = self._device()
            order = (self._lanes, self._version, self._counted.samples)
            settings = _settings.of(self._options, place, order, self._step, self._weights)
            of = self._options.selection(), self._options.cut(), self._options.places()
            self._native = _native.Loader(json.dumps(settings), self._before, device, *of)
            if self._options.mixture is None and self._leases is None:
                self._lanes = self._native.lanes()
            if self._counts.errors:
                # Skipped samples belong to this loader, in whatever session.
                self._native.tell(self._counts.bad.to_json())
        return self._native

    def _assembler(self) -> Assembler:
        if self._assemble is None:
            options = self._options
            framework = frameworks.choose(options.framework)
            fields = options.fields or {}
            place = self._place or self._resolved()
            drops = options.drops_empty(place.world_size)
            layout = options.layout()
            code = UserCode(fields, framework, options.select, options.transform, drops, layout)
            self._assemble = Assembler(code, options.pin_memory)
        return self._assemble

    def _device(self) -> _native.Device | None:
        options, name = self._options, self._assembler().code.framework.name
        maps = [field.map for field in (options.fields or {}).values()]
        has_code = any(part is not None for part in (options.select, options.transform, *maps))
        suits = options.device.suits(options.fields, name, has_code, bool(ranks.torch_worker()))
        return self._gpu.get(options.device, options.fields, name, suits)

    def _pool(self) -> Workers | None:
        options = self._options
        if options.workers and self._workers is None:
            kind = Processes if options.worker_type == "process" else Threads
            assembler = self._assembler()
            self._workers = kind(options.workers, assembler.code, assembler.finish)
        return self._workers

    def _end_workers(self) -> None:
        workers, self._workers = self._workers, None
        # After a fork they are the parent's.
        if workers is not None and self._process == _native.forks():
            workers.end()

    def _is_current(self, epoch: Epoch) -> None:
        if self._current is None or self._current() is not epoch:
            raise Invalid(
                "the loader has begun another iteration, or was moved, since this one began; "
                "go on with a new one"
            )

    def _start_run(self, native: _native.Loader) -> None:
        if self._leases is None:
            native.start(self._at.epoch, self._at.base, self._at.batch, self._step)
        else:
            self._leases.start(native)

    def _acknowledge(self, held: int = 0) -> None:
        """Count every delivered batch as finished, but the last `held`."""
        if self._leases is not None:
            self._leases.acknowledge(self._own_native(), held)

    def _own_native(self) -> _native.Loader | None:
        return self._native if self._process == _native.forks() else None

    def _skipped(self, errors: list[ForebayError]) -> None:
        if not errors:
            return
        self._counts.errors += len(errors)
        self._counts.bad.add(errors)
        if self._native is not None:
            self._native.tell(self._counts.bad.to_json())

    def _handed_out(self, samples: int, deselected: int, dropped: bool) -> None:
        self._counts.batches += not dropped
        self._counts.samples += samples
        self._counts.deselected += deselected
        if not dropped:
            self._latest.append(self._at)
            self._held = min(_lookahead.held(), len(self._latest))
        self._at = self._at.next_batch(self._step)
        self._chosen = True
        if self._leases is not None:
            self._leases.hand_out()

    def _learn(self, samples: int) -> None:
        # With a shared queue a rank learns only its own samples.
        if self._leases is None:
            self._learnt = samples

    def _end(self, epoch: Epoch, stopped: bool) -> bool:
        """Advance past the epoch that just ended; False if the iteration is to continue.

        It continues if a state was saved after an unknown last batch, and no epoch was chosen
        since.
        """
        self._held = 0
        moved = self._at != self._start(self._at.epoch)
        resumed_at_end = not stopped and not self._chosen and moved
        self._advance()
        if not stopped:
            self._use_learnt()
        if resumed_at_end:
            self._begun, self._current = True, weakref.ref(epoch)
        return not resumed_at_end

    def _may_stop(self) -> None:
        if self._step > 1 or (self._place is not None and self._place.world_size > 1):
            raise Invalid(
                "on_error='stop' ends one of several ranks or workers; use 'raise' or 'skip'",
                {"option": "on_error"},
            )

    def _saved(self, at: _state.Position) -> dict[str, Any]:
        samples = self._steps.samples(at, self._job())
        urls = self._counted.urls if self._counted.are_learnt else None
        order = (self._order(), self._version)
        state = _state.save(at.epoch, samples, order, self._counted.shards, urls)
        return schedule.save(state, self._weights)

    # For forebay.torch

    def _take_every(self, first: int, step: int) -> None:
        """Deliver every `step`-th batch of an epoch, from batch `first` on."""
        if self._leases is not None:
            _leases.refuse_torchs_loader()
        at_start = self._at == self._start(self._at.epoch)
        self._first, self._step = first, step
        if at_start:
            self._at = self._start(self._at.epoch)

    def _arguments_here(self) -> dict[str, Any]:
        """Return the arguments for a worker of this rank, or for a rank of a process alone."""
        place = self._resolved()
        known = {} if place.is_alone else {"rank": place.rank, "world_size": place.world_size}
        return self._arguments | known

    def _resolved(self) -> ranks.Place:
        return ranks.resolve(self._options.rank, self._options.world_size)

    # Parts

    def _left_alone(self) -> bool:
        """True if an iteration was begun and has no iterator any more."""
        return self._begun and (self._current is None or self._current() is None)

    def _advance(self) -> None:
        self._move(self._start(self._at.epoch + 1))

    def _unheld(self) -> _state.Position:
        """Return the position before batches that the caller holds back."""
        return self._latest[-self._held] if self._held else self._at

    def _start(self, epoch: int) -> _state.Position:
        return _state.Position(epoch, 0, self._first)

    def _move(self, to: _state.Position) -> None:
        if self._leases is not None:
            self._acknowledge(self._held)
            self._leases.move()
        if self._current is not None and (old := self._current()) is not None:
            old.leave()
        self._at, self._held = to, 0
        self._latest.clear()
        self._begun, self._current = False, None

    def _let_go(self) -> None:
        native, self._native = self._native, None
        if self._process != _native.forks():
            return
        if native is not None:
            self._last_stats = native.stats()
            native.close()
            self._before = native

    def _job(self) -> _steps.Job:
        return self._place or self._resolved(), (self._lanes, self._version), self._weights

    def _total(self) -> int | None:
        known = self._counted.samples is not None or self._options.epoch_samples is not None
        return self.num_samples if known else self._learnt

    def _order(self) -> dict[str, Any]:
        """Return every option that the order of samples is a function of."""
        options = self._options
        return {
            "seed": options.seed,
            "shuffle": options.shuffle,
            "window": options.window if options.shuffle == "window" else None,
            "lanes": self._lanes,
            "epoch_samples": options.epoch_samples,
            "drop_last": options.drop_last,
            "pad_last": options.pad_last,
        } | options.described()

    def _use_learnt(self) -> None:
        """Use the counts learnt in the ended epoch for later epochs.

        Never with several ranks, or under torch's workers: they would have to agree first, and the
        next epoch begins on each by itself.
        """
        place, native = self._place, self._native
        if self._counted.samples is None and native is not None and place is not None:
            alone = place.world_size == 1 and self._step == 1 and self._options.mixture is None
            learnt = native.learnt() if alone else None
            if learnt is not None and sum(learnt) > 0:
                self._count(learnt)

    def _count(self, samples: list[int] | None) -> None:
        if self._counted.use(samples):
            self._let_go()
            self._lanes = self._options.lanes


def _remake(arguments: dict[str, Any]) -> DataLoader:
    return DataLoader(**arguments)
