"""Limits over the wire: `busy` with the limit's name, nothing written, counted, and a repeat answered (docs/limits.md)."""

from collections.abc import AsyncIterator

import pytest

from schema.base import JsonObject
from tests.conftest import Databases
from tests.support.conditions import until
from tests.support.stack import QUICK, SCRIPTS, Config, Stack, open_stack, running_here
from tests.support.tenants import ALICE, new_tenant
from turnstile.embedded import Endpoints
from turnstile.processes import run_bridge

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
async def tight(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """A bridge that allows little, without a worker: what is enqueued stays live."""
    name = await databases.create(migrated)
    endpoints = servers.model_copy(update={"database_url": databases.url(name)})
    async with (
        open_stack(endpoints, tmp_path_factory.mktemp("tight"), TIGHT, SCRIPTS) as opened,
        running_here(opened, run_bridge),
    ):
        yield opened
    await databases.drop(name)


async def test_each_limit_is_busy_with_its_name(tight: Stack) -> None:
    queue, project, threads, rate = (new_tenant(tight) for _ in range(4))
    heard: list[JsonObject] = []
    for tenant, asked in ((queue, 3), (rate, 5)):
        agent = await tenant.agent("plain")
        heard.append({})
        for number in range(asked):
            payload: JsonObject = {"agent_id": agent, "instruction": "hello", "correlation_id": f"c{number % 4}"}
            verb = "enqueue" if tenant is queue else "describe"
            heard[-1] = await tenant.client.request(verb, payload if verb == "enqueue" else {"agent_turn_id": "t"})
    for agent in await project.agents("plain", 4):
        heard.append(await project.client.request("enqueue", {"agent_id": agent, "instruction": "hello"}))
    heard += [await threads.client.request("send", {"to": "nobody", "payload": "<a/>"}) for _ in range(2)]
    assert [(reply["status"], reply["error_code"]) for reply in (heard[0], heard[1], heard[5], heard[7])] == [
        ("busy", "queue_full"),
        ("busy", "rate_limited"),
        ("busy", "project_full"),
        ("busy", "threads_full"),
    ]
    wait = heard[1]["retry_after_seconds"]
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

    ack = await until(acknowledged, 10, "the command is answered")
    assert (ack["status"], ack["error_code"], ack["request_id"]) == ("busy", "rate_limited", "by-command")
    assert await tenant.count("state.agent_inbox") == before
    assert (await tenant.client.request("stop", {"agent_turn_id": replies[0].agent_turn_id}))["status"] == "accepted"
