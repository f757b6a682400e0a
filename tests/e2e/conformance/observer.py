"""An observer with a NATS client and a Postgres connection, and nothing of ours.

It makes the database write down each change of a row of `state.*` as it happens, by triggers of
its own, and hears every message of its project. Requests are JSON on subjects.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import asyncpg
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

WATCHED = (
    *("state.agent_inbox", "state.agent_state_head", "state.execution_edges", "state.turn_waiting_tools"),
    "state.agent_steps",
)
_SETUP = """
CREATE SCHEMA IF NOT EXISTS observed;
CREATE TABLE IF NOT EXISTS observed.changes (seq bigserial PRIMARY KEY, relation text, row jsonb);
CREATE OR REPLACE FUNCTION observed.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO observed.changes (relation, row) VALUES (TG_TABLE_NAME, to_jsonb(NEW));
    RETURN NULL;
END $$;
"""
_WATCH = """
CREATE OR REPLACE TRIGGER observed AFTER INSERT OR UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION observed.note()
"""
_UNTYPED: Any = asyncpg
_PLAYER = {"model": "scripted/player"}


@dataclass(frozen=True)
class Heard:
    """A message of the project, by its subject after project and channel."""

    subject: str
    payload: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Observer:
    """One project as strangers see it."""

    nc: Client
    pg: Any
    target: str
    project: str = field(default_factory=lambda: f"p-{uuid4()}")
    heard: list[Heard] = field(default_factory=list[Heard])

    # What it asks.

    async def ask(self, verb: str, payload: dict[str, Any], caller: str = "") -> dict[str, Any]:
        """A request, and its reply."""
        subject = f"cg.v1r4.{self.project}.public.req.sys.bridge.{verb}{caller and f'.{caller}'}"
        answered = await self.nc.request(subject, json.dumps(payload).encode(), timeout=15)
        return json.loads(answered.data)

    async def must(self, verb: str, payload: dict[str, Any], caller: str = "") -> dict[str, Any]:
        """A request that is accepted."""
        reply = await self.ask(verb, payload, caller)
        assert reply["status"] == "accepted", reply
        return reply

    async def hire(self, agent: str, profile: str | None = None, **fields: Any) -> None:
        """A profile whose model says what its instruction says, and an agent of it."""
        named = profile or f"{agent}-profile"
        given = {"name": named, "worker_target": self.target, "llm_config": _PLAYER, **fields}
        await self.must("profile.put", {"profile": given})
        await self.must("agent.put", {"agent_id": agent, "profile_name": named})

    async def tool(self, name: str, **fields: Any) -> None:
        """A tool that nobody serves: the observer reports its results."""
        subject = f"cg.v1r4.{{project_id}}.{{channel_id}}.cmd.tool.{name}.run"
        given = {"tool_name": name, "description": name, "parameters": {"type": "object"}, "target_subject": subject}
        await self.must("tool.put", {"tool": {**given, **fields}})

    async def enqueue(self, agent: str, *lines: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A turn whose model says these lines."""
        return await self.must(
            "enqueue", {"agent_id": agent, "instruction": json.dumps({"steps": lines}), **fields}, caller="alice"
        )

    # What it hears.

    async def take(self, message: Msg) -> None:
        """Notes a message of the project."""
        subject = message.subject.split(".", 4)[4]
        if not subject.startswith("req.") and message.data:
            self.heard.append(Heard(subject, json.loads(message.data), dict(message.headers or {})))

    def of(self, subject: str, **fields: Any) -> list[dict[str, Any]]:
        """The payloads on a subject that have these values."""
        return [
            each.payload
            for each in self.heard
            if each.subject == subject and all(each.payload.get(name) == value for name, value in fields.items())
        ]

    def wakeups(self, agent: str) -> list[dict[str, Any]]:
        """The doorbells for an agent."""
        return self.of(f"cmd.agent.{self.target}.wakeup", agent_id=agent)

    def told(self, agent: str, turn: str) -> list[str]:
        """The events of a turn in order, each as `suffix status` or `suffix phase`."""
        prefix = f"evt.agent.{agent}."
        return [
            f"{each.subject.removeprefix(prefix)} {each.payload.get('phase') or each.payload.get('status')}"
            for each in self.heard
            if each.subject.startswith(prefix) and each.payload.get("agent_turn_id") == turn
        ]

    async def task(self, agent: str, turn: str) -> dict[str, Any]:
        """The turn's one `task` event, once it is there."""
        await self.until(lambda: self._has(f"evt.agent.{agent}.task", turn))
        [event] = self.of(f"evt.agent.{agent}.task", agent_turn_id=turn)
        return event

    async def _has(self, subject: str, turn: str) -> bool:
        return bool(self.of(subject, agent_turn_id=turn))

    # What it reads.

    async def rows(self, statement: str, *arguments: object) -> list[dict[str, Any]]:
        """The rows of a statement."""
        return [dict(each) for each in await self.pg.fetch(statement, *arguments)]

    async def changes(self, relation: str, **fields: Any) -> list[dict[str, Any]]:
        """Each state that rows of the project with these values had, in order."""
        found = await self.rows(
            "SELECT row FROM observed.changes WHERE relation = $1 AND row @> $2::jsonb ORDER BY seq",
            *(relation, json.dumps({"project_id": self.project, **fields})),
        )
        return [json.loads(each["row"]) for each in found]

    async def heads(self, agent: str) -> list[tuple[str, int]]:
        """Status and epoch of an agent's head, as they changed."""
        found = await self.changes("agent_state_head", agent_id=agent)
        return changed((each["status"], each["turn_epoch"]) for each in found)

    async def inbox(self, **fields: Any) -> list[str]:
        """The statuses that the inbox row with these values had."""
        return changed(change["status"] for change in await self.changes("agent_inbox", **fields))

    async def waits(self, call: str) -> list[str]:
        """The statuses of a call's waiting row."""
        found = await self.changes("turn_waiting_tools", tool_call_id=call)
        return changed(each["wait_status"] for each in found)

    async def edges(self, correlation: str) -> list[tuple[str, str]]:
        """Primitive and phase of the edges of a correlation."""
        found = await self.rows(
            "SELECT primitive, edge_phase FROM state.execution_edges WHERE project_id = $1 AND correlation_id = $2"
            " ORDER BY created_at, primitive",
            *(self.project, correlation),
        )
        return [(each["primitive"], each["edge_phase"]) for each in found]

    async def cards(self, box: str) -> list[dict[str, Any]]:
        """The cards of a box, in order, with type, turn and content."""
        found = await self.rows(
            "SELECT c.card_id, c.metadata, c.content FROM public.box_cards b JOIN public.cards c USING (card_id)"
            " WHERE b.box_id = $1::uuid ORDER BY b.position",
            box,
        )
        return [
            {"card_id": each["card_id"], "content": json.loads(each["content"]), **json.loads(each["metadata"])}
            for each in found
        ]

    async def types(self, box: str) -> list[str]:
        """The types of the cards of a box."""
        return [card["type"] for card in await self.cards(box)]

    async def head(self, agent: str) -> dict[str, Any]:
        """The head of an agent."""
        [found] = await self.rows(
            "SELECT * FROM state.agent_state_head WHERE project_id = $1 AND agent_id = $2", *(self.project, agent)
        )
        return found

    async def until(self, holds: Callable[[], Awaitable[Any]], seconds: float = 20) -> Any:
        """Wait until something holds; returns it."""
        async with asyncio.timeout(seconds):
            while not (found := await holds()):  # noqa: ASYNC110 -- what it waits for is in another process
                await asyncio.sleep(0.02)
        return found

    async def suspended(self, agent: str) -> dict[str, Any]:
        """The head, once it is suspended."""

        async def is_suspended() -> dict[str, Any] | None:
            found = await self.head(agent)
            return found if found["status"] == "suspended" else None

        return await self.until(is_suspended)

    async def command(self, tool: str) -> Heard:
        """The command of a tool, once it is there."""

        async def there() -> list[Heard]:
            return [each for each in self.heard if each.subject == f"cmd.tool.{tool}.run"]

        [found] = await self.until(there)
        return found


def changed(values: Any) -> list[Any]:
    """The values without those that are equal to the one before."""
    found: list[Any] = []
    for value in values:
        if not found or found[-1] != value:
            found.append(value)
    return found


def calls(*names: str, **arguments: Any) -> dict[str, Any]:
    """A line of a model that calls tools."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name in names]}


@asynccontextmanager
async def observing(nats_url: str, database_url: str, target: str) -> AsyncGenerator[Observer]:
    """An observer of a new project."""
    pg = await _UNTYPED.connect(database_url)
    nc = await nats.connect(nats_url)  # pyright: ignore[reportUnknownMemberType] -- options without a type
    try:
        await pg.execute(_SETUP)
        for relation in WATCHED:
            await pg.execute(_WATCH.format(relation))
        observer = Observer(nc, pg, target)
        await nc.subscribe(f"cg.v1r4.{observer.project}.>", cb=observer.take)  # pyright: ignore[reportUnknownMemberType] -- as above
        await nc.flush()
        yield observer
    finally:
        await nc.close()
        await pg.close()
