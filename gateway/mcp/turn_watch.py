"""Waits for a turn: for its end, its next step, or its next question to a person (protocol §17.2).

Truth is the ledger; events on NATS say when to look, and without them it looks now and then. Keeps nothing of a turn
beyond one wait. Costs one or two short reads at each event of the turn.
"""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from turnstile.gateway.events.ends import Ends
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import InterruptId
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus
from turnstile.schema.states import HeadStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView

_LOOK_SECONDS = 2.0
MOST_QUESTIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn, and the questions to people that are open in it."""

    view: TurnView
    questions: Sequence[Interrupt] = ()

    @property
    def is_over(self) -> bool:
        """Whether the turn is over."""
        return self.view.ended_at is not None


async def look(pool: Pool, view: TurnView) -> Seen:
    """How the turn stands now; raises `ServerUnavailable`."""
    project, turn = view.project_id, view.agent_turn_id
    found = await pool.run(lambda conn: describe_turn(conn, project, turn)) or view
    if found.ended_at is not None or found.status != HeadStatus.SUSPENDED:
        return Seen(found)
    asked = await pool.run(
        lambda conn: list_interrupts(conn, project, turn=turn, status=InterruptStatus.OPEN, row_limit=MOST_QUESTIONS)
    )
    return Seen(found, asked)


async def next_change(pool: Pool, ends: Ends, before: Seen, known: Collection[InterruptId]) -> Seen:
    """The turn once it is over, has committed another step, or asks what is not among `known`."""
    view = before.view
    subject = subjects.agent_events_filter(view.project_id, view.channel_id, view.agent_id)
    async with ends.hearing(subject, view.agent_turn_id) as hint:
        while True:
            hint.clear()
            with contextlib.suppress(ServerUnavailable):  # it goes on when the ledger is there again
                seen = await look(pool, view)
                new = any(each.interrupt_id not in known for each in seen.questions)
                if seen.is_over or new or seen.view.steps > view.steps:
                    return seen
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hint.wait(), _LOOK_SECONDS)
