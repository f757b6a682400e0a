"""Lets requests to models through one by one where a provider or the operator limits them (protocol §7.9).

Every key and model has one queue in the ledger, which all workers share; `turnstile.rules.model_queue` decides. A
worker keeps a copy of those that hold requests up. A model without a rate has none until its provider refuses a
request: that costs no statement. Then, and always with a rate, a request joins the queue before it is sent (one round
trip, for all that join at the moment together) and settles afterwards (another one, which nobody waits for).

Who changes a queue so that others may go tells their workers by a signal. A lost signal delays: who waits looks again
when a pause, a minute or another worker's life is over, and once NATS is back. A pause is signalled before it is
stored, since it only forbids.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from turnstile.ledger.budgets.model_queues import StoredQueue, load_model_queues, swap_model_queue
from turnstile.ledger.pool import Pool
from turnstile.rules.model_queue import (
    LONGEST_PAUSE,
    RENEW_SECONDS,
    Accept,
    Change,
    Join,
    Leave,
    ModelQueue,
    Refuse,
    Settle,
    changed,
    next_look,
)
from turnstile.runtime.ports import Signals
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import ProjectId
from turnstile.schema.model_rates import ModelRate, rate_of

log = logging.getLogger(__name__)

RATE_LIMITED = "rate_limited"
NO_TURN = "rate_limit_timeout"
"""`error_code` of a turn whose request did not have its turn within `[model].patience_seconds`."""
_LEAST_SECONDS = 0.005
_MARGIN_SECONDS = 0.05
"""By which a pause is longer than its provider asks, since clocks are read at a distance."""
_MOST_COPIES = 1_000
_LEAST_PATIENCE = 1.0
"""Seconds that joining a queue may take, where it is not known that the wait is longer."""
_CLOSE_SECONDS = 2.0


class QueueSignal(Tolerant):
    """What a worker says of a queue to the others."""

    worker: str
    account: str
    model: str
    paused_until: float = 0.0
    is_open: bool = False
    """Whether requests need no place in it any more."""
    to: tuple[str, ...] = ()
    """The workers whose requests may go now."""


@dataclass(slots=True)
class Pass:
    """Leave to send one request; `end` is called once it is over, whatever came of it."""

    queues: "ModelQueues"
    account: str
    model: str
    ticket: str | None = None
    """Its place in a queue, if it needed one."""
    reached_provider: bool = False
    is_accepted: bool = False
    is_held: bool = False
    """Whether `before_send` has refused."""
    _is_over: bool = False

    def before_send(self) -> None:
        """Raise `ModelError` if a pause has begun since the request was let through."""
        if self.queues.is_paused(self.account, self.model):
            self.is_held, self.reached_provider = True, False
            raise ModelError(RATE_LIMITED, f"{self.model}: the provider wants no requests now", retryable=True)
        self.reached_provider = True

    def accepted(self) -> None:
        """The provider has begun to answer."""
        if self.ticket is not None and not self._is_over and not self.is_accepted:
            self.is_accepted = True
            self.queues.accept(self.account, self.model, self.ticket)

    def refused(self, retry_after: float | None) -> None:
        """The provider has refused the request, and wants none for so long."""
        if not self._is_over:
            self._is_over = True
            self.queues.refuse(self.account, self.model, self.ticket, retry_after)

    def end(self, tokens: int | None) -> None:
        """The request is over, and used so many tokens; None: nobody knows. A repeat has no effect."""
        if not self._is_over:
            self._is_over = True
            if self.ticket is not None:
                over = Settle(self.ticket, tokens) if self.reached_provider else Leave(self.ticket)
                self.queues.end(self.account, self.model, over, is_accepted=self.is_accepted)


@dataclass(slots=True)
class _Waiter:
    join: Join
    until: float
    """When its patience ends, by the ledger's clock."""
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Copy:
    """A queue as this worker knows it."""

    account: str
    model: str
    rate: ModelRate | None
    queue: ModelQueue = field(default_factory=ModelQueue)
    version: int | None = None
    paused_until: float = 0.0
    """As a signal or a refusal said, which may not be stored yet."""
    changes: list[Change] = field(default_factory=list[Change])
    waiters: dict[str, _Waiter] = field(default_factory=dict[str, _Waiter])
    is_due: bool = False
    writing: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def is_paused(self, now: float) -> bool:
        return max(self.paused_until, self.queue.paused_until) > now

    @property
    def is_used(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self.changes or self.waiters or self.is_due or self.writing)

    def is_needed(self, now: float) -> bool:
        """Whether requests have to join it, or somebody waits for it."""
        holds_up = self.paused_until > now or not self.queue.is_open(now)
        return self.rate is not None or self.is_used or holds_up


class ModelQueues:
    """The queues of one worker process."""

    def __init__(
        self,
        pool: Pool,
        signals: Signals,
        account: Callable[[str], str],
        rates: Mapping[str, ModelRate] | None = None,
        *,
        retry_initial_seconds: float = 1.0,
        retry_max_seconds: float = 30.0,
        telemetry: Telemetry = SILENT,
    ) -> None:
        """`account` names the key and the server by which a model is asked, without saying the key."""
        self._pool, self._signals, self._account, self._rates = pool, signals, account, rates or {}
        self._initial, self._longest = retry_initial_seconds, retry_max_seconds
        self._meter = telemetry.meter
        self.worker = uuid.uuid4().hex[:12]
        self._copies: dict[tuple[str, str], _Copy] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock = time.time() - time.monotonic()
        """The ledger's clock, less this process's."""
        telemetry.meter.watch(Metric.MODEL_WAITING, self._count_waiting)

    async def open(self) -> None:
        """Hear of the queues of others, then read those that hold requests up. Raises what `Pool.run` raises."""
        await self._signals.hear(self._take, lambda: self._spawn(self._load_again()))
        await self._load()

    async def close(self) -> None:
        """Write what is not written yet, within moments."""
        for copy in self._copies.values():
            if copy.timer is not None:
                copy.timer.cancel()
        writing = [copy.writing for copy in self._copies.values() if copy.writing is not None]
        if writing:
            await asyncio.wait(writing, timeout=_CLOSE_SECONDS)
        left = {*writing, *self._tasks}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def has_rate(self, model: str) -> bool:
        """Whether the tokens of a request to the model are reserved."""
        return (rate := rate_of(self._rates, model)) is not None and rate.tokens_per_minute is not None

    async def enter(self, model: str, project: ProjectId, tokens: int, patience: float) -> Pass:
        """Wait for the turn of a request with so many tokens; at once, without I/O, where nothing limits the model.

        Raises `ModelError` (`rate_limited`) if it does not come within `patience` seconds, as soon as that is known.
        """
        account = self._account(model)
        copy, rate = self._copies.get((account, model)), rate_of(self._rates, model)
        if copy is None and rate is None:
            return Pass(self, account, model)
        copy = self._copy(account, model)
        now = self._now()
        waiter = _Waiter(Join(uuid.uuid4().hex[:12], project, tokens), now + patience, asyncio.Future())
        if max(copy.paused_until, copy.queue.paused_until) > waiter.until:
            raise _out_of_patience(model)
        copy.waiters[waiter.join.ticket] = waiter
        self._change(copy, waiter.join)
        how, began = "stopped", time.monotonic()
        try:
            async with asyncio.timeout(max(patience, _LEAST_PATIENCE)):
                await waiter.turn
            how = "sent"
        except (TimeoutError, ModelError):
            how = RATE_LIMITED
            raise _out_of_patience(model) from None
        finally:
            copy.waiters.pop(waiter.join.ticket, None)
            if how != "sent":
                self._change(copy, Leave(waiter.join.ticket))
            elif copy.writing is None:
                self._rest(copy)
            self._meter.observe(Metric.MODEL_WAIT, time.monotonic() - began, model=model, outcome=how)
        return Pass(self, account, model, waiter.join.ticket)

    def is_paused(self, account: str, model: str) -> bool:
        """Whether the provider wants no requests now."""
        copy = self._copies.get((account, model))
        return copy is not None and copy.is_paused(self._now())

    def accept(self, account: str, model: str, ticket: str) -> None:
        """Say that the provider has begun to answer; written where others wait for that."""
        copy = self._copies.get((account, model))
        if copy is not None and copy.queue.window:
            self._change(copy, Accept(ticket))

    def end(self, account: str, model: str, over: Settle | Leave, *, is_accepted: bool) -> None:
        """Say that a request is over; written where others wait for that, or its tokens are counted."""
        copy = self._copies.get((account, model))
        if copy is not None and (copy.rate is not None or not is_accepted):
            self._change(copy, over)

    def refuse(self, account: str, model: str, ticket: str | None, retry_after: float | None) -> None:
        """Let no request to the model through for as long as its provider wants; the other workers hear of it."""
        copy, now = self._copy(account, model), self._now()
        until = now + copy.queue.pause_seconds(retry_after, self._initial, self._longest) + _MARGIN_SECONDS
        if not copy.is_paused(now):
            self._meter.count(Metric.MODEL_PAUSES, model=model)
            log.warning("%s wants no requests for %.1f s", model, until - now)
        if until > copy.paused_until:
            copy.paused_until = until
            self._spawn(self._signal(copy))
        self._change(copy, Refuse(ticket, until))

    # -- the copy ------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() + self._clock

    def _count_waiting(self) -> float:
        return sum(len(copy.waiters) for copy in tuple(self._copies.values()))

    def _copy(self, account: str, model: str) -> _Copy:
        key = account, model
        if (copy := self._copies.get(key)) is None:
            if len(self._copies) >= _MOST_COPIES:  # many names that one pattern matches: what is idle is read again
                self._copies = {key: copy for key, copy in self._copies.items() if copy.is_used}
            copy = self._copies[key] = _Copy(account, model, rate_of(self._rates, model))
        return copy

    def _change(self, copy: _Copy, *changes: Change) -> None:
        copy.changes += changes
        self._look(copy)

    def _look(self, copy: _Copy) -> None:
        """Write its changes, or see who may go now: one task at a time, with all that has come until then."""
        copy.is_due = True
        self._copies[copy.account, copy.model] = copy
        if copy.writing is None:
            copy.writing = asyncio.create_task(self._write_all(copy), name=f"queue of {copy.model}")

    async def _write_all(self, copy: _Copy) -> None:
        try:
            while copy.is_due:
                copy.is_due = False
                changes, copy.changes = copy.changes, []
                if copy.paused_until > max(copy.queue.paused_until, self._now()):
                    changes.insert(0, Refuse(None, copy.paused_until))
                await self._write(copy, changes)
                self._serve(copy)
        except Exception as error:  # noqa: BLE001 -- those who wait do so as long as their patience lasts
            log.error("the queue of %s is not written: %s", copy.model, type(error).__name__)
        finally:
            copy.writing = None
        self._rest(copy)

    async def _write(self, copy: _Copy, changes: Iterable[Change]) -> None:
        """Write the changes, and who may go now, to the queue as it is in the ledger; nothing if nothing changes."""
        tries = 0
        while True:
            old, expected = copy.queue, copy.version
            queue = changed(old, changes, self._now(), self.worker, copy.rate)
            if queue == old and expected is not None:
                return
            version = random.getrandbits(62)
            began = time.monotonic()
            stored = await self._pool.insist(
                lambda conn, queue=queue, version=version, expected=expected: swap_model_queue(
                    conn, copy.account, copy.model, queue, version=version, expected=expected
                )
            )
            self._keep(copy, stored, began)
            if stored.version == version:
                await self._tell(copy, old, queue)
                return
            tries += 1
            if tries > 2:  # others write, too
                await asyncio.sleep(random.uniform(0, _LEAST_SECONDS * min(tries, 20)))  # noqa: S311 -- no secret

    def _keep(self, copy: _Copy, stored: StoredQueue, began: float) -> None:
        copy.queue, copy.version = stored.state, stored.version
        # the ledger read its clock between the two; what fits stays, so that a slow answer does not shift pauses
        self._clock = min(max(self._clock, stored.now - time.monotonic()), stored.now - began)

    async def _tell(self, copy: _Copy, old: ModelQueue, new: ModelQueue) -> None:
        """Signal to the others what they have to know of a change."""
        known, now = {sent.ticket for sent in old.sent}, self._now()
        to = {sent.worker for sent in new.sent if sent.ticket not in known} - {self.worker}
        is_open = copy.rate is None and new.is_open(now)
        if to or (is_open and not old.is_open(now)):
            await self._signal(copy, is_open=is_open, to=tuple(sorted(to)))

    async def _signal(self, copy: _Copy, *, is_open: bool = False, to: tuple[str, ...] = ()) -> None:
        until = max(copy.paused_until, copy.queue.paused_until)
        signal = QueueSignal(
            worker=self.worker, account=copy.account, model=copy.model, paused_until=until, is_open=is_open, to=to
        )
        await self._signals.send(signal.model_dump_json().encode())

    def _serve(self, copy: _Copy) -> None:
        """Let those of our requests go that have been let through; who has lost its place joins again."""
        through = {sent.ticket for sent in copy.queue.sent}
        places = {one.ticket for one in copy.queue.waiting}
        joining = {change.ticket for change in copy.changes if isinstance(change, Join)}
        until = max(copy.paused_until, copy.queue.paused_until)
        for ticket, waiter in copy.waiters.items():
            if waiter.turn.done():
                continue
            if ticket in through:
                waiter.turn.set_result(None)
            elif until > waiter.until:
                waiter.turn.set_exception(_out_of_patience(copy.model))
            elif ticket not in places and ticket not in joining:
                copy.changes.append(waiter.join)
                copy.is_due = True

    def _rest(self, copy: _Copy) -> None:
        """Look again when somebody may go although nothing happens; forget a queue that holds nobody up."""
        now = self._now()
        if copy.timer is not None:
            copy.timer.cancel()
            copy.timer = None
        if copy.is_due:
            self._look(copy)
            return
        if not copy.is_needed(now):
            self._copies.pop((copy.account, copy.model), None)
        elif any(not waiter.turn.done() for waiter in copy.waiters.values()):
            look = next_look(copy.queue, now, copy.rate)
            due = now + RENEW_SECONDS if look is None else min(look, now + RENEW_SECONDS)
            wait = max(due - now, _LEAST_SECONDS)
            copy.timer = asyncio.get_running_loop().call_later(wait, self._look, copy)

    # -- what others say -----------------------------------------------------------------------------------------------

    def _take(self, payload: bytes) -> None:
        try:
            signal = QueueSignal.model_validate_json(payload)
        except ValidationError:
            return
        if signal.worker == self.worker:
            return
        copy = self._copies.get((signal.account, signal.model))
        if copy is None:
            if signal.paused_until <= self._now():
                return
            copy = self._copy(signal.account, signal.model)
        copy.paused_until = max(copy.paused_until, min(signal.paused_until, self._now() + LONGEST_PAUSE))
        if self.worker in signal.to or (signal.is_open and copy.waiters):
            copy.version = None  # the next write reads
            self._look(copy)
        elif signal.is_open and not copy.is_paused(self._now()) and copy.rate is None and copy.writing is None:
            self._copies.pop((copy.account, copy.model), None)

    async def _load(self) -> None:
        began = time.monotonic()
        for stored in await self._pool.run(load_model_queues):
            copy = self._copy(stored.account, stored.model)
            if copy.writing is None:
                self._keep(copy, stored, began)
        for copy in tuple(self._copies.values()):
            if copy.waiters:
                copy.version = None
                self._look(copy)

    async def _load_again(self) -> None:
        """As `_load`, after signals were missed: without it they are missed until the next write."""
        try:
            await self._load()
        except Exception as error:  # noqa: BLE001 -- nobody waits for it, and queues are read before each write
            log.warning("queues of models are not read: %s", type(error).__name__)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _out_of_patience(model: str) -> ModelError:
    return ModelError(RATE_LIMITED, f"{model}: no request may be sent within the step's patience", retryable=True)
