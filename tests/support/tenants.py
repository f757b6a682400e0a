"""A project of a stack, used as clients use it, over NATS; results are read from the ledger and the event stream."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from nats.js.errors import NotFoundError

from tests.support.conditions import until
from tests.support.processes.stack import Stack
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.cards import box_cards
from turnstile.ledger.turns.views import describe_turn, list_steps
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, JsonContent, TextContent, ToolResultContent, content_of
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ChannelId, ProjectId, uuid7
from turnstile.schema.ledger_reads import StepView
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.events import Wakeup
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.sdk.client import BridgeClient
from turnstile.transport.json_messages import decode_object

CHANNEL = ChannelId("public")
ALICE = AgentId("alice")


@dataclass(frozen=True)
class StoredEvent:
    """A message of the event stream."""

    subject: str
    sequence: int
    payload: JsonObject
    headers: dict[str, str]

    @property
    def suffix(self) -> str:
        """`state`, `step`, `task`, …"""
        return self.subject.rpartition(".")[2]


@dataclass(frozen=True)
class Ended:
    """An ended turn: its row, its steps, and its own cards in its output box."""

    view: TurnView
    steps: list[StepView]
    cards: list[Card]

    def deliverable(self) -> JsonObject | str:
        """The text or JSON object of the only deliverable, which the outcome names."""
        [card] = [card for card in self.cards if card.type == CardType.DELIVERABLE]
        assert card.card_id == self.view.deliverable_card_id
        content = content_of(card)
        if isinstance(content, TextContent):
            return content.text
        assert isinstance(content, JsonContent)
        assert isinstance(content.data, dict)
        return content.data

    def types(self) -> list[str]:
        """The types of its cards in order, without those that pin prompt and tools."""
        return [card.type for card in self.cards if card.type not in {CardType.RENDERED_PROMPT, CardType.TOOLS}]

    def results(self) -> list[tuple[str, str | None, str]]:
        """Status, error code and error message of its `tool.result` cards."""
        contents = [content_of(card) for card in self.cards if card.type == CardType.TOOL_RESULT]
        found: list[tuple[str, str | None, str]] = []
        for content in contents:
            assert isinstance(content, ToolResultContent)
            error = content.error
            found.append((content.status.value, error and error.code, error.message if error else ""))
        return found


@dataclass(frozen=True)
class Tenant:
    """A project with a client."""

    stack: Stack
    project: ProjectId
    client: BridgeClient

    @property
    def pool(self) -> Pool:
        """The ledger."""
        return self.stack.pool

    async def profile(self, name: str, model: str, *, llm: JsonObject | None = None, **fields: Any) -> BoxId:
        """Store a profile of the stack's worker target with the model `scripted/{model}`."""
        config = LlmConfig.model_validate({"model": f"scripted/{model}", **(llm or {})})
        [target] = self.stack.settings.worker.worker_targets
        profile = Profile(name=name, worker_target=target, llm_config=config, **fields)
        box, _, _ = await put_profile(self.pool, self.project, profile)
        return box

    async def agent(self, model: str, agent: AgentId = ALICE, **fields: Any) -> AgentId:
        """Add an agent with a new profile."""
        await self.profile(f"{agent}-profile", model, **fields)
        await add_agent(self.pool, self.project, agent, f"{agent}-profile")
        return agent

    async def agents(self, model: str, count: int, **fields: Any) -> list[AgentId]:
        """Add agents that share a profile."""
        await self.profile("shared", model, **fields)
        made = [AgentId(f"agent-{number}") for number in range(count)]
        for agent in made:
            await add_agent(self.pool, self.project, agent, "shared")
        return made

    async def ask(
        self, payload: JsonObject, *, headers: dict[str, str] | None = None, timeout: float = 25.0
    ) -> EnqueueReply:
        """Call `enqueue`; returns its reply, accepted or not."""
        reply = await self.client.request("enqueue", payload, headers=headers, timeout=timeout)
        return EnqueueReply.model_validate(reply)

    async def enqueue(self, agent: AgentId, instruction: str | None = "hello", **fields: Any) -> EnqueueReply:
        """Call `enqueue`, which must be accepted; returns its reply."""
        request: JsonObject = {"agent_id": agent, **fields}
        reply = await self.ask(request if instruction is None else {**request, "instruction": instruction})
        assert reply.status is ReplyStatus.ACCEPTED, reply
        return reply

    async def turn(self, agent: AgentId, instruction: str | None = "hello", **fields: Any) -> Ended:
        """Enqueue a turn and wait for its end."""
        return await self.ended(turn_of(await self.enqueue(agent, instruction, **fields)))

    async def run(self, model: str, instruction: str = "hello", **fields: Any) -> Ended:
        """Run a turn of a new agent `alice` to its end; `fields` are of its profile."""
        return await self.turn(await self.agent(model, **fields), instruction)

    async def rung(self, target: str) -> Wakeup | None:
        """The project's last doorbell for this worker target in the stream."""
        try:
            found = await self.stack.conn.js.get_last_msg(
                subjects.CMD_STREAM, subjects.wakeup(self.project, CHANNEL, target)
            )
        except NotFoundError:
            return None
        return Wakeup.model_validate_json(found.data or b"")

    async def ended(self, turn: AgentTurnId, timeout: float = 25.0) -> Ended:
        """Wait until the turn's outcome is announced; returns the turn."""

        async def announced() -> TurnView | None:
            view = await self.pool.run(lambda conn: describe_turn(conn, self.project, turn))
            return view if view is not None and view.announced_at is not None else None

        view = await until(announced, timeout, f"turn {turn} ended")
        steps = await self.pool.run(lambda conn: list_steps(conn, self.project, turn))
        box = view.output_box_id
        assert box is not None
        cards = await self.pool.run(lambda conn: box_cards(conn, self.project, box))
        return Ended(view, steps, [card for card in cards or [] if card.metadata.agent_turn_id == turn])

    async def all_ended(self, turns: Sequence[AgentTurnId], timeout: float) -> None:
        """Wait until the outcomes of all turns are announced."""

        async def done() -> bool:
            return await self.count("state.turn_outcomes", "announced_at IS NOT NULL") >= len(turns)

        await until(done, timeout, f"{len(turns)} turns ended", pause=0.05)

    async def count(self, table: str, condition: str = "true") -> int:
        """The number of rows of this project."""
        async with self.pool.connection() as conn:
            rows = await conn.fetch(
                f"SELECT count(*) AS n FROM {table} WHERE project_id = $1 AND {condition}",  # noqa: S608 -- words of tests
                self.project,
            )
        return rows[0]["n"]

    async def rows(self, statement: str, *args: object) -> list[dict[str, Any]]:
        """The rows of a statement that only a test executes."""
        async with self.pool.connection() as conn:
            return [dict(row) for row in await conn.fetch(statement, *args)]

    async def events(self, suffix: str = "agent.*.*") -> list[StoredEvent]:
        """The project's messages in the event stream, in order; `suffix` is the subject after `evt`."""
        wanted = f"cg.{subjects.VERSION}.{self.project}.*.evt.{suffix}"
        found: list[StoredEvent] = []
        sequence = 1
        while True:
            try:
                message = await self.stack.conn.js.get_msg(subjects.EVT_STREAM, sequence, wanted, next=True)
            except NotFoundError:
                return found
            assert message.subject is not None
            assert message.seq is not None
            payload = decode_object(message.data or b"")
            given = cast("dict[str, str]", message.headers or {})  # pyright: ignore[reportUnknownMemberType] -- nats-py: a bare Dict
            found.append(StoredEvent(message.subject, message.seq, payload, dict(given)))
            sequence = message.seq + 1

    async def task_events(self) -> dict[str, int]:
        """The number of `task` events of each turn in the event stream."""
        counts: dict[str, int] = {}
        for event in await self.events("agent.*.task"):
            turn = str(event.payload["agent_turn_id"])
            counts[turn] = counts.get(turn, 0) + 1
        return counts

    def named(self, project: str) -> "Tenant":
        """A client of another project of the same stack."""
        other = ProjectId(project)
        return replace(self, project=other, client=BridgeClient(self.stack.conn, other, CHANNEL))


def new_tenant(stack: Stack) -> Tenant:
    """A client of a new project."""
    project = ProjectId(f"p-{uuid7()}")
    return Tenant(stack, project, BridgeClient(stack.conn, project, CHANNEL))


def turn_of(reply: EnqueueReply) -> AgentTurnId:
    """The turn of an accepted enqueue."""
    assert reply.agent_turn_id is not None
    return reply.agent_turn_id


async def granted(tenant: Tenant, **limits: int) -> str:
    """The id of a turn's grant."""
    turn = AgentTurnId(uuid7())
    await tenant.rows(
        "SELECT state.charge_turns($1, $2, jsonb_build_array(jsonb_build_object("
        "'agent_turn_id', $3::text, 'budget', state.plan_budget($1, $3, $4::jsonb, NULL))))",
        *(tenant.project, CHANNEL, turn, json.dumps(limits)),
    )
    return turn
