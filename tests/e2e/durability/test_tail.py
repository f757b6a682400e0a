"""A power failure of NATS: what it had not synced is gone from its store, with `sync_interval: always` and without.

With `always` nothing that it acknowledged is lost. Without it the safety net mends what the ledger's rows know; what it
cannot mend is named in docs/operations.md, and each of these losses is seen here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from lab.support.nats_server import NatsServer
from lab.support.power_failure import STRACE, PowerFailure, read_trace
from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import QUICK, Config, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import CHANNEL, Tenant, new_tenant
from tests.support.tools import call_of, calling, hand_of
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.subjects import CMD_STREAM, EVT_STREAM
from turnstile.transport.connection import NATS_TROUBLE, connect
from turnstile.transport.streams import call_api, declare_streams

log = logging.getLogger(__name__)
SOON: Config = {**QUICK, "bridge": {**QUICK["bridge"], "command_retry_seconds": 1.0}}
PLAIN = AgentId("bob")


@pytest.fixture
async def server(sync_interval: str) -> AsyncIterator[NatsServer]:
    """One server that syncs as the test says."""
    made = NatsServer()
    made.sync_interval = sync_interval
    made.start()
    yield made
    made.remove()


@pytest.fixture
async def cut_stack(server: NatsServer, stacks: Stacks) -> AsyncIterator[Stack]:
    """A stack on it, of which nothing runs yet."""
    servers = stacks.servers.model_copy(update={"nats_url": server.url, "nats_monitoring_url": None})
    async with replace(stacks, servers=servers).open(SOON) as stack:
        yield stack


def watched(server: NatsServer) -> PowerFailure:
    """The server, watched from now on."""
    failure = PowerFailure(server.store, server.pid)
    try:
        failure.watch()
    except TimeoutError as error:
        pytest.skip(f"a process may not be traced here: {error}")
    return failure


@pytest.mark.skipif(STRACE is None, reason="strace is not installed: it tells what nats-server has synced")
@pytest.mark.parametrize(
    ("sync_interval", "keep_states"),
    [
        pytest.param("always", False, id="always"),
        pytest.param("2m", False, id="2m", marks=pytest.mark.long),
        pytest.param("2m", True, id="2m-consumers-ahead", marks=pytest.mark.long),
    ],
)
async def test_what_a_power_failure_loses(
    server: NatsServer, cut_stack: Stack, sync_interval: str, *, keep_states: bool
) -> None:
    stack, kept = cut_stack, sync_interval == "always"
    tenant = new_tenant(stack)
    await tenant.agent("plain", PLAIN)
    async with hand_of(tenant) as hand:
        failure = watched(server)
        async with running_here(stack):
            announced = (await tenant.turn(PLAIN)).view.agent_turn_id
            asleep = await hand.suspended(calling("search"))
        assert await command(tenant, "acknowledged")
        stored = await last_sequences(stack)
        server.kill()
        lost = failure.cut(keep_states=keep_states)
        assert bool(lost) is not kept, lost
        unheard = await directly(tenant)
        server.start()
        await asyncio.wait_for(stack.conn.connected.wait(), 25)
        found = await last_sequences(stack)
        assert (found == stored) is kept, (found, stored)

        async with running_here(stack):
            # what rows know: a call that is out, a turn that no doorbell told of, an end that was not announced
            call = call_of(asleep)
            await hand.called(call, times=2)
            await hand.report(call)
            ended = [asleep, unheard, (await tenant.turn(PLAIN)).view.agent_turn_id]
            for turn in ended:
                assert (await tenant.ended(turn)).view.status == "success"
            # what they do not know: an event that was announced, and a command that no bridge had taken
            events = dict.fromkeys([announced, *ended] if kept else ended, 1)
            if kept:
                events |= dict.fromkeys([await accepted(tenant, "acknowledged")], 1)
            await until(lambda: has_events(tenant, events), 25, f"these events are stored: {events}")
            # the streams go on, whatever their consumers had seen
            assert await command(tenant, "afterwards")
            assert (await tenant.ended(await accepted(tenant, "afterwards"))).view.status == "success"
            # who repeats what got no answer loses nothing
            again = await command(tenant, "acknowledged")
            assert again is not kept
            assert (await tenant.ended(await accepted(tenant, "acknowledged"))).view.status == "success"
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.skipif(STRACE is None, reason="strace is not installed: it tells what nats-server has synced")
@pytest.mark.parametrize("sync_interval", ["always", "2m"])
async def test_a_power_failure_under_load_takes_nothing_that_was_acknowledged_if_always_is_set(
    server: NatsServer, sync_interval: str
) -> None:
    """Sixteen publishers have a message under way each; some are written, and not yet synced or acknowledged."""
    conn = await connect(server.url, name="test")
    await declare_streams(conn, gone_seconds=0)
    failure, known = watched(server), set[int]()

    async def publish() -> None:
        with suppress(*NATS_TROUBLE):
            while True:
                known.add((await conn.store("cg.v1r4.p.c.cmd.tool.t.s", b"x" * 300, timeout=1)).seq)

    publishers = [asyncio.create_task(publish()) for _ in range(16)]

    async def many() -> bool:
        return len(known) > 500

    await until(many, 25, "500 messages are acknowledged")
    server.kill()
    await asyncio.gather(*publishers)
    await conn.close()  # it would send what it has in its buffer
    lost = failure.cut()
    server.start()
    conn = await connect(server.url, name="test")
    state = (await call_api(conn, f"STREAM.INFO.{CMD_STREAM}", {}))["state"]
    assert isinstance(state, dict)
    log.info("%s: %d acknowledged, %s stored, %s bytes cut", sync_interval, max(known), state["last_seq"], lost)
    if sync_interval == "always":
        assert (state["first_seq"], state.get("num_deleted", 0)) == (1, 0)
        assert max(known) <= int(str(state["last_seq"]))
    else:
        assert lost
        assert state["messages"] == 0
    await conn.close()


async def last_sequences(stack: Stack) -> list[object]:
    """The last message of each stream."""
    found: list[object] = []
    for stream in (CMD_STREAM, EVT_STREAM):
        state = (await call_api(stack.conn, f"STREAM.INFO.{stream}", {}))["state"]
        assert isinstance(state, dict)
        found.append(state["last_seq"])
    return found


async def directly(tenant: Tenant) -> AgentTurnId:
    """A turn that is asked of the ledger."""
    request = EnqueueRequest(agent_id=PLAIN, instruction="hello")
    done = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
    assert done.reply.agent_turn_id is not None
    return done.reply.agent_turn_id


async def command(tenant: Tenant, name: str) -> bool:
    """Store a durable command; False if the stream holds it already."""
    return await tenant.client.command(
        "enqueue", {"agent_id": PLAIN, "instruction": "hello", "correlation_id": name}, name
    )


async def accepted(tenant: Tenant, name: str) -> AgentTurnId:
    """Wait until a bridge has done the durable command; returns its turn."""

    async def found() -> AgentTurnId | None:
        rows = await tenant.rows(
            "SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1 AND correlation_id = $2",
            *(tenant.project, name),
        )
        return rows[0]["agent_turn_id"] if rows else None

    return await until(found, 25, f"the command {name} is done")


async def has_events(tenant: Tenant, wanted: dict[AgentTurnId, int]) -> bool:
    """Whether the stream has these `task` events, and no others."""
    with suppress(*NATS_TROUBLE):
        return await tenant.task_events() == wanted
    return False


def test_a_trace_is_read_for_what_was_synced() -> None:
    lines = [
        '1 pwrite64(9</s/1.blk>, ""..., 100, 0) = 100',
        '1 pwrite64(9</s/1.blk>, ""..., 50, 100 <unfinished ...>',
        "2     fsync(9</s/1.blk> <unfinished ...>",  # padded to five digits
        "1 <... pwrite64 resumed>) = 50",
        '1 pwrite64(9</s/1.blk>, ""..., 30, 150) = 30',
        "2     <... fsync resumed>)              = 0",
        "1 fsync(9</s/1.blk> <unfinished ...>",
        '3 openat(AT_FDCWD</work>, "/s/o.dat.tmp", O_WRONLY|O_CREAT|O_TRUNC|O_SYNC|O_CLOEXEC, 0600) = 4</s/o.dat.tmp>',
        '3 openat(AT_FDCWD</work>, "/s/meta.inf.tmp", O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0600) = 4</s/meta.inf.tmp>',
        "1 +++ killed by SIGKILL +++",
    ]
    trace = read_trace(lines)
    assert trace.synced == {"/s/1.blk": 150}
    assert trace.durable == {"/s/o.dat"}
