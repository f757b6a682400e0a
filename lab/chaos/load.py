"""The load: turns and trees of every kind, enqueued at a steady rate by clients that retry.

A client repeats its request with one correlation id until it gets `accepted`. A third of the clients use durable
commands or write to the ledger directly. The replies are kept here and compared with the ledger at the end.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from nats.aio.msg import Msg

from lab.chaos.environment import CLIENT, TARGET, Environment
from lab.chaos.observer import Observer
from lab.chaos.tools import NAMES, definitions
from lab.chaos.trees import MATES, TREES, Grower, Plan
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, ChannelId, ProjectId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.tools import PMO_TOOLS, DefinedOptions, ToolDefinition
from turnstile.schema.wire import subjects
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import NatsConnection, connect

PROJECT, CHANNEL = ProjectId("chaos"), ChannelId("public")
PROFILE = "chaos"
AGENTS, BUSY, ROOTS, CLOCKS = 120, 8, 40, 50
CRON_LINES = (
    ("* * * * *", "Europe/Berlin"),
    ("*/2 * * * *", "Asia/Kathmandu"),
    ("1-59/2 * * * 0-6", "America/New_York"),
    ("0-29,30-59 0-23 * 1-12 *", "Australia/Lord_Howe"),
    ("*/3 * 1-31 * *", "UTC"),
)
CLOCK = Caller("clock")
"""Who puts the schedules."""
REQUEST_SECONDS = 3.0
FORK_SECONDS = 60.0
"""How long a delegating call waits until a bridge has taken it; the bridges may be dead for a while."""
Way = Literal["request", "command", "direct"]

KINDS: Mapping[str, int] = {
    "plain": 26,
    "streamed": 10,
    "guess": 5,
    "flaky": 5,
    "tool": 12,
    "parallel": 9,
    "chain": 5,
    "slow": 5,
    "fails": 4,
    "ends": 5,
    "silent": 3,
    "stop_queued": 3,
    "stop_streaming": 4,
    "stop_suspended": 4,
}
"""Kinds of turns with their weights; turns whose kind begins with `stop` are stopped."""


@dataclass(slots=True)
class Turn:
    """What the client of a turn knows about it."""

    key: str
    kind: str
    way: Way
    agent: AgentId
    turn: str = ""
    asked_at: float = 0.0
    accepted_at: float = 0.0
    tries: int = 0
    stop: str = ""
    """The reply to the stop."""
    others: set[str] = field(default_factory=set[str])
    """Other turns named in replies to the same correlation; not empty means that one enqueue made two turns."""


def steps_of(kind: str, draw: random.Random) -> list[dict[str, Any]]:
    """The scripted steps of the model for a turn of this kind."""
    last = {"text": "All of it is done now.", "delay": 0.01}
    match kind:
        case "streamed" | "stop_streaming":
            return [{"text": "word " * draw.randint(20, 45), "delay": draw.uniform(0.05, 0.1)}]
        case "guess":
            return [{"text": "First a guess.", "calls": [["nosuch", {}]]}, last]
        case "flaky":
            return [{**last, "fails": draw.randint(1, 2)}]
        case "tool":
            return [{"calls": [["quick", {"n": 1}]]}, last]
        case "parallel":
            calls: list[list[Any]] = [["quick", {"n": n}] for n in range(draw.randint(1, 4))]
            return [{"calls": [*calls, ["slow", {"seconds": draw.uniform(0.2, 1.0)}]]}, last]
        case "chain":
            return [{"calls": [["quick", {"n": 1}]]}, {"calls": [["quick", {"n": 2}], ["fails", {}]]}, last]
        case "slow":
            return [{"calls": [["slow", {"seconds": draw.uniform(1, 4)}]]}, last]
        case "fails":
            return [{"calls": [["fails", {}]]}, last]
        case "ends":
            return [{"calls": [["ends", {}]]}]
        case "silent":
            return [{"calls": [["silent", {}]]}, last]
        case "stop_suspended":
            return [{"calls": [["mute", {}], ["quick", {"n": 1}]]}, last]
        case _:
            return [{"text": "word " * draw.randint(3, 15), "delay": draw.uniform(0.005, 0.04)}]


@dataclass
class Load:
    """The clients, on one connection through the client's proxies."""

    environment: Environment
    observer: Observer
    conn: NatsConnection
    pool: Pool
    draw: random.Random
    turns: list[Turn] = field(default_factory=list[Turn])
    begun: int = 0
    most_open: int = 400
    """The number of accepted turns that may be open; then the clients wait."""
    answers: Counter[str] = field(default_factory=Counter[str])
    schedules: list[str] = field(default_factory=list[str])
    _acks: dict[str, "asyncio.Future[JsonObject]"] = field(default_factory=dict[str, "asyncio.Future[JsonObject]"])

    @property
    def accepted(self) -> int:
        """Number of turns whose client got `accepted`."""
        return sum(1 for turn in self.turns if turn.turn)

    @property
    def open(self) -> int:
        """Number of accepted turns whose `task` event was not seen yet."""
        seen = self.observer.seen
        return sum(1 for turn in self.turns if turn.turn and turn.turn not in seen)

    async def run(self, count: int, seconds: float, kinds: Mapping[str, int] = KINDS) -> None:
        """Enqueue `count` turns in about `seconds`; returns when all are accepted or stopped."""
        async with asyncio.TaskGroup() as group:
            async for kind, way in self._paced(count, seconds, kinds):
                busy = kind == "stop_queued" or self.draw.random() < 0.1
                agent = AgentId(f"agent-{self.draw.randrange(BUSY if busy else AGENTS)}")
                group.create_task(self.one(kind, way, agent, steps_of(kind, self.draw)))

    async def grow(self, count: int, seconds: float) -> None:
        """Enqueue the roots of `count` trees in about `seconds`; returns as `run` does."""
        grower = Grower(self.draw, PROFILE)
        async with asyncio.TaskGroup() as group:
            number = 0
            async for kind, way in self._paced(count, seconds, TREES):
                agent, number = AgentId(f"root-{number % ROOTS}"), number + 1
                group.create_task(self.plan(kind, way, agent, grower.tree(kind)))

    async def put_schedules(self, count: int) -> None:
        """Put `count` schedules, each of an agent of its own: every 2 to 10 seconds, and each fifth by cron.

        Four in five do not fire while the turn before is in hand: that is a firing with a code.
        """
        for number in range(count):
            schedule = f"clock-{number}"
            request: JsonObject = {
                "schedule_id": schedule,
                "agent_id": schedule,
                "instruction": Plan(steps_of("plain", self.draw)).instruction(schedule),
            }
            if number % 5:  # else more come than a busy machine can run
                request |= {"conversation_id": schedule, "overlap": "reject"}
            if number % 5 == 4:
                cron, zone = CRON_LINES[number // 5 % len(CRON_LINES)]
                request |= {"cron": cron, "timezone": zone}
            else:
                request["every_seconds"] = self.draw.randint(2, 10)
            await self._request_until_accepted("schedule.put", request, caller=CLOCK)
            self.schedules.append(schedule)

    async def pause_schedules(self) -> None:
        """Let them fire no more, so that the ledger becomes quiet."""
        for schedule in self.schedules:
            await self._request_until_accepted("schedule.pause", {"schedule_id": schedule}, caller=CLOCK)

    async def _paced(self, count: int, seconds: float, kinds: Mapping[str, int]) -> AsyncIterator[tuple[str, Way]]:
        """Kinds and ways, at a steady rate while not too many turns are open."""
        began = asyncio.get_running_loop().time()
        names, weights = list(kinds), list(kinds.values())
        for number in range(count):
            due = began + seconds * number / count
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            while number % 16 == 0 and self.open > self.most_open:  # noqa: ASYNC110 -- a count, no event
                await asyncio.sleep(0.2)
            [kind] = self.draw.choices(names, weights)
            [way] = self.draw.choices(("request", "command", "direct"), (70, 18, 12))
            yield kind, way

    async def one(self, kind: str, way: Way, agent: AgentId, steps: list[dict[str, Any]]) -> None:
        """Enqueue one turn until it is accepted, and stop it if its kind says so."""
        await self.plan(kind, way, agent, Plan(steps))

    async def plan(self, kind: str, way: Way, agent: AgentId, plan: Plan) -> None:
        """Enqueue a turn that does what the plan says until it is accepted, and stop it if its kind says so."""
        turn = Turn(f"key-{self.begun}", kind, way, agent, asked_at=time.time())
        self.turns.append(turn)
        self.begun += 1
        longest = 4.0 if kind in TREES else 2.0
        wait = self.draw.uniform(0.0, 0.05) if kind == "stop_queued" else self.draw.uniform(0.3, longest)
        await self._one(turn, plan, wait)

    async def _one(self, turn: Turn, plan: Plan, wait: float) -> None:
        await self._enqueue(turn, plan)
        if turn.kind.startswith("stop"):
            await asyncio.sleep(wait)
            cascade = "all" if turn.kind == "stop_whole" else "waited"
            stop: JsonObject = {"agent_turn_id": turn.turn, "reason": "chaos", "cascade": cascade}
            reply = await self._request_until_accepted("stop", stop)
            turn.stop = "already over" if reply.get("already_final") else "stopped"

    async def _enqueue(self, turn: Turn, plan: Plan) -> None:
        instruction = plan.instruction(turn.key)
        request: JsonObject = {"agent_id": turn.agent, "instruction": instruction, "correlation_id": turn.key}
        if plan.budget is not None:
            request["budget"] = plan.budget
        if turn.way == "direct":
            reply = await self._direct(turn, request)
        elif turn.way == "command" and (acked := await self._command(turn, request)) is not None:
            reply = acked
        else:
            reply = await self._request_until_accepted("enqueue", request, turn)
        turn.turn, turn.accepted_at = str(reply["agent_turn_id"]), time.time()
        if turn.tries % 3 == 2:  # as if the reply was lost: enqueue again
            again = await self._request_until_accepted("enqueue", request)
            if again["agent_turn_id"] != turn.turn:
                turn.others.add(str(again["agent_turn_id"]))

    async def _request_until_accepted(
        self, verb: str, payload: JsonObject, turn: Turn | None = None, caller: Caller | None = None
    ) -> JsonObject:
        client = BridgeClient(self.conn, PROJECT, CHANNEL)
        while True:
            if turn is not None:
                turn.tries += 1
            try:
                reply = await client.request(verb, payload, timeout=REQUEST_SECONDS, caller=caller)
            except ServerUnavailable:
                self.answers["none"] += 1
                await asyncio.sleep(0.2)
                continue
            status = str(reply["status"])
            self.answers[status] += 1
            if status == "accepted":
                return reply
            if status == "rejected":
                raise AssertionError(f"{verb} was rejected: {reply}")
            await asyncio.sleep(0.2)

    async def _command(self, turn: Turn, payload: JsonObject) -> JsonObject | None:
        """The ack event if it arrives soon; else None, and a request with the same correlation finds the result."""
        acknowledged = self._acks[turn.key] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(8):
                while True:
                    turn.tries += 1
                    try:
                        await BridgeClient(self.conn, PROJECT, CHANNEL).command("enqueue", payload, turn.key)
                        break
                    except ServerUnavailable:
                        await asyncio.sleep(0.2)
                reply = await acknowledged
        except TimeoutError:
            return None
        finally:
            self._acks.pop(turn.key, None)
        return reply if reply["status"] == "accepted" else None

    async def _direct(self, turn: Turn, payload: JsonObject) -> JsonObject:
        request = EnqueueRequest.model_validate(payload)
        while True:
            turn.tries += 1
            try:
                enqueued = await enqueue(
                    self.pool, PROJECT, CHANNEL, request, {}, depth_limit=20, sender="client.chaos"
                )
            except ServerUnavailable:
                await asyncio.sleep(0.2)
                continue
            return enqueued.reply.model_dump(mode="json")

    async def on_ack(self, msg: Msg) -> None:
        """Receive an ack event of a durable command (subscribed by `open_load`)."""
        reply: JsonObject = json.loads(msg.data)
        waiting = self._acks.get(str(reply.get("request_id")))
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)


def _delegating() -> list[ToolDefinition]:
    """The kernel's delegating tools, whose calls wait longer for a bridge than other calls for a tool."""
    return [
        ToolDefinition(
            tool_name=row.tool_name,
            description=row.description or "",
            parameters=row.parameters,
            target_subject=subjects.pmo_target(row.tool_name),
            options=DefinedOptions(suspend_timeout_seconds=FORK_SECONDS),
        )
        for row in kernel_tools().values()
    ]


@asynccontextmanager
async def open_load(environment: Environment, observer: Observer, seed: int) -> AsyncGenerator[Load]:
    """Create the project with its agents and tools; returns its clients."""
    direct = Pool(environment.direct.database_url, size=2, name="chaos")
    try:
        for tool in (*definitions(), *_delegating()):
            await put_tool(direct, PROJECT, tool)
        config = LlmConfig.model_validate({"model": "scripted/chaos"})
        profile = Profile(
            name=PROFILE,
            worker_target=TARGET,
            llm_config=config,
            allowed_tools=[*NAMES, *sorted(PMO_TOOLS)],
            delegation_policy=DelegationPolicy(),
        )
        await put_profile(direct, PROJECT, profile)
        for kind, count in (("agent", AGENTS), ("root", ROOTS), ("mate", MATES), ("clock", CLOCKS)):
            for number in range(count):
                await add_agent(direct, PROJECT, AgentId(f"{kind}-{number}"), PROFILE)
    finally:
        await direct.close()
    seen = environment.seen_by(CLIENT)
    conn = await connect(seen.nats_url, name="chaos-client")
    pool = Pool(seen.database_url, size=6, name="chaos-client", patience=5.0)
    load = Load(environment, observer, conn, pool, random.Random(seed))  # noqa: S311 -- a load, not a secret
    await conn.subscribe(subjects.bridge_ack(PROJECT, CHANNEL, "enqueue"), load.on_ack)
    try:
        yield load
    finally:
        await conn.close()
        await pool.close()
