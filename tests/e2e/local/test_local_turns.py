"""Turns on a real model, for what no stub can show: its own pace, its slots, its context, its grammar, its death."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from pydantic import JsonValue, TypeAdapter

from tests.support.conditions import until
from tests.support.local import MODEL, asked_server, busy_slots, count_tokens, weights_or_skip
from tests.support.processes.stack import Stack, running_here
from tests.support.tenants import Ended, Tenant, turn_of
from turnstile.activities.models import LitellmModel
from turnstile.local.model_servers import LocalServers
from turnstile.local.weights import SMOLLM2
from turnstile.processes.run import run_both
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.schema.states import TurnStatus
from turnstile.sdk.nats_turns import NatsBackend
from turnstile.sdk.turns import Client
from turnstile.settings import LocalSettings

_ATTEMPTS = TypeAdapter(list[JsonObject])
SLOTS, CONTEXT = 2, 768
SHORT_TOKENS = 4
SHORT: JsonObject = {"model": MODEL, "max_tokens": SHORT_TOKENS, "seed": 7}
STORY = "Tell a very long story about a cat who wanders through all the cities of the world."
LONG_TOKENS = 300
LONG: JsonObject = {"model": MODEL, "max_tokens": LONG_TOKENS, "seed": 7}
_PAGE = "The quick brown fox jumps over the lazy dog. " * 42
"""420 tokens: one fits, two do not."""


@pytest.fixture(scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalServers]:
    """Servers of local models; none runs before it is asked for."""
    await weights_or_skip()
    servers = LocalServers(tmp_path_factory.mktemp("local"), LocalSettings(slots=SLOTS, context_tokens=CONTEXT))
    yield servers
    await servers.close()


@pytest.fixture(scope="module")
async def here(stack: Stack, local: LocalServers) -> AsyncIterator[Stack]:
    """Worker and bridge in this process, composed as `turnstile up` does."""
    await LitellmModel().warm_up()
    async with running_here(stack, partial(run_both, local=local.address)):
        yield stack


async def run(tenant: Tenant, agent: AgentId, text: str, **fields: Any) -> Ended:
    """A turn to its end, however busy the machine is."""
    return await tenant.ended(turn_of(await tenant.enqueue(agent, text, **fields)), timeout=90)


def records(ended: Ended) -> list[JsonObject]:
    """The attempts of all steps."""
    return [each for step in ended.steps for each in _ATTEMPTS.validate_python(step.metadata["attempts"])]


def attempts(ended: Ended) -> list[object]:
    """The error code of each attempt; None for a good one."""
    return [record.get("error_code") for record in records(ended)]


def usage(ended: Ended) -> tuple[int, int]:
    """The tokens of prompt and answer of its only step."""
    [step] = ended.steps
    found = step.metadata["llm_usage"]
    assert isinstance(found, dict)
    prompt, answer = found["prompt_tokens"], found["completion_tokens"]
    assert isinstance(prompt, int)
    assert isinstance(answer, int)
    return prompt, answer


async def test_the_first_turn_starts_the_server(tenant: Tenant, local: LocalServers) -> None:
    """A cold start: two turns at once, one server, and no attempt is lost by it."""
    assert not local.log_of(SMOLLM2.name).exists()
    agents = await tenant.agents("x", 2, llm=SHORT)
    began = time.monotonic()
    for ended in await asyncio.gather(*(run(tenant, agent, "Hello!") for agent in agents)):
        assert (ended.view.status, attempts(ended)) == (TurnStatus.SUCCESS, [None])
    print(f"two answers after {time.monotonic() - began:.1f} s")  # noqa: T201 -- a figure for `pytest -rP`
    assert local.log_of(SMOLLM2.name).read_text().count("loaded in") == 1


async def test_pieces_come_as_the_model_writes_them(tenant: Tenant) -> None:
    agent = await tenant.agent("x", llm={**LONG, "max_tokens": 40})
    turn, pieces, arrived = (
        Client.over(NatsBackend(tenant.stack.conn, tenant.client)).ask(agent, STORY),
        list[str](),
        list[float](),
    )
    async for piece in turn:
        pieces.append(piece)
        arrived.append(time.monotonic())
    ended = await tenant.ended((await turn.result(30)).agent_turn_id)
    assert "".join(pieces) == ended.deliverable()
    [step] = ended.steps
    assert (step.metadata["truncated"], usage(ended)[1]) == ("length", 40)
    # They are not kept until the end.
    assert sum(later - earlier > 0.01 for earlier, later in pairwise(arrived)) >= 3


async def test_a_stop_in_the_middle_frees_the_slot(tenant: Tenant, local: LocalServers) -> None:
    agent = await tenant.agent("x", llm=LONG)
    turn = Client.over(NatsBackend(tenant.stack.conn, tenant.client)).ask(agent, STORY)
    async with aclosing(aiter(turn)) as pieces:
        await anext(pieces)
        assert await busy_slots(local) == 1
        assert await turn.stop()
    await until(lambda: idle(local), 25, "the server stopped writing")
    ended = await tenant.ended((await turn.result(30)).agent_turn_id)
    assert ended.view.status == TurnStatus.CANCELED
    [said] = re.findall(r"n_tokens = (\d+), truncated", local.log_of(SMOLLM2.name).read_text())[-1:]
    assert int(said) < LONG_TOKENS  # it did not write on to the answer's end


async def idle(local: LocalServers) -> bool:
    """Whether no slot of the server writes."""
    return await busy_slots(local) == 0


@pytest.mark.long
async def test_twenty_turns_queue_for_two_slots(tenant: Tenant, local: LocalServers) -> None:
    """Nobody's time runs out, and no attempt is made twice."""
    agents = await tenant.agents("x", 20, llm=SHORT)
    most, done = 0, asyncio.Event()

    async def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, await busy_slots(local))
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    ended = await asyncio.gather(*(run(tenant, agent, "Say something.") for agent in agents))
    done.set()
    await watching
    assert [(each.view.status, attempts(each)) for each in ended] == [(TurnStatus.SUCCESS, [None])] * 20
    assert most == SLOTS


async def test_usage_is_what_the_server_counts(tenant: Tenant, local: LocalServers) -> None:
    agent = await tenant.agent("x", llm=SHORT, system_prompt_template="You are brief.")
    ended = await run(tenant, agent, "What is the capital of France? Ä 日本 🐈")
    asked: list[JsonValue] = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "What is the capital of France? Ä 日本 🐈"},
    ]
    applied = await asked_server(local, "/apply-template", {"messages": asked})
    assert usage(ended) == (await count_tokens(local, applied["prompt"]), SHORT_TOKENS)
    assert [record["usage_kind"] for record in records(ended)] == ["exact"]


@pytest.mark.long
async def test_a_full_context_is_our_code_and_one_cut(tenant: Tenant) -> None:
    bare = await tenant.agent("x", llm=SHORT)
    refused = await run(tenant, bare, _PAGE * 2)
    assert (refused.view.status, refused.view.error_code) == (TurnStatus.FAILED, "context_window_exceeded")
    assert attempts(refused) == ["context_window_exceeded"]
    keeps = await tenant.agent("x", AgentId("keeps"), llm=SHORT, memory={"keep": "conversation", "keep_last_turns": 0})
    assert attempts(await run(tenant, keeps, _PAGE)) == [None]
    cut = await run(tenant, keeps, _PAGE)
    assert cut.view.status == TurnStatus.SUCCESS
    assert [("compaction" in step.metadata) for step in cut.steps] == [True, False]
    assert attempts(cut) == [None]  # the refusal above has taught the worker how much the model takes


@pytest.mark.long
async def test_ten_turns_of_a_conversation_fit(tenant: Tenant) -> None:
    agent = await tenant.agent("x", llm=SHORT, memory={"keep": "conversation"})
    prompts: list[int] = []
    for number in range(10):
        ended = await run(tenant, agent, f"Number {number}!")
        assert (ended.view.status, attempts(ended)) == (TurnStatus.SUCCESS, [None])
        prompts.append(usage(ended)[0])
    assert prompts == sorted(set(prompts))  # each turn is told what was said before


@pytest.mark.long
async def test_result_fields_come_by_a_grammar(tenant: Tenant) -> None:
    """The model calls no tools of its own; bound to a call, it cannot do other than submit a result."""
    llm: JsonObject = {"model": MODEL, "max_tokens": 120, "seed": 1, "params": {"tool_choice": "required"}}
    agent = await tenant.agent("x", llm=llm, system_prompt_template="You are a helpful assistant.")
    ended = await run(
        tenant, agent, "What is the capital of France?", result_fields=[{"name": "city"}, {"name": "country"}]
    )
    assert ended.view.status == TurnStatus.SUCCESS
    data = ended.deliverable()
    assert isinstance(data, dict)
    fields = data["fields"]
    assert isinstance(fields, list)
    assert sorted(str(field["name"]) for field in fields if isinstance(field, dict)) == ["city", "country"]


async def test_a_server_killed_in_the_middle_is_started_again(tenant: Tenant, local: LocalServers) -> None:
    agent = await tenant.agent("x", llm={**LONG, "max_tokens": 40})
    before = local.pid(SMOLLM2.name)
    turn = Client.over(NatsBackend(tenant.stack.conn, tenant.client)).ask(agent, STORY)
    async with aclosing(aiter(turn)) as pieces:
        await anext(pieces)
        os.kill(before, signal.SIGKILL)
    ended = await tenant.ended((await turn.result(90)).agent_turn_id)
    first, *refused, last = attempts(ended)
    assert (ended.view.status, first, last) == (TurnStatus.SUCCESS, "model_stream_broken", None)
    assert set(refused) <= {"model_connection"}  # this stack asks again at once, maybe before the death is known
    assert usage(ended)[1] == 40
    assert local.pid(SMOLLM2.name) != before


async def test_the_servers_log_holds_no_prompt(tenant: Tenant, local: LocalServers) -> None:
    agent = await tenant.agent("x", llm=SHORT)
    ended = await run(tenant, agent, "Keep this: marker-7751")
    answer = ended.deliverable()
    assert isinstance(answer, str)
    logged = local.log_of(SMOLLM2.name).read_text()
    assert "print_timing" in logged
    assert "marker-7751" not in logged
    assert answer not in logged
