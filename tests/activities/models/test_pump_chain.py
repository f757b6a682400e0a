"""Two agents of a conversation on a provider's stub: their choices are the provider's own tool calls (protocol §9)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import COMPLETION_TOKENS, PROMPT_TOKENS, Call, Fault, Said
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import QUICK, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.pump.pump import ORGANISM, Caller, assert_threads, calling_in, pump_config
from tests.support.pump.troupe import TROUPE, Brief, Note, hire
from turnstile.schema.base import JsonObject
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import SystemErrorMessage

ASKED = Brief(play="Is it so?")
QUESTION = Note(play="Is it?")
TOO_EARLY = Said(calls=(Call("respond", ('{"said": "ye',)),))
SENT = Said(text=("I ask bob.",), calls=(Call("send_bob", ('{"pla', 'y": "Is it?"}')),))
VERDICT = Said(calls=(Call("respond", ('{"said": "yes", ', '"score": 3}')),))
THOUGHT = Said(calls=(Call("think", ('{"reasoning": "So it is."}',)),))
ANSWER = Said(calls=(Call("respond", ('{"text": "It is so."}',)),))


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[OpenAIStub]:
    """One stub for both agents, which never speak at once."""
    async with OpenAIStub(Said(text=("x",))) as running:
        yield running


@pytest.fixture(scope="module")
async def here(stacks: Stacks, stub: OpenAIStub, key_file: Path) -> AsyncIterator[Stack]:
    """A stack whose models of OpenAI are the stub's, running here."""
    own = {"api_key_files.openai": str(key_file), "api_bases.openai": stub.api_base, "timeout_seconds": 10.0}
    config = pump_config({**QUICK, "model": {**QUICK["model"], **own}}, listeners=[ORGANISM, TROUPE])
    async with stacks.open(config) as opened, running_here(opened):
        yield opened


@pytest.fixture
async def caller(here: Stack, stub: OpenAIStub) -> AsyncIterator[Caller]:
    """A client whose agents ask the stub."""
    stub.bodies.clear()
    stub.refusals.clear()
    async with calling_in(here) as caller:
        await hire(caller.tenant, "alice", "bob", llm={"model": stub.model}, system_prompt_template="You answer.")
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)
            await assert_invariants(conn)


def said(body: JsonObject) -> list[Any]:
    """The messages of a request without the system's: calls by name, texts, and results."""
    shown: list[Any] = []
    for message in cast("list[Any]", body["messages"])[1:]:
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in _calls(message)]
        shown.append(calls or message["content"])
    return shown


def _calls(message: Any) -> list[Any]:
    return message.get("tool_calls") or []


def tools(body: JsonObject) -> list[str]:
    """The names of the offered tools."""
    return [tool["function"]["name"] for tool in cast("list[Any]", body["tools"])]


def told(sender: str, payload: Payload | str) -> str:
    """A message as the model hears it."""
    return f"Message from {sender}:\n{payload if isinstance(payload, str) else payload.to_xml().decode()}"


ACCEPTED = '{"status":"success","result":{"accepted":true}}'


async def test_choices_go_to_the_provider_and_come_back_as_its_tool_calls(caller: Caller, stub: OpenAIStub) -> None:
    stub.replies = list[Said | Fault]((SENT, TOO_EARLY, VERDICT, THOUGHT, ANSWER))
    heard = await caller.ask("alice", ASKED)
    assert heard.payload == "<text><text>It is so.</text></text>"
    assert stub.refusals == []
    asks, errs, answers, thinks, ends = stub.bodies
    assert tools(asks)[-3:] == ["respond", "think", "submit_result"]
    assert {"send_bob", "send_clerk"} <= set(tools(asks))
    assert "send_bob" not in tools(errs)
    assert said(asks) == [told("external:client", ASKED)]
    assert said(errs) == [told("alice", QUESTION)]
    [_, wrong, refusal] = said(answers)
    assert wrong == [("respond", {"malformed_arguments": '{"said": "ye'})]
    assert "not a JSON object" in refusal
    assert said(thinks) == [
        *(told("external:client", ASKED), [("send_bob", {"play": "Is it?"})], ACCEPTED),
        told("bob", "<verdict><said>yes</said><score>3</score></verdict>"),
    ]
    assert said(ends)[len(said(thinks)) :] == [
        *([("think", {"reasoning": "So it is."})], ACCEPTED),
        told("alice", "<thought><reasoning>So it is.</reasoning></thought>"),
    ]
    rows = await caller.tenant.rows(
        "SELECT metadata #>> '{llm_usage,total_tokens}' AS tokens, (metadata ->> 'llm_response_cost')::float8 AS cost"
        " FROM state.agent_steps WHERE project_id = $1",
        caller.tenant.project,
    )
    assert [int(row["tokens"]) for row in rows] == [PROMPT_TOKENS + COMPLETION_TOKENS] * 5
    assert all(row["cost"] > 0 for row in rows)


async def test_a_peers_provider_that_refuses_is_a_timeout_for_the_agent_that_asked(
    caller: Caller, stub: OpenAIStub
) -> None:
    stub.replies = [SENT, Fault(401, "no such key"), ANSWER]
    assert (await caller.ask("alice", ASKED)).payload == "<text><text>It is so.</text></text>"
    assert said(stub.bodies[-1])[-1] == told("bob", SystemErrorMessage.timeout())
    assert stub.refusals == []
