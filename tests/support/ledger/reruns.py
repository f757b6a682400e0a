"""Turns that are run again, by the ledger's own functions."""

import json
from typing import Any

from tests.support.ledger.agents import CHANNEL, PROJECT, value
from turnstile.ledger.people.reruns import Rerun, rerun_turn
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.intake import Enqueued
from turnstile.schema.access import Caller
from turnstile.schema.ids import AgentTurnId, ChannelId, InboxId, ProjectId, new_box_id, uuid7
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.limits import UNLIMITED, Admission

OWNER, OPERATOR, MALLORY = Caller("user.test"), Caller("root", operates=True), Caller("mallory")


def wanted(turn: TurnRef | AgentTurnId, **fields: Any) -> RerunRequest:
    """The request."""
    named = turn.agent_turn_id if isinstance(turn, TurnRef) else turn
    return RerunRequest.model_validate({"agent_turn_id": named, **fields})


async def again(
    pool: Pool,
    turn: TurnRef | AgentTurnId,
    *,
    caller: Caller = OWNER,
    project: ProjectId = PROJECT,
    channel: ChannelId = CHANNEL,
    incoming: dict[str, str] | None = None,
    admission: Admission = UNLIMITED,
    **fields: Any,
) -> Enqueued:
    """Run a turn again; `fields` are of the request."""
    request = wanted(turn, **fields)
    done, of = await rerun_turn(
        pool, project, channel, request, caller, incoming or {}, depth_limit=20, admission=admission
    )
    assert of.of == request.agent_turn_id
    return done


def command(turn: TurnRef | AgentTurnId, **fields: Any) -> Rerun:
    """A rerun with its ids, for a transaction of the test's own."""
    return Rerun(
        project_id=PROJECT,
        channel_id=CHANNEL,
        request=wanted(turn, **fields),
        caller=OWNER,
        context_headers=headers.context_headers({}),
        depth_limit=20,
        agent_turn_id=AgentTurnId(uuid7()),
        inbox_id=InboxId(uuid7()),
        context_copy_id=new_box_id(),
        output_copy_id=new_box_id(),
    )


async def rerun_of(pool: Pool, made: Enqueued) -> dict[str, Any]:
    """What the row of the new turn says of the turn that it runs again."""
    stored = await value(
        pool,
        "SELECT (payload -> 'rerun')::text FROM state.agent_inbox WHERE agent_turn_id = $1",
        made.reply.agent_turn_id,
    )
    return json.loads(stored)
