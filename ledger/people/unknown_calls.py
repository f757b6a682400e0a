"""Calls of tools that must not be run twice (protocol §6, report): who began one, and what becomes of one that died.

Guarantees: of all runs that say that they begin a call one may run it, until a person approves another. A call that
began is not sent again by the net; where nobody runs it any more, a person is asked once, or it fails. Each is one
round trip. Never publishes, and never asks who runs a call: the caller does both.
"""

import json
from datetime import datetime
from typing import Literal

from pydantic import Json

from turnstile.ledger.operations.sweep import rule_rows
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId, ProjectId, StepId, ToolCallId
from turnstile.schema.people.approvals import EXPIRES_AFTER_SECONDS
from turnstile.schema.wire.headers import ContextHeaders


class UnsureCall(Tolerant):
    """A call that was begun and has not been reported; `content` is its card's."""

    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    step_id: StepId
    tool_call_id: ToolCallId
    tool_name: str
    begun_by: str
    begun_at: datetime
    content: Json[JsonObject] | None
    asks: bool
    """Whether a person may be asked."""
    context_headers: ContextHeaders


class SettledCall(Tolerant):
    """What became of it: a person is asked, it failed, or something else had come first."""

    verdict: Literal["asked", "answered", "settled"]
    interrupt_id: InterruptId | None = None
    expires_at: datetime | None = None


async def begin_call(conn: Connection, project: ProjectId, call: ToolCallId, begins: str) -> bool:
    """Record that this run begins the call; False if it must not: another has begun, or the call waits no more.

    A repeat by the same name is the same run.
    """
    row = await query("begin_call").opt(conn, project_id=project, tool_call_id=call, begins=begins)
    return row is not None and row["may_run"]


list_unsure = rule_rows("list_unsure", UnsureCall)
"""Rule 'outcome': the calls that began, of which is to be asked whether somebody still runs them."""


async def settle_unknown(conn: Connection, call: UnsureCall, question: str, digest: str | None) -> SettledCall:
    """Ask a person whether the call was done, with its digest; or fail it, where nobody may be asked."""
    row = await query("settle_unknown").one(
        conn,
        project_id=call.project_id,
        tool_call_id=call.tool_call_id,
        begun_by=call.begun_by,
        question=question,
        digest=digest,
        asks=digest is not None and call.asks,
        open_seconds=EXPIRES_AFTER_SECONDS,
    )
    return SettledCall.model_validate(json.loads(row["settled"]))
