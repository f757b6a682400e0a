"""A tool on NATS that a test controls, and an agent that calls it: the test chooses the calls and the reports.

The agent's model is the script `player`, whose instruction is its script. The tool receives commands by a core
subscription, including repeats, and reports what, when and how often the test says.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from nats.aio.msg import Msg
from pydantic import JsonValue

from tests.support.conditions import until
from tests.support.tenants import ALICE, Ended, Tenant, turn_of
from turnstile.ledger.roster import put_tool
from turnstile.ledger.turns.views import locate_turn
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, ToolCallId, step_id, tool_call_id
from turnstile.schema.states import ReplyStatus
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import ReportReply
from turnstile.transport.json_messages import decode_object

ANYTHING: JsonObject = {"type": "object", "properties": {"q": {"type": "string"}}}


def definition(name: str = "search", **fields: Any) -> ToolDefinition:
    """A tool that takes a text `q`, unless `fields` say otherwise."""
    given: dict[str, Any] = {
        "tool_name": name,
        "description": f"The tool {name}.",
        "parameters": ANYTHING,
        "target_subject": f"cg.v1r4.{{project_id}}.{{channel_id}}.cmd.tool.{name}.run",
    }
    return ToolDefinition.model_validate(given | fields)


def calling(*named: str | tuple[str, Any], **line: Any) -> JsonObject:
    """A step of the model that makes these calls: names, or names with arguments (an object, or text as it is)."""
    calls: list[tuple[str, Any]] = [(each, {"q": f"{each} it"}) if isinstance(each, str) else each for each in named]
    made: list[JsonValue] = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {**line, "tool_calls": made}


def call_of(turn: AgentTurnId, index: int = 0, step: int = 1) -> ToolCallId:
    """The id of a call in the ledger's first era, by its place in its step."""
    return tool_call_id(step_id(turn, step), index, 1)


@dataclass(frozen=True)
class Command:
    """A command that the tool received."""

    subject: str
    data: bytes
    headers: dict[str, str]

    @property
    def call(self) -> ToolCallId:
        """The call it is for."""
        return ToolCallId(self.headers[headers.TOOL_CALL_ID])

    @property
    def payload(self) -> JsonObject:
        """The decoded payload."""
        return decode_object(self.data)


@dataclass
class Hand:
    """The tool that the test controls, and the agent that calls it."""

    tenant: Tenant
    agent: AgentId
    commands: list[Command] = field(default_factory=list[Command])

    async def start(self, *steps: JsonObject, **fields: Any) -> AgentTurnId:
        """Enqueue a turn whose model answers with these lines, and then with the messages that it received."""
        return turn_of(await self.tenant.enqueue(self.agent, json.dumps({"steps": steps}), **fields))

    async def heard(self, count: int = 1) -> list[Command]:
        """Wait until the tool has received `count` commands; returns all commands so far."""

        async def enough() -> bool:
            return len(self.commands) >= count

        await until(enough, 25, f"{count} commands are heard")
        return list(self.commands)

    async def called(self, call: ToolCallId, times: int = 1, timeout: float = 25.0) -> list[Command]:
        """Wait until the tool has received `times` commands of the call; returns them."""

        async def often() -> bool:
            return [command.call for command in self.commands].count(call) >= times

        await until(often, timeout, f"{call} is heard {times} times")
        return [command for command in self.commands if command.call == call]

    async def suspended(self, *steps: JsonObject, **fields: Any) -> AgentTurnId:
        """Start a turn; returns when the calls of its first step are sent and it sleeps."""
        before = len({command.call for command in self.commands})
        turn = await self.start(*steps, **fields)

        async def heard() -> bool:
            return len({command.call for command in self.commands}) > before

        await until(heard, 25, "a call is out")
        return turn

    async def answer(self, call: ToolCallId, result: Any = "found", **fields: Any) -> ReportReply:
        """Report on a call; returns the reply, accepted or not. The result is inline unless `fields` say otherwise."""
        inline = {} if {"tool_result_card_id", "error"} & fields.keys() else {"result": result}
        return await self.send({"tool_call_id": call, "status": "success", **inline, **fields})

    async def send(self, payload: JsonObject, given: dict[str, str] | None = None) -> ReportReply:
        """Send this payload to the verb `report`; returns the reply."""
        reply = await self.tenant.client.request("report", payload, headers=given)
        return ReportReply.model_validate(reply)

    async def report(self, call: ToolCallId, result: Any = "found", **fields: Any) -> ReportReply:
        """Report on a call, which must be accepted; returns the reply."""
        reply = await self.answer(call, result, **fields)
        assert reply.status is ReplyStatus.ACCEPTED, reply
        return reply

    async def ended(self, turn: AgentTurnId) -> Ended:
        """Wait until the turn's outcome is announced; returns the turn."""
        return await self.tenant.ended(turn)

    async def ref(self, turn: AgentTurnId) -> TurnRef:
        """The reference to a live turn."""
        found = await self.tenant.pool.run(lambda conn: locate_turn(conn, self.tenant.project, turn))
        assert found is not None
        return found

    async def head(self) -> dict[str, Any]:
        """The agent's head."""
        [row] = await self.tenant.rows(
            "SELECT * FROM state.agent_state_head WHERE project_id = $1 AND agent_id = $2",
            *(self.tenant.project, self.agent),
        )
        return row

    async def until_head(self, **values: object) -> dict[str, Any]:
        """Wait until the agent's head has these values; returns it."""

        async def there() -> dict[str, Any] | None:
            row = await self.head()
            return row if values.items() <= row.items() else None

        return await until(there, 25, f"the head has {values}")

    async def waits(self, turn: AgentTurnId) -> dict[str, str]:
        """`wait_status` of the turn's calls."""
        found = await self.tenant.rows(
            "SELECT tool_call_id, wait_status FROM state.turn_waiting_tools WHERE agent_turn_id = $1", turn
        )
        return {row["tool_call_id"]: row["wait_status"] for row in found}

    async def inbox(self, correlation: str, *types: str) -> list[dict[str, Any]]:
        """Inbox rows of these types (`tool_result`) under a correlation, oldest first."""
        return await self.tenant.rows(
            "SELECT * FROM state.agent_inbox WHERE project_id = $1 AND correlation_id = $2"
            " AND message_type = ANY ($3) ORDER BY created_at, inbox_id",
            *(self.tenant.project, correlation, list(types or ("tool_result",))),
        )

    async def settled(self, correlation: str, *types: str) -> tuple[str, str | None]:
        """Wait until the only such row is final; returns its status and error."""

        async def final() -> tuple[str, str | None] | None:
            [row] = await self.inbox(correlation, *types)
            return (row["status"], row["last_error"]) if row["archived_at"] is not None else None

        return await until(final, 25, "the inbox row is final")

    async def rejections(self) -> list[tuple[str, JsonObject]]:
        """Codes and ids of the project's rejections."""
        found = await self.tenant.rows(
            "SELECT error_code, error, ids::text AS ids FROM state.rejections WHERE project_id = $1"
            " ORDER BY rejection_id",
            self.tenant.project,
        )
        return [(row["error_code"], json.loads(row["ids"])) for row in found]


@asynccontextmanager
async def hand_of(
    tenant: Tenant, *tools: ToolDefinition, agent: AgentId = ALICE, **profile: Any
) -> AsyncGenerator[Hand]:
    """A client with these tools (or `search`) and an agent that may call them, unless its profile says otherwise."""
    offered = tools or (definition(),)
    for each in offered:
        await put_tool(tenant.pool, tenant.project, each)
    await tenant.agent("player", agent, **{"allowed_tools": [each.tool_name for each in offered], **profile})
    hand = Hand(tenant, agent)

    async def on_command(msg: Msg) -> None:
        hand.commands.append(Command(msg.subject, msg.data, dict(msg.headers or {})))

    subscription = await tenant.stack.conn.subscribe(f"cg.v1r4.{tenant.project}.*.cmd.tool.>", on_command)
    try:
        yield hand
    finally:
        await tenant.stack.conn.unsubscribe(subscription)


def shown(said: object) -> dict[str, Any]:
    """The request that a mirroring model received, from its answer."""
    assert isinstance(said, str)
    return json.loads(said)


def heard_by_model(ended: Ended) -> list[dict[str, Any]]:
    """The tool messages that the model received in its last step."""
    messages = cast("list[list[str]]", shown(ended.deliverable())["messages"])
    return [json.loads(content) for role, content in messages if role == "tool"]
