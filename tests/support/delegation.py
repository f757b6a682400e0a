"""Agents that delegate, in tests: a chief whose calls a test writes, and what its calls were answered."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import JsonValue

from tests.support.tenants import Ended, Tenant
from tests.support.tools import calling
from turnstile import ToolService
from turnstile.ledger.roster import add_agent, put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, ToolResultContent, content_of
from turnstile.schema.ids import AgentId
from turnstile.schema.tools import PMO_TOOLS, PmoTool

CHIEF = AgentId("chief")
ALL: JsonObject = {"target_profiles": None, "target_tags": []}


def steps(*lines: JsonObject) -> str:
    """The instruction of a `player` that says these lines."""
    return json.dumps({"steps": lines})


def says(text: str, **line: JsonValue) -> str:
    """The instruction of a `player` that answers with this text."""
    return steps({"text": text, **line})


def task(target: str = "worker", instruction: str | None = None, **fields: JsonValue) -> JsonObject:
    """A task for a new agent of a profile; by default it says `done`."""
    return {"target_strategy": "new", "target_ref": target, "instruction": instruction or says("done"), **fields}


def fork(tasks: Sequence[JsonObject], **fields: JsonValue) -> JsonObject:
    """The line of a model that forks."""
    return calling(("fork_join", {"tasks": list(tasks), **fields}))


async def staff(tenant: Tenant, *, policy: JsonObject | None = ALL, tools: Sequence[str] = (), **fields: Any) -> None:
    """A profile `worker` without a policy, and the agent `chief` with every delegating tool and this policy."""
    await tenant.profile("worker", "player", tags=["associate"])
    allowed = [*sorted(PMO_TOOLS - {PmoTool.WAKE_ME}), *tools]
    await tenant.profile("chief", "player", delegation_policy=policy, allowed_tools=allowed, **fields)
    await add_agent(tenant.pool, tenant.project, CHIEF, "chief")


@asynccontextmanager
async def serving(tenant: Tenant, service: ToolService, **fields: Any) -> AsyncGenerator[None]:
    """The service, while its tools may be called by the chief."""
    for definition in service.definitions():
        await put_tool(tenant.pool, tenant.project, definition)
    await staff(tenant, tools=[definition.tool_name for definition in service.definitions()], **fields)
    async with running(tenant, service):
        yield


@asynccontextmanager
async def running(tenant: Tenant, service: ToolService) -> AsyncGenerator[None]:
    """The service alone: its tools and the chief are there."""
    stop, ready = asyncio.Event(), asyncio.Event()
    url = tenant.stack.endpoints.nats_url
    task = asyncio.create_task(service.run(url, stop=stop, ready=ready.set))
    try:
        await asyncio.wait_for(ready.wait(), 25)
        yield
    finally:
        stop.set()
        await task


async def chief_says(tenant: Tenant, *lines: JsonObject, **fields: Any) -> Ended:
    """A turn of the chief to its end."""
    return await tenant.turn(CHIEF, steps(*lines), **fields)


def answers(ended: Ended) -> list[ToolResultContent]:
    """What the turn's calls were answered, in order."""
    found = [content_of(card) for card in ended.cards if card.type == CardType.TOOL_RESULT]
    return [each for each in found if isinstance(each, ToolResultContent)]


def answer(ended: Ended) -> ToolResultContent:
    """What its only call was answered."""
    [only] = answers(ended)
    return only


def result(ended: Ended) -> Any:
    """The result of its only call."""
    return answer(ended).result
