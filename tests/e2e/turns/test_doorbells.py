"""What an observer of NATS hears of doorbells: a client with nothing of ours, beside every kind of turn.

Each row that leaves work for a target is rung for, whoever claims it: the process that wrote it, or another one.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.support.conditions import until
from tests.support.faults.kinds import CONFIG, PLAYS, Scene, open_scene
from tests.support.faults.points import DONE
from tests.support.faults.walk import settled
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import processes_of
from tests.support.processes.stack import Stack, running_here
from tests.support.pump.troupe import ACTORS
from tests.support.tenants import Tenant
from turnstile.ledger.roster import add_agent
from turnstile.schema.ids import AgentId, uuid7
from turnstile.schema.wire import subjects

# A stack that serves every kind of turn.
pytestmark = pytest.mark.stack(CONFIG, ACTORS)

ROWS = (
    "SELECT i.inbox_id, i.message_type, i.agent_id, a.worker_target FROM state.agent_inbox i"
    " JOIN resource.project_agents a USING (project_id, agent_id) WHERE i.project_id = $1"
    " AND i.turn_epoch > 0 AND i.message_type IN ('turn', 'ui_action', 'tool_result', 'timeout', 'stop')"
)
"""The rows that claims take. A turn that was stopped in its agent's queue never had an epoch, and left no work."""


@dataclass
class Observer:
    """The wakeups of a project by the row that they name: subject and payload."""

    heard: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict[str, Any])

    async def hear(self, message: Msg) -> None:
        """Take one."""
        payload = json.loads(message.data)
        self.heard.setdefault(payload["inbox_id"], []).append((message.subject, payload))


@asynccontextmanager
async def observing(tenant: Tenant) -> AsyncGenerator[Observer]:
    """Listen on NATS, with its own client, for the project's wakeups."""
    observer = Observer()
    conn = Client()
    await conn.connect(tenant.stack.endpoints.nats_url)  # pyright: ignore[reportUnknownMemberType] -- partly typed
    subject = f"cg.v1r4.{tenant.project}.*.cmd.agent.*.wakeup"
    await conn.subscribe(subject, cb=observer.hear)  # pyright: ignore[reportUnknownMemberType] -- partly typed
    await conn.flush()
    try:
        yield observer
    finally:
        await conn.close()


@pytest.fixture(scope="module")
async def served(stack: Stack, hatching: Hatchery, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """The stack with worker and bridge in one process, as `up` has them, then as two."""
    if request.param == "one-process":
        async with running_here(stack):
            yield stack
    else:
        async with processes_of(stack.config, hatching) as both:
            await both.ensure()
            yield stack


async def queued(scene: Scene) -> None:
    """Two turns of one agent: the second is leased by the end of the first."""
    agent = await scene.tenant.agent("player")
    await scene.armed()
    for turn in [await scene.enqueue(agent, DONE) for _ in range(2)]:
        await scene.ended(turn)


KINDS = {name: play for name, play in PLAYS.items() if name not in ("deleted", "files")} | {"queued": queued}
"""The other two leave no row."""


APART = ("tool", "forked", "rerun", "queued")
"""Kinds that the usual run plays with worker and bridge apart, too."""
CASES = [
    *(pytest.param("one-process", kind, id=f"one-process-{kind}") for kind in KINDS),
    *(
        pytest.param("apart", kind, id=f"apart-{kind}", marks=() if kind in APART else pytest.mark.long)
        for kind in KINDS
    ),
]


@pytest.mark.parametrize(("served", "kind"), CASES, indirect=["served"])
async def test_each_row_is_rung_for(served: Stack, kind: str) -> None:
    async with AsyncExitStack() as opened:
        scene = await open_scene(served, opened)
        observer = await opened.enter_async_context(observing(scene.tenant))
        scene.go.set()
        await KINDS[kind](scene)
        await settled(scene)
        rows = await scene.tenant.rows(ROWS, scene.tenant.project)

        async def all_heard() -> bool:
            return {row["inbox_id"] for row in rows} <= observer.heard.keys()

        try:
            await until(all_heard, 25, "each row was rung for")
        except AssertionError:
            silent = [row for row in rows if row["inbox_id"] not in observer.heard]
            raise AssertionError([dict(row) for row in silent]) from None
    for row in rows:
        for subject, payload in observer.heard[row["inbox_id"]]:
            assert subject.endswith(f".cmd.agent.{row['worker_target']}.wakeup")
            assert payload["agent_id"] == row["agent_id"]


async def test_another_target_is_rung_for_in_nats(tenant: Tenant) -> None:
    target = f"w-{uuid7()}"
    await tenant.profile("elsewhere", "plain")
    await add_agent(tenant.pool, tenant.project, AgentId("bob"), "elsewhere", worker_target=target)
    reply = await tenant.enqueue(AgentId("bob"))
    bell = await tenant.rung(target)
    assert bell is not None
    assert (bell.agent_id, bell.inbox_id, bell.reason) == ("bob", reply.inbox_id, "enqueue")
    subject = f"cg.v1r4.{tenant.project}.public.cmd.agent.{target}.wakeup"
    stored = await tenant.stack.conn.js.get_last_msg(subjects.CMD_STREAM, subject)
    assert json.loads(stored.data or b"")["agent_id"] == "bob"
