"""Waits for a turn: for its end, its next step, or its next question to a person (protocol §17.2).

Truth is the ledger; events on NATS say when to look, and without them it looks now and then. Keeps nothing of a turn
beyond one wait. Costs one or two short reads at each event of the turn.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterator

from turnstile.gateway.events.ends import Ends, Seen, look
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import InterruptId
from turnstile.schema.wire import subjects

_LOOK_SECONDS = 2.0


async def next_change(pool: Pool, ends: Ends, before: Seen, known: Collection[InterruptId]) -> Seen:
    """The turn once it is over, has committed another step, or asks what is not among `known`."""
    view = before.view
    subject = subjects.agent_events_filter(view.project_id, view.channel_id, view.agent_id)
    async with ends.hearing(subject, view.agent_turn_id) as hint:
        while True:
            hint.clear()
            with contextlib.suppress(ServerUnavailable):  # it goes on when the ledger is there again
                seen = await look(pool, view)
                new = any(question.interrupt_id not in known for question in seen.questions)
                if seen.is_over or new or seen.view.steps > view.steps:
                    return seen
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hint.wait(), _LOOK_SECONDS)


def news(before: Seen, seen: Seen) -> Iterator[str]:
    """What happened between two looks, in order, for people: each step, then that the turn waits or its end."""
    for step in range(before.view.steps + 1, seen.view.steps + 1):
        yield f"step {step} is done"
    if seen.is_over:
        yield f"the turn ended: {seen.view.status}"
    elif len(seen.questions) > len(before.questions):
        yield "the turn waits for a person"
