"""A wall clock that is set an hour forward, back and right again, of one process, under turns in hand.

Nothing is lost, no turn ends by force, and nothing waits for the hour to pass. PostgreSQL's own clock is in
`test_ledger_clock.py`.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.support.conditions import until
from tests.support.gateway import client, token_of
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.clocks import Clock, right_clock
from tests.support.processes.hatchery import Hatchery, hatchery
from tests.support.processes.net import repairs
from tests.support.processes.process import Role, TurnstileProcess
from tests.support.processes.stack import QUICK, Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import Hand, calling, definition
from turnstile.embedded.ports import free_port
from turnstile.ledger.roster import put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId

HOUR = timedelta(hours=1)
JUMPS = (HOUR, -HOUR, timedelta())
ROLES: tuple[Role, ...] = ("worker", "bridge", "gateway")
TOOL = """
import asyncio
from turnstile import ToolService

service = ToolService("{project}")

@service.tool(target="naps", suffix="nap", timeout_seconds=20)
async def nap(q: str) -> str:
    "Sleep for a moment. q: anything"
    await asyncio.sleep(0.5)
    return q

service.main()
"""
NAP = definition("nap", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.naps.nap")
CALLS: list[JsonObject] = [calling("nap", delay_seconds=0.2), {"text": "Done.", "delay_seconds": 0.2}]
LONG: list[JsonObject] = [{"text": "At last.", "delay_seconds": 5.0}]
"""A step that is silent in the ledger for longer than `REAP_SECONDS`; its worker's heartbeats are not."""
REAP_SECONDS = 3.0
AGENTS = 3
PATIENCE = 60.0


@dataclass
class Load:
    """Clients that each ask for one turn after another, with a call of the tool in it, until it is enough."""

    tenant: Tenant
    agents: Sequence[AgentId]
    turns: list[AgentTurnId] = field(default_factory=list[AgentTurnId])
    ended: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until it is enough and every turn has ended."""
        async with asyncio.TaskGroup() as clients:
            for agent in self.agents:
                clients.create_task(self._client(Hand(self.tenant, agent)))

    async def _client(self, hand: Hand) -> None:
        while not self.enough.is_set():
            turn = await hand.start(*CALLS)
            self.turns.append(turn)
            await self.tenant.ended(turn, PATIENCE)
            self.ended += 1

    async def until_more(self, count: int) -> None:
        """Wait until so many more turns have ended."""
        wanted = self.ended + count

        async def more() -> bool:
            return self.ended >= wanted

        await until(more, PATIENCE, f"{count} more turns ended")


@dataclass
class Clocked:
    """Worker, bridge, gateway and a tool as processes, each with a wall clock of its own."""

    tenant: Tenant
    clocks: dict[str, Clock]
    agents: list[AgentId]
    web: httpx.AsyncClient
    hatching: Hatchery

    def set_clocks(self, by: timedelta, members: Sequence[str]) -> None:
        """Set the clocks of these processes."""
        for member in members:
            self.clocks[member].shift(by)

    async def ask_gateway(self, agent: AgentId) -> AgentTurnId:
        """A turn with a long step, asked for over HTTP."""
        given = {"agent_id": agent, "instruction": json.dumps({"steps": LONG})}
        answer = await self.web.post("/v1/turns", json=given)
        assert answer.status_code in (201, 202), answer.text
        return answer.json()["agent_turn_id"]


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """On the session's servers; the rule that ends silent turns looks soon."""
    bridge = {**QUICK["bridge"], "engine_interval_seconds": 0.5, "active_reap_seconds": REAP_SECONDS}
    async with stacks.open({**QUICK, "bridge": bridge, "gateway": {"port": free_port()}}) as opened:
        yield opened


@pytest.fixture(scope="module")
async def clocked(stack: Stack) -> AsyncIterator[Clocked]:
    """The four processes, with clocks that are right."""
    tenant, directory = new_tenant(stack), stack.directory
    clocks = {name: right_clock(directory / f"{name}.clock") for name in (*ROLES, "tool")}
    await put_tool(tenant.pool, tenant.project, NAP)
    agents = await tenant.agents("player", AGENTS + len(JUMPS), allowed_tools=["nap"])
    program = directory / "tool.py"
    program.write_text(TOOL.format(project=tenant.project))
    async with AsyncExitStack() as exits:
        parent = right_clock(directory / "parent.clock")
        hatching = await exits.enter_async_context(hatchery(**parent.environment))
        processes = [TurnstileProcess(role, stack.config, hatching) for role in ROLES]
        for process in processes:
            process.env |= clocks[process.role].environment
            exits.push_async_callback(process.remove)
        with (directory / "tool.log").open("ab") as log:
            environment = {**os.environ, **clocks["tool"].environment, "NATS_URL": stack.endpoints.nats_url}
            tool = await asyncio.create_subprocess_exec(
                *(sys.executable, program), env=environment, stdout=log, stderr=log
            )
        exits.callback(tool.kill)
        await asyncio.gather(*(process.start() for process in processes))
        url = f"http://127.0.0.1:{stack.settings.gateway.port}"
        web = await exits.enter_async_context(client(url, await token_of(stack, tenant.project)))
        yield Clocked(tenant, clocks, agents, web, hatching)
        assert tool.returncode is None
    await tool.wait()


@pytest.mark.parametrize(
    "members",
    [
        pytest.param((*ROLES, "tool"), id="all"),
        *(pytest.param((name,), id=name, marks=pytest.mark.long) for name in (*ROLES, "tool")),
    ],
)
async def test_a_process_whose_clock_jumps_by_an_hour_loses_nothing(clocked: Clocked, members: Sequence[str]) -> None:
    """The others' clocks and the servers' are right meanwhile."""
    tenant = clocked.tenant
    load, before = Load(tenant, clocked.agents[:AGENTS]), await repairs(tenant.pool)
    running = asyncio.create_task(load.run())
    long: list[AgentTurnId] = []
    for by, agent in zip(JUMPS, clocked.agents[AGENTS:], strict=True):
        long.append(await clocked.ask_gateway(agent))
        await load.until_more(1)
        clocked.set_clocks(by, members)
        await load.until_more(AGENTS)
    load.enough.set()
    await running
    for turn in long:
        await tenant.ended(turn, PATIENCE)
    turns = [*load.turns, *long]
    rows = await tenant.rows(
        "SELECT status, error_code FROM state.turn_outcomes WHERE agent_turn_id = ANY ($1::text[])", turns
    )
    assert [tuple(row.values()) for row in rows] == [("success", None)] * len(turns)
    told = await tenant.task_events()
    assert [told[turn] for turn in turns] == [1] * len(turns)
    after = await repairs(tenant.pool)
    assert {rule: after[rule] - before.get(rule, 0) for rule in after if rule.endswith("reap")} == {}
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


async def test_what_may_be_pruned_goes_by_the_clock_of_the_ledger(clocked: Clocked) -> None:
    """A command whose clock is ahead removes nothing that ended within the age that it was given."""
    tenant, stack = clocked.tenant, clocked.tenant.stack
    turn = turn_of(await tenant.enqueue(clocked.agents[0], json.dumps({"steps": [{"text": "Done."}]})))
    await tenant.ended(turn, PATIENCE)
    clock, log = right_clock(stack.directory / "prune.clock"), stack.directory / "prune.log"
    clock.shift(HOUR)
    words = ("prune", "--older-than", "1h", "--json", "--config", stack.config)
    pruning = await clocked.hatching.spawn(words, {**os.environ, **clock.environment}, log)
    assert await pruning.wait() == 0, log.read_text()
    assert json.loads(log.read_text())["turns"] == 0
    assert await tenant.count("state.turn_outcomes", f"agent_turn_id = '{turn}'") == 1


TIMES = """
SELECT format('%I.%I', c.table_schema, c.table_name) AS name, c.column_name FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema IN ('public', 'resource', 'state') AND c.data_type = 'timestamp with time zone'
  AND t.table_type = 'BASE TABLE'
"""
MONTH = timedelta(days=30)


@pytest.mark.parametrize("by", [MONTH, -MONTH], ids=["ahead", "behind"])
async def test_all_times_in_the_ledger_are_the_ledger_s(clocked: Clocked, by: timedelta) -> None:
    """Processes that are a month ahead, or behind, write no time and no duration of theirs."""
    tenant, operator = clocked.tenant, clocked.tenant.client
    clocked.set_clocks(by, (*ROLES, "tool"))
    turn = turn_of(await tenant.enqueue(clocked.agents[0], json.dumps({"steps": CALLS})))
    ended = await tenant.ended(turn, PATIENCE)
    limited: Any = await operator.request("limit_project", {"period": "day", "limits": {"max_tokens": 1_000_000}})
    raised: Any = await operator.request("raise_budget", {"budget_id": "day", "max_tokens": 10})
    assert raised["budget"]["budget_id"] == limited["budget"]["budget_id"], raised
    shown = (await clocked.web.get("/v1/budgets/day")).json()
    assert shown["budget_id"] == limited["budget"]["budget_id"]
    await operator.request("limit_project", {"period": "day", "limits": None})
    clocked.set_clocks(timedelta(), (*ROLES, "tool"))
    wrong: list[str] = []
    for column in await tenant.rows(TIMES):
        name, time = column["name"], column["column_name"]
        far = f"isfinite({time}) AND abs(extract(epoch FROM {time} - now())) > 86400"
        found = await tenant.rows(f"SELECT count(*) AS n FROM {name} WHERE {far}")  # noqa: S608 -- of the catalog
        wrong += [f"{name}.{time}"] * min(1, found[0]["n"])
    assert wrong == []
    for step in ended.steps:
        assert step.ended_at is not None
        assert timedelta() <= step.ended_at - step.started_at < timedelta(minutes=1)
        timing: Any = step.metadata["timing"]
        assert all(value is None or 0 <= value < 60_000 for value in timing.values()), timing
