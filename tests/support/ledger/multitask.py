"""Enqueues with a `multitask_strategy`, as the bridge makes them."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.ledger.agents import ALICE, CHANNEL, PROJECT, ask
from turnstile.ledger.people.multitask import DisplacedTurn, MadeWay, Over, enqueue_over, make_way
from turnstile.ledger.people.steered_enqueues import Steered, steer_or_enqueue, steer_or_make_way
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.intake import Enqueue, Enqueued, planned
from turnstile.rules.turn_ends import STOPPED
from turnstile.schema.access import Caller
from turnstile.schema.cards import Card, CardType, Role, TextContent, make_card
from turnstile.schema.ids import AgentId, ChannelId, turn_card_id
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.limits import UNLIMITED, Admission

ME, EVE = "me", "eve"
"""Two principals."""


def farewell(found: DisplacedTurn) -> Card:
    """The deliverable of a queued turn that makes way."""
    turn = found.agent_turn_id
    name, content = turn_card_id(turn, "deliverable"), TextContent(text="stopped")
    return make_card(name, CardType.DELIVERABLE, Role.ASSISTANT, content, author="system", turn=turn)


def asked(
    strategy: str,
    *,
    who: str = ME,
    agent: AgentId | None = ALICE,
    conversation: str | None = "c1",
    channel: ChannelId = CHANNEL,
    admission: Admission = UNLIMITED,
    **fields: Any,
) -> tuple[Enqueue, Over]:
    """An enqueue with this strategy of this principal."""
    given = {"agent_id": agent, "instruction": "again", "conversation_id": conversation, **fields}
    request = EnqueueRequest.model_validate({**given, "multitask_strategy": strategy})
    command = planned(PROJECT, channel, request, {headers.SENDER: who}, depth_limit=20, sender=who, admission=admission)
    return command, Over(Caller(who), strategy, farewell, (STOPPED, "stopped"))


async def over(pool: Pool, strategy: str, **fields: Any) -> MadeWay | Steered:
    """Enqueue with this strategy; `fields` as of `asked`, and of the request."""
    return await (steer_or_enqueue if strategy == "steer" else enqueue_over)(pool, *asked(strategy, **fields))


def over_on(strategy: str, **fields: Any) -> Callable[[Connection], Awaitable[MadeWay | Steered]]:
    """The same as a transition, in the transaction of its connection."""
    given = asked(strategy, **fields)
    return lambda conn: (steer_or_make_way if strategy == "steer" else make_way)(conn, *given)


async def again(pool: Pool, strategy: str, **fields: Any) -> MadeWay:
    """As `over`, where the turn is enqueued."""
    made = await over(pool, strategy, **fields)
    assert isinstance(made, MadeWay)
    return made


async def plain(pool: Pool, who: str = ME, agent: AgentId = ALICE, conversation: str = "c1", **fields: Any) -> Enqueued:
    """A plain enqueue of this principal."""
    incoming = {headers.SENDER: who, **fields.pop("incoming", {})}
    return await ask(pool, agent, incoming=incoming, conversation_id=conversation, **fields)
