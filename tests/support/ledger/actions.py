"""A UI that a test drives: the actions it sends, and the acks it receives."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import JsonValue

from tests.support.conditions import until
from tests.support.tenants import StoredEvent, Tenant
from tests.support.tools import Hand, call_of, definition, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire import headers
from turnstile.schema.wire.ui_actions import ActionAck
from turnstile.sdk.client import ActionWaiter

ARGS: JsonObject = {"q": "it"}


def allowed(name: str = "search", **fields: Any) -> ToolDefinition:
    """A tool that a UI may call."""
    options = {"ui_allowed": True, "suspend_timeout_seconds": 60, **fields.pop("options", {})}
    return definition(name, options=options, **fields)


@asynccontextmanager
async def button_of(tenant: Tenant, *tools: ToolDefinition) -> AsyncGenerator[Hand]:
    """A test client whose agent's model must never be called: its script does not exist."""
    async with hand_of(tenant, *(tools or (allowed(),))) as hand:
        await tenant.profile(f"{hand.agent}-profile", "must-not-be-asked")
        yield hand


@asynccontextmanager
async def pressed(
    hand: Hand, tool: str = "search", args: JsonObject | None = None, **fields: Any
) -> AsyncGenerator[ActionWaiter]:
    """Send an action; returns the waiter for its acks."""
    given = ARGS if args is None else args
    async with hand.tenant.client.ui_action(hand.agent, tool, given, **fields) as waiter:
        yield waiter


async def refused(hand: Hand, *args: Any, **fields: Any) -> tuple[str, str | None]:
    """Send an action that is refused; returns status and code of its only ack."""
    async with pressed(hand, *args, **fields) as waiter:
        ack = await waiter.last(10)
    return ack.status.value, ack.error_code


async def done(hand: Hand, result: JsonValue = "found", **fields: Any) -> tuple[AgentTurnId, ActionAck]:
    """Send an action and answer its call; returns its turn and its final ack."""
    async with pressed(hand, **fields) as waiter:
        turn = await called(hand, waiter)
        await hand.report(call_of(turn), result)
        return turn, await waiter.last(20)


async def began(hand: Hand, waiter: ActionWaiter) -> AgentTurnId:
    """The turn of an action that was accepted."""
    ack = await waiter.next()
    assert ack.status == "accepted", ack
    return await turn_of(hand.tenant, waiter.action_id)


async def called(hand: Hand, waiter: ActionWaiter) -> AgentTurnId:
    """The turn of an accepted action, after its call was sent."""
    turn = await began(hand, waiter)
    await hand.called(call_of(turn))
    return turn


async def turn_of(tenant: Tenant, action_id: str) -> AgentTurnId:
    """The only turn of an action."""

    async def there() -> list[dict[str, Any]]:
        return await tenant.rows(
            "SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1 AND message_type = 'ui_action'"
            " AND payload -> 'ui_action' ->> 'action_id' = $2",
            *(tenant.project, action_id),
        )

    [row] = await until(there, 25, f"the action {action_id} has a turn")
    return AgentTurnId(row["agent_turn_id"])


async def acks(tenant: Tenant) -> list[StoredEvent]:
    """All acks of the project in the event stream."""
    return await tenant.events("sys.ui.action_ack")


async def statuses(tenant: Tenant) -> list[JsonValue]:
    """The statuses of all acks of the project."""
    return [ack.payload["status"] for ack in await acks(tenant)]


async def turns(tenant: Tenant) -> int:
    """The number of turns of UI actions in the project."""
    return await tenant.count("state.agent_inbox", "message_type = 'ui_action'")


async def raw(tenant: Tenant, payload: bytes, given: dict[str, str] | None = None) -> None:
    """Publish a command with any payload."""
    subject = f"cg.v1r4.{tenant.project}.public.cmd.sys.ui.action"
    await tenant.stack.conn.store(subject, payload, headers={headers.MSG_ID: uuid7(), **(given or {})})
