"""Compares the ends that NATS has published with the ledger when an era begins (protocol §16, rule *beyond*).

A failover may have lost ends whose `task` events are in the stream: of turns that the ledger knows and will end again,
and of turns that it does not know. Each is recorded as a rejection with the code `beyond_ledger` and logged, so that
who has acted on it can be asked. Once an era, the events of the hour before its begin are read; nothing else changes.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from nats.aio.msg import Msg
from pydantic import ValidationError

from turnstile.ledger.operations.recovery import (
    NewEra,
    PublishedEnd,
    RunTransition,
    find_uncompared,
    record_beyond,
    record_compared,
)
from turnstile.ledger.pool import Pool
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import TaskEvent
from turnstile.transport.connection import NatsConnection
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import PAST_TURNS_CONSUMER, declare_past_turns

log = logging.getLogger(__name__)
WINDOW = timedelta(hours=1)
"""How long before the begin of an era an end may have been published that the ledger has lost."""
_READ_SECONDS = 60.0
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class BeyondLedger:
    """Finds ends that were published and that the ledger does not have. Holds clients only."""

    pool: Pool
    conn: NatsConnection

    async def list_eras(self, run: RunTransition) -> Sequence[NewEra]:
        """The era, if it is not compared yet."""
        era = await run(find_uncompared)
        return [] if era is None else [era]

    async def compare(self, eras: Sequence[NewEra]) -> int:
        """Read the stream and record what is ahead; returns how many ends are.

        Raises `ServerUnavailable` while NATS or the ledger is away: then all of it is done again.
        """
        return sum([await self._compare(era) for era in eras])

    async def _compare(self, era: NewEra) -> int:
        pending = await declare_past_turns(self.conn, era.begun_at - WINDOW)
        read, missing, stop = 0, 0, asyncio.Event()

        async def take(messages: list[Msg]) -> None:
            nonlocal read, missing
            ends = [end for message in messages if (end := _end(message)) is not None]
            beyond = await self.pool.run(lambda conn: record_beyond(conn, ends))
            for turn, error in beyond[: max(0, _SHOWN - missing)]:
                log.warning("era %d: turn %s: %s", era.era, turn, error)
            read, missing = read + len(messages), missing + len(beyond)
            if read >= pending:
                stop.set()

        if pending:
            timer = asyncio.get_running_loop().call_later(_READ_SECONDS, stop.set)
            await ContinuousPull(self.conn, subjects.EVT_STREAM, PAST_TURNS_CONSUMER, _is_there).run(take, stop)
            timer.cancel()
        if read < pending:
            log.warning("only %d of %d ends published before the era were compared", read, pending)
        await self.pool.run(lambda conn: record_compared(conn, era.era))
        log.warning("era %d: %d of %d ends that NATS has published are not in the ledger", era.era, missing, read)
        return missing


async def _is_there() -> None:
    """The consumer was made a moment ago."""


def _end(message: Msg) -> PublishedEnd | None:
    """The end in a `task` event; None for one that is not ours."""
    sent = message.headers or {}
    epoch, project = sent.get(headers.TURN_EPOCH, ""), sent.get(headers.PROJECT_ID, "")
    try:
        event = TaskEvent.model_validate_json(message.data)
    except ValidationError:
        return None
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= 16 and project):
        return None
    return PublishedEnd(project, event.agent_turn_id, int(epoch), event.status.value, event.deliverable_card_id)
