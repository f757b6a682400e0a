"""Who may send the next request to a model, where not all may at once (protocol §7.9). Pure.

There is a queue for each key and model. While a provider has asked for a pause, nobody is let through. After it one
request probes; each one that the provider begins to answer lets two more go (`window`), until nobody waits and the
queue is open. With a rate no minute has more requests or reserved tokens than that. Those who wait go in turn, a
project after the other, and within a project in their order: the first one that does not fit yet holds up the others,
so that none starves.

`changed` is the only transition. Times are seconds since 1970 by the ledger's clock. It takes O(waiting) for each
request that it lets through. What a dead worker leaves ends by time: its places in the queue after `DEAD_SECONDS`, an
answer that nobody reported after `SILENT_SECONDS`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from turnstile.schema.base import Tolerant
from turnstile.schema.ids import ProjectId
from turnstile.schema.model_rates import ModelRate

SILENT_SECONDS = 10.0
"""A request of which nothing was heard for so long counts as accepted: providers refuse at once."""
DEAD_SECONDS = 20.0
RENEW_SECONDS = 5.0
"""How often a worker says that it still waits."""
LONGEST_PAUSE = 300.0
MINUTE = 61
"""Seconds after which the spending of a second counts no more; one more than a minute, for what was sent late."""


class Waiting(Tolerant):
    """A request that waits."""

    ticket: str
    project_id: ProjectId
    worker: str
    tokens: int
    since: float


class Sent(Tolerant):
    """A request that was let through and has not ended."""

    ticket: str
    worker: str
    tokens: int
    """That were reserved for it."""
    at: float
    accepted: bool = False
    """Whether the provider has begun to answer."""


class Spent(Tolerant):
    """What was let through within one second."""

    second: int
    requests: int
    tokens: int


class ModelQueue(Tolerant):
    """The queue of one key and model."""

    paused_until: float = 0.0
    refusals: int = 0
    """Pauses in a row without an answer between them."""
    window: int = 0
    """How many requests may be without an answer at once, after a pause; 0: any number."""
    turns: tuple[ProjectId, ...] = ()
    """The projects that wait, in the order of their turns; one that had its turn goes to the end."""
    waiting: tuple[Waiting, ...] = ()
    """In the order in which they came."""
    sent: tuple[Sent, ...] = ()
    spent: tuple[Spent, ...] = ()
    workers: dict[str, float] = Field(default_factory=dict[str, float])
    """When each worker with requests that wait was heard of last."""

    def is_open(self, now: float) -> bool:
        """Whether a request may go without a place in the queue, if the model has no rate."""
        return self.paused_until <= now and self.window == 0 and not self.waiting

    def pause_seconds(self, retry_after: float | None, initial: float, longest: float) -> float:
        """How long to pause after a refusal: as the provider asks, but longer after each refusal in a row."""
        backoff = min(initial * 2.0 ** min(self.refusals, 30), longest)
        return min(max(retry_after or 0.0, backoff), LONGEST_PAUSE)

    def used(self, now: float) -> tuple[int, int]:
        """The requests and tokens of the last minute."""
        recent = [spent for spent in self.spent if spent.second + MINUTE > now]
        return sum(spent.requests for spent in recent), sum(spent.tokens for spent in recent)


@dataclass(frozen=True, slots=True)
class Join:
    """A request asks for its turn, once."""

    ticket: str
    project_id: ProjectId
    tokens: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A request is given up before it was sent: it used nothing."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Accept:
    """The provider has begun to answer."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Settle:
    """A request has ended and used so many tokens; None: nobody knows, so what was reserved stays."""

    ticket: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The provider has refused a request: no other one before `until`. Without a ticket one that had no place."""

    ticket: str | None
    until: float


Change = Join | Leave | Accept | Settle | Refuse


def changed(
    queue: ModelQueue, changes: Iterable[Change], now: float, worker: str, rate: ModelRate | None = None
) -> ModelQueue:
    """The queue after these changes of this worker, and after all have been let through who may go now.

    A repeat of a change has no effect. The result is equal to `queue` where nothing has changed.
    """
    turning = _Turning(queue, now, rate)
    for change in changes:
        turning.apply(change, worker)
    turning.renew(worker)
    turning.forget()
    turning.admit()
    return turning.result()


def next_look(queue: ModelQueue, now: float, rate: ModelRate | None = None) -> float | None:
    """When `changed` may let somebody through although nothing happens before; None if nobody waits."""
    if not queue.waiting:
        return None
    dead = [seen + DEAD_SECONDS for seen in queue.workers.values()]
    if queue.paused_until > now:
        return min([queue.paused_until, *dead])
    unheard = [sent.at + SILENT_SECONDS for sent in queue.sent if not sent.accepted]
    if queue.window and len(unheard) >= queue.window:
        return min([*unheard, *dead])
    return min([_fits_at(queue.spent, _first(queue.waiting, queue.turns).tokens, rate, now), *dead])


def _first(waiting: Sequence[Waiting], turns: Sequence[ProjectId]) -> Waiting:
    return next(one for one in waiting if one.project_id == turns[0])


def _fits_at(spent: Iterable[Spent], tokens: int, rate: ModelRate | None, now: float) -> float:
    """When a request with so many tokens fits into the rate: now, or once enough has left the last minute."""
    if rate is None:
        return now
    most_requests = float("inf") if rate.requests_per_minute is None else rate.requests_per_minute
    most_tokens = float("inf") if rate.tokens_per_minute is None else rate.tokens_per_minute
    recent = sorted((one for one in spent if one.second + MINUTE > now), key=lambda one: one.second)
    requests = sum(one.requests for one in recent) + 1
    used = sum(one.tokens for one in recent) + min(tokens, most_tokens)
    at = now
    for one in recent:
        if requests <= most_requests and used <= most_tokens:
            break
        requests, used, at = requests - one.requests, used - one.tokens, one.second + MINUTE
    return at


@dataclass(slots=True)
class _Turning:
    """A queue that changes."""

    old: ModelQueue
    now: float
    rate: ModelRate | None
    paused_until: float = field(init=False)
    refusals: int = field(init=False)
    window: int = field(init=False)
    turns: list[ProjectId] = field(init=False)
    waiting: list[Waiting] = field(init=False)
    sent: dict[str, Sent] = field(init=False)
    spent: dict[int, Spent] = field(init=False)
    workers: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        old = self.old
        self.paused_until, self.refusals, self.window = old.paused_until, old.refusals, old.window
        self.turns, self.waiting, self.workers = [*old.turns], [*old.waiting], {**old.workers}
        self.sent = {sent.ticket: sent for sent in old.sent}
        self.spent = {spent.second: spent for spent in old.spent}

    def apply(self, change: Change, worker: str) -> None:
        match change:
            case Join():
                self._join(change, worker)
            case Leave(ticket):
                self.waiting = [one for one in self.waiting if one.ticket != ticket]
                if (sent := self.sent.pop(ticket, None)) is not None:
                    self._correct(sent, -sent.tokens, requests=-1)
            case Accept(ticket):
                if (sent := self.sent.get(ticket)) is not None and not sent.accepted:
                    self._accept(sent)
                    self.refusals = 0
            case Settle(ticket, tokens):
                if (sent := self.sent.get(ticket)) is not None:
                    self._accept(sent)
                    del self.sent[ticket]
                    if tokens is not None:
                        self._correct(sent, tokens - sent.tokens)
            case Refuse(ticket, until):
                if ticket is not None and (sent := self.sent.pop(ticket, None)) is not None:
                    self._correct(sent, -sent.tokens)
                if until > max(self.now, self.paused_until):
                    self.refusals += self.paused_until <= self.now
                    self.paused_until, self.window = until, 1
                    # what was sent before does not say how it is afterwards
                    self.sent = {sent.ticket: sent.model_copy(update={"accepted": True}) for sent in self.sent.values()}

    def _join(self, join: Join, worker: str) -> None:
        if join.ticket in self.sent or any(one.ticket == join.ticket for one in self.waiting):
            return
        self.waiting.append(
            Waiting(ticket=join.ticket, project_id=join.project_id, worker=worker, tokens=join.tokens, since=self.now)
        )
        if join.project_id not in self.turns:
            self.turns.append(join.project_id)
        self.workers[worker] = self.now

    def _accept(self, sent: Sent) -> None:
        if not sent.accepted:
            self.sent[sent.ticket] = sent.model_copy(update={"accepted": True})
            if self.window:
                self.window += 1

    def _correct(self, sent: Sent, tokens: int, requests: int = 0) -> None:
        if (spent := self.spent.get(int(sent.at))) is not None:
            figures = {"requests": spent.requests + requests, "tokens": max(0, spent.tokens + tokens)}
            self.spent[spent.second] = spent.model_copy(update=figures)

    def renew(self, worker: str) -> None:
        """Note that the worker lives, if that is not noted."""
        if worker in self.workers and self.now - self.workers[worker] >= RENEW_SECONDS:
            self.workers[worker] = self.now

    def forget(self) -> None:
        """Forget what is over by time."""
        dead = {worker for worker, seen in self.workers.items() if seen + DEAD_SECONDS <= self.now}
        self.waiting = [one for one in self.waiting if one.worker not in dead]
        waits = {one.project_id for one in self.waiting}
        self.turns = [project for project in self.turns if project in waits]
        for sent in [one for one in self.sent.values() if one.at + SILENT_SECONDS <= self.now]:
            self._accept(sent)
        self.sent = {ticket: sent for ticket, sent in self.sent.items() if sent.at + MINUTE + 1 > self.now}
        self.spent = {second: spent for second, spent in self.spent.items() if second + MINUTE > self.now}

    def admit(self) -> None:
        """Let through all who may go now, and open the queue if nobody waits after an answer."""
        unheard = sum(not sent.accepted for sent in self.sent.values())
        while self.waiting and self.paused_until <= self.now and not (self.window and unheard >= self.window):
            first = _first(self.waiting, self.turns)
            if _fits_at(self.spent.values(), first.tokens, self.rate, self.now) > self.now:
                break
            self._send(first)
            unheard += 1
        if not self.waiting and self.window > 1 and not unheard and self.paused_until <= self.now:
            self.window = self.refusals = 0
            self.sent = {} if self.rate is None else self.sent
        has_places = {one.worker for one in self.waiting}
        self.workers = {worker: seen for worker, seen in self.workers.items() if worker in has_places}

    def _send(self, first: Waiting) -> None:
        self.waiting.remove(first)
        self.turns.remove(first.project_id)
        if any(one.project_id == first.project_id for one in self.waiting):
            self.turns.append(first.project_id)
        most = None if self.rate is None else self.rate.tokens_per_minute
        tokens = first.tokens if most is None else min(first.tokens, most)
        self.sent[first.ticket] = Sent(ticket=first.ticket, worker=first.worker, tokens=tokens, at=self.now)
        if self.rate is not None:
            second = int(self.now)
            spent = self.spent.get(second, Spent(second=second, requests=0, tokens=0))
            figures = {"requests": spent.requests + 1, "tokens": spent.tokens + tokens}
            self.spent[second] = spent.model_copy(update=figures)

    def result(self) -> ModelQueue:
        return ModelQueue(
            paused_until=self.paused_until,
            refusals=self.refusals,
            window=self.window,
            turns=tuple(self.turns),
            waiting=tuple(self.waiting),
            sent=tuple(self.sent.values()),
            spent=tuple(self.spent.values()),
            workers=self.workers,
        )
