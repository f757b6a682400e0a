"""Limits over the wire: `busy` with the limit's name, nothing written, and a repeat answered (docs/limits.md)."""

from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from pydantic import JsonValue

from tests.support.conditions import until
from tests.support.processes.stack import QUICK, Config, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant
from turnstile.processes.run import run_bridge
from turnstile.schema.base import JsonObject

TIGHT: Config = {
    **QUICK,
    "limits": {
        "requests_per_second": 0.01,
        "request_burst": 4,
        "max_queued_turns": 1,
        "max_live_turns": 3,
        "max_open_threads": 1,
    },
}


@pytest.fixture(scope="module")
async def tight(stacks: Stacks) -> AsyncIterator[Stack]:
    """A bridge that allows little, without a worker: what is enqueued stays live."""
    async with stacks.open(TIGHT) as opened, running_here(opened, run_bridge):
        yield opened


async def last(tenant: Tenant, verb: str, payloads: Sequence[Mapping[str, JsonValue]]) -> JsonObject:
    """The answer to the last of these requests; the others are accepted."""
    *others, reply = [await tenant.client.request(verb, dict(payload)) for payload in payloads]
    assert all(other["status"] == "accepted" for other in others)
    assert reply["status"] == "busy"
    return reply


async def test_a_queue_a_project_and_its_threads_have_an_end(tight: Stack) -> None:
    tenant = new_tenant(tight)
    hello: JsonObject = {"instruction": "hello"}
    one, *_ = await tenant.agents("plain", 4)
    reply = await last(tenant, "enqueue", [{"agent_id": one, **hello} for _ in range(3)])
    assert reply["error_code"] == "queue_full"

    tenant = new_tenant(tight)
    agents = await tenant.agents("plain", 4)
    reply = await last(tenant, "enqueue", [{"agent_id": agent, **hello} for agent in agents])
    assert reply["error_code"] == "project_full"

    reply = await last(new_tenant(tight), "send", [{"to": "nobody", "payload": "<a/>"}] * 2)
    assert reply["error_code"] == "threads_full"


async def test_a_project_asks_so_often(tight: Stack) -> None:
    tenant = new_tenant(tight)
    turn = (await tenant.enqueue(await tenant.agent("plain"))).agent_turn_id
    reply = await last(tenant, "describe", [{"agent_turn_id": turn}] * 4)
    assert reply["error_code"] == "rate_limited"
    wait = reply["retry_after_seconds"]
    assert isinstance(wait, float)
    assert 0 < wait <= 100


async def test_a_repeat_is_answered_over_the_rate_and_a_command_hears_busy(tight: Stack) -> None:
    tenant = new_tenant(tight)
    await tenant.agent("plain")
    payload: JsonObject = {"agent_id": ALICE, "instruction": "hello", "correlation_id": "once"}
    replies = [await tenant.ask(payload) for _ in range(7)]
    assert [(reply.status, reply.duplicate) for reply in replies] == [("accepted", number > 0) for number in range(7)]
    before = await tenant.count("state.agent_inbox")
    assert (await tenant.ask({"agent_id": ALICE, "instruction": "more"})).error_code == "rate_limited"
    assert (await tenant.ask({**payload, "correlation_id": "new"})).error_code == "rate_limited"
    await tenant.client.command("enqueue", {"agent_id": ALICE, "instruction": "more"}, "by-command")

    async def acknowledged() -> JsonObject | None:
        acks = await tenant.events("sys.bridge.enqueue_ack")
        return acks[0].payload if acks else None

    ack = await until(acknowledged, 25, "the command is answered")
    assert (ack["status"], ack["error_code"], ack["request_id"]) == ("busy", "rate_limited", "by-command")
    assert await tenant.count("state.agent_inbox") == before
    assert (await tenant.client.request("stop", {"agent_turn_id": replies[0].agent_turn_id}))["status"] == "accepted"
