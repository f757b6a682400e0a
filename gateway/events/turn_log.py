"""What is known of one turn's events: its steps in their order, and its outcome. Pure.

A step is shown once those before it are committed and their results are known, so no event comes after one that it
belongs before. The text that is kept is bounded for the whole turn; the oldest goes first.
"""

from turnstile.gateway.events.frames import ResetEvent, frame
from turnstile.gateway.events.positions import END, Position, reset_position
from turnstile.gateway.events.step_log import Event, StepLog
from turnstile.schema.ids import AgentTurnId, StepId, step_id
from turnstile.schema.wire.events import Chunk


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
