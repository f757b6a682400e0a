"""The events of one turn at one gateway, which all its clients read (protocol §14.2).

A feed follows the ledger and the turn's text. Clients hold a place in it and nothing else, so a slow one costs no
memory; the text that is kept is bounded, and who is further behind gets the step's cards. Truth is the ledger: events
on NATS only say when to look, and without them it looks now and then. Costs two subscriptions on NATS while somebody
listens, and two short reads at each change of the turn.

A step is published once those before it are committed and their results are known, so no event comes after one that it
belongs before. The text that is kept is bounded for the whole turn; the oldest goes first.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from turnstile.gateway.events.ends import Seen, look
from turnstile.gateway.events.frames import ResetEvent, StateChange, StepDone, frame
from turnstile.gateway.events.positions import END, EventPart, Position, are_places, reset_position
from turnstile.gateway.events.step_log import Event, StepLog
from turnstile.gateway.outputs import output_of
from turnstile.ledger.access.pages import TurnCard, list_turn_progress
from turnstile.ledger.pool import Pool
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, CardUnreadable, TextContent, content_of
from turnstile.schema.errors import BadRequest, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId, step_id
from turnstile.schema.states import StepPhase
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.progress import CallProgress
from turnstile.sdk.chunk_order import step_number
from turnstile.transport.chunk_replay import replay
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import decode_object


class TurnLog:
    """The events of one turn, as far as they are known."""

    def __init__(self, turn: AgentTurnId, most: int) -> None:
        """`most`: bytes of streamed text to keep."""
        self.turn = turn
        self.steps: dict[int, StepLog] = {}
        self.outcome: Event | None = None
        self._most = most

    @property
    def unseen(self) -> bool:
        """Whether there is a step of which the ledger was not asked yet."""
        return any(not step.looked for step in self.steps.values())

    def take(self, number: int, chunk: Chunk) -> bool:
        """Take a chunk of a step; returns whether there are new ones in order."""
        step = self.steps.get(number)
        if step is None:
            step = self.steps[number] = StepLog(number, looked=number == 1)
        new = step.take(chunk)
        if new:
            self._shrink()
        return new

    def has_gap(self, number: int) -> bool:
        """Whether a chunk of a step came whose predecessor did not."""
        step = self.steps.get(number)
        return step is not None and step.has_gap

    def commit(self, number: int, cards: list[Event], texts: list[str]) -> None:
        """A step is committed, with these events and these texts on its cards; a second time changes nothing."""
        step = self.steps.setdefault(number, StepLog(number))
        if not step.committed:
            step.looked = True  # its cards were read with the results of the steps before
            step.cards = cards
            step.finish(texts)

    def apply(self, number: int, result: Event) -> None:
        """A result was applied to a step's call."""
        self.steps.setdefault(number, StepLog(number, looked=True)).results.append(result)

    def end(self, outcome: Event) -> None:
        """The turn is over; a step that is not committed by now was broken off."""
        for step in self.steps.values():
            step.looked = True
            if not step.committed:
                step.finish([])
                step.complete = False
        self.outcome = outcome

    def after(self, cursor: Position) -> list[Event]:
        """The events that a client at this place has not had, in order."""
        events: list[Event] = []
        for number in sorted(s for s in self.steps if s >= cursor.step):
            step = self.steps[number]
            if not step.looked:
                return events
            events += step.after(cursor, self._reset)
            if not step.committed:
                return events
        if self.outcome is not None and cursor < END:
            events.append(self.outcome)
        return events

    def _shrink(self) -> None:
        over = sum(step.size for step in self.steps.values()) - self._most
        for number in sorted(self.steps):
            if over <= 0:
                return
            step = self.steps[number]
            before = step.size
            step.shrink(max(0, before - over))
            over -= before - step.size

    def _reset(self, number: int) -> Event:
        data, position = ResetEvent(step_id=StepId(step_id(self.turn, number))), reset_position(number)
        return Event(position, frame("reset", data, position.id(self.turn)), data)


log = logging.getLogger(__name__)
SHOWN: Final = frozenset(
    {CardType.STEER, CardType.THOUGHT, CardType.TOOL_CALL, CardType.TOOL_RESULT, CardType.DELIVERABLE}
)
"""Cards that clients see; prompts and offered tools are the profile's."""
_SPOKEN: Final = frozenset({CardType.THOUGHT, CardType.DELIVERABLE})
_LOOK_SECONDS = 5.0
"""How often the ledger is read without a hint, while NATS is there."""
_LOOK_ALONE_SECONDS = 1.0
_MOST_PROGRESS = 100
"""Calls of a turn whose progress is kept: the last that was heard of each."""
_SETTLE_SECONDS = 0.3
"""How long the end of a committed step's text is waited for."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What feeds read."""

    pool: Pool
    conn: NatsConnection
    stream_bytes: int


class TurnFeed:
    """One turn's events; `run` fills it until the turn is over."""

    def __init__(self, sources: Sources, view: TurnView) -> None:
        self.turn: AgentTurnId = view.agent_turn_id
        self.over = False
        self.failed = False
        """Whether it ended before the turn did: its clients come back for another."""
        self.seen = Seen(view)
        """The turn at the last look. Its events are known up to there: it is over only once its outcome is one."""
        self._looks = self._awaited = 0
        """Looks that were begun; the last one that a reader waits for."""
        self.looked = 0
        """The number of the last look that came to its end."""
        self._sources = sources
        self._log = TurnLog(view.agent_turn_id, sources.stream_bytes)
        self._known: set[CardId] = set()
        self._answered: set[ToolCallId] = set()
        self._changed = asyncio.Event()
        self._listeners: set[Callable[[], None]] = set()
        self._hint = asyncio.Event()
        self._progress: dict[ToolCallId, tuple[int, bytes]] = {}
        """The last progress of each call that waits, numbered as it came."""
        self._progress_count = 0
        self._gap = False
        self._reconnects = -1

    @property
    def view(self) -> TurnView:
        """The turn at the last look."""
        return self.seen.view

    def look_again(self) -> int:
        """Look soon; returns the number of the look that begins after this."""
        self._awaited = self._looks + 1
        self._hint.set()
        return self._awaited

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` at each change; returns a function that ends that."""
        self._listeners.add(changed)
        return lambda: self._listeners.discard(changed)

    def state(self) -> bytes:
        """The event with the turn's present state."""
        return frame("state", StateChange(agent_turn_id=self.turn, status=self.view.status))

    def progress_after(self, number: int) -> tuple[int, list[bytes]]:
        """The number of the last progress, and the events of calls that came after this number."""
        events = [event for count, event in self._progress.values() if count > number]
        return self._progress_count, events

    def after(self, cursor: Position) -> list[Event]:
        """The events that a client at this place has not had, in order."""
        return self._log.after(cursor)

    async def run(self) -> None:
        """Follow the turn until it is over."""
        try:
            await self._follow()
        except BaseException:
            self.failed = not self.over
            self._notify()
            raise

    async def _follow(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if self.view.ended_at is None:
                await self._subscribe(stack)
            while not self.over:
                self._hint.clear()
                try:
                    await self._look()
                except ServerUnavailable as error:
                    log.warning("turn %s: its events wait: %s", self.turn, error)
                if self.over:
                    break
                alone = not self._sources.conn.connected.is_set()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hint.wait(), _LOOK_ALONE_SECONDS if alone else _LOOK_SECONDS)

    async def _subscribe(self, stack: contextlib.AsyncExitStack) -> None:
        conn, view = self._sources.conn, self.view
        where = view.project_id, view.channel_id, view.agent_id
        parts = (
            (subjects.agent_chunk(*where), self._on_chunk),
            (subjects.agent_events_filter(*where), self._on_event),
        )
        with contextlib.suppress(*NATS_TROUBLE):  # NATS was not there yet: the ledger is read more often
            for subject, callback in parts:
                subscription = await conn.hear(subject, callback)
                stack.push_async_callback(conn.unsubscribe, subscription)

    async def _on_chunk(self, _: str, data: bytes) -> None:
        if self.turn.encode() in data and self._take(data):
            self._notify()

    def _take(self, data: bytes) -> bool:
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError:  # a stranger's; nothing depends on it
            return False
        number = step_number(chunk.step_id)
        places = (number, chunk.attempt, chunk.index)
        if chunk.agent_turn_id != self.turn or chunk.step_id != step_id(self.turn, number) or not are_places(*places):
            return False
        new = self._log.take(number, chunk)
        if self._log.has_gap(number) and not self._gap:
            self._gap = True
            self._hint.set()
        if self._log.unseen:
            self._hint.set()
        return new

    async def _on_event(self, subject: str, data: bytes) -> None:
        if self.turn.encode() not in data:
            return
        try:
            message = decode_object(data)
        except BadRequest:
            return
        if message.get("agent_turn_id") != self.turn:
            return
        if subject.endswith((".state", ".task", ".interrupt")) or message.get("phase") in ("completed", "failed"):
            self._hint.set()
        elif message.get("phase") == StepPhase.TOOL_PROGRESS and isinstance(message.get("metadata"), dict):
            self._take_progress(message)

    def _take_progress(self, message: JsonObject) -> None:
        """Keep what a tool says, in place of what it said before; a call that is answered has none."""
        metadata = message["metadata"]
        try:
            progress = CallProgress.model_validate({**message, **(metadata if isinstance(metadata, dict) else {})})
        except ValidationError:  # a stranger's; nothing depends on it
            return
        if self.over or progress.tool_call_id in self._answered:
            return
        self._progress_count += 1
        self._progress.pop(progress.tool_call_id, None)
        if len(self._progress) >= _MOST_PROGRESS:
            del self._progress[next(iter(self._progress))]
        self._progress[progress.tool_call_id] = self._progress_count, frame("progress", progress)
        self._notify()

    async def _look(self) -> None:
        """Read what the stream of text and the ledger have that is not known here."""
        conn = self._sources.conn
        self._looks += 1
        number = self._looks
        if self.view.ended_at is None and (self._gap or self._reconnects != conn.reconnects):
            await self._catch_up()
        steps = list(self._log.steps.values())
        seen = await look(self._sources.pool, self.view)
        rows = await self._cards()  # after the turn itself, so none of what led there is missed
        rows = await self._committing(rows)
        outcome = await self._outcome(seen.view) if seen.is_over else None
        # From here on nothing waits: who reads finds the events, the outcome and the turn's state at once.
        self._settled(rows)
        changed = bool(rows) or _stand(seen) != _stand(self.seen) or any(not step.looked for step in steps)
        for step in steps:
            step.looked = True
        self.seen, self.looked = seen, number
        if outcome is not None:
            self._log.end(outcome)
            self._progress.clear()
            self.over = True
        if changed or self.over or number <= self._awaited:
            self._notify()

    async def _catch_up(self) -> None:
        """Read back the text that the stream still has; what is known already is left out."""
        conn, view = self._sources.conn, self.view
        self._gap, self._reconnects = False, conn.reconnects
        subject = subjects.agent_chunk(view.project_id, view.channel_id, view.agent_id)
        try:
            messages = await replay(conn, subject, view.created_at)
        except ServerUnavailable as error:
            log.info("turn %s: its text cannot be read back: %s", self.turn, error)
            return
        turn = self.turn.encode()
        taken = [self._take(data) for data in messages if turn in data]
        if any(taken):
            self._notify()

    async def _cards(self) -> list[TurnCard]:
        project, committed = self.view.project_id, [n for n, step in self._log.steps.items() if step.committed]
        steps = [step_id(self.turn, number) for number in committed]
        rows = await self._sources.pool.run(
            lambda conn: list_turn_progress(conn, project, self.turn, known_steps=steps, known_cards=self._known)
        )
        return [row for row in rows if row.part == EventPart.CARDS or row.card is not None]

    async def _committing(self, rows: Sequence[TurnCard]) -> Sequence[TurnCard]:
        """Wait a moment for the last chunks of the steps that these rows are of."""
        waited = [self._log.steps[n] for n in {step_number(row.step_id) for row in rows} if n in self._log.steps]
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLE_SECONDS
        while any(not step.ended and not step.committed for step in waited) and loop.time() < until:
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), until - loop.time())
        if any(not step.ended and not step.committed for step in waited):
            await self._catch_up()
        return rows

    def _settled(self, rows: Sequence[TurnCard]) -> None:
        """Take the cards of committed steps, and applied results."""
        for number in sorted({step_number(row.step_id) for row in rows}):
            of_step = [row for row in rows if step_number(row.step_id) == number]
            cards = [row for row in of_step if row.part == EventPart.CARDS]
            if cards:
                self._commit(number, cards)
            for row in of_step:
                if row.part == EventPart.RESULTS and row.card is not None and row.card.card_id not in self._known:
                    self._log.apply(number, self._card(number, row, row.card))

    def _commit(self, number: int, rows: Sequence[TurnCard]) -> None:
        cards = [(row, row.card) for row in rows if row.card is not None and row.card.type in SHOWN]
        events = [self._card(number, row, card) for row, card in cards]
        position = Position(number, EventPart.STEP, 0, 0)
        event = StepDone(step_id=rows[0].step_id, status=rows[0].step_status or "", finish_reason=rows[0].finish_reason)
        events.append(Event(position, frame("step", event, position.id(self.turn)), event))
        self._log.commit(number, events, [text for _, card in cards if (text := _text_of(card)) is not None])

    def _card(self, number: int, row: TurnCard, card: Card) -> Event:
        self._known.add(card.card_id)
        if card.type == CardType.TOOL_RESULT and card.tool_call_id is not None:
            self._answered.add(card.tool_call_id)
            self._progress.pop(card.tool_call_id, None)
        position = Position(number, row.part, row.place, row.sub)
        answer = CardAnswer.of(card)
        return Event(position, frame("card", answer, position.id(self.turn)), answer)

    async def _outcome(self, view: TurnView) -> Event:
        card_id = view.deliverable_card_id
        output = None if card_id is None else await output_of(self._sources.pool, view, card_id)
        turn = Turn.model_validate({**view.model_dump(), "output": output})
        return Event(END, frame("outcome", turn, END.id(self.turn)), turn)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in tuple(self._listeners):
            listener()


def _stand(seen: Seen) -> tuple[object, ...]:
    """Where a turn stands: its status, and which questions are open."""
    interrupts = (*seen.questions, *seen.client_calls)
    return (seen.view.status, *(i.interrupt_id for i in interrupts), len(seen.client_calls) and seen.awaits_client())


def _text_of(card: Card) -> str | None:
    """The text on a card that a model wrote; None if there is none."""
    if card.type not in _SPOKEN:
        return None
    try:
        content = content_of(card)
    except (CardUnreadable, TurnstileError):
        return None
    return content.text if isinstance(content, TextContent) else None
