"""Functions of a program that the model of its turn calls, and the program runs, over NATS and over HTTP (§19)."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tests.sdk.turns.conftest import Way
from tests.sdk.turns.test_blocking import in_thread
from tests.sdk.turns.test_turns import code_of, text_of
from tests.support.conditions import until
from tests.support.gateway import token_of
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import call_of, calling
from turnstile import BadRequest, Client, ConfigError, SyncClient, ToolCall, ToolFailed
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.schema.people.interrupts import InterruptStatus


class Place(BaseModel):
    """Where something is."""

    city: str
    rank: int = 1


def script(*lines: JsonObject) -> str:
    """An instruction that the agent's model plays."""
    return json.dumps({"steps": lines})


async def weather(city: str, *, days: int = 1) -> JsonObject:
    """The weather of a city.

    city: The name of the city.
    """
    return {"city": city, "days": days}


async def results_of(tenant: Tenant, turn: AgentTurnId) -> list[Any]:
    """Of each call its result, or the code and message of its error, in the order of the calls."""
    ended = await tenant.ended(turn)
    contents: dict[Any, Any] = {c.tool_call_id: c.content for c in ended.cards if c.type == CardType.TOOL_RESULT}
    calls = [call_of(turn, index, step) for step in (1, 2) for index in range(8)]
    found = [contents[call] for call in calls if call in contents]
    return [c["result"] if c["error"] is None else (c["error"]["code"], c["error"]["message"]) for c in found]


async def test_functions_run_where_they_belong_and_what_they_raise_is_a_failure(client: Client, tenant: Tenant) -> None:
    threads = set[str]()
    at_once = threading.Barrier(2, timeout=25)

    def place(where: Place) -> Place:
        """Where it is."""
        threads.add(threading.current_thread().name)
        at_once.wait()  # two sync functions at once, and neither holds the loop
        return Place(city=where.city, rank=where.rank + 1)

    def wrong(text: str = "") -> str:
        """It raises."""
        raise ValueError(text or "x" * 10_000)

    async def refuses() -> None:
        """It says which code."""
        raise ToolFailed("no_such_city", "there is none")

    linz: JsonObject = {"city": "Linz", "rank": 3}
    wien: JsonObject = {"city": "Wien"}
    lines: list[JsonObject] = [
        calling(("weather", {"city": "Graz"}), ("place", {"where": wien}), ("place", {"where": linz})),
        calling(("wrong", {}), ("wrong", {"text": "No."}), ("refuses", {}), ("weather", {"town": "Graz"})),
        {"text": "Good."},
    ]
    turn = client.ask(ALICE, script(*lines), tools=[weather, place, wrong, refuses])
    assert (await text_of(turn)).endswith("Good.")
    result = await turn.result(25)
    assert (result.value, threads) == ("Good.", {"turnstile-tool"})
    found = await results_of(tenant, result.agent_turn_id)
    assert [f["value"] for f in found[:3]] == [
        {"city": "Graz", "days": 1},
        {"city": "Wien", "rank": 2},
        {"city": "Linz", "rank": 4},
    ]
    failures = [
        ("client_tool_failed", "x" * 499 + "…"),
        ("client_tool_failed", "No."),
        ("client_tool_failed", "there is none"),
    ]
    assert found[3:6] == failures
    assert found[6][0] == "invalid_arguments"


async def test_a_program_without_a_loop_has_functions_and_a_typed_answer(way: Way) -> None:
    def weather_there(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    lines = calling(("weather_there", {"city": "Graz"})), calling(("submit_result", {"value": {"city": "Graz"}}))

    kind: Any = Place

    def work(client: SyncClient) -> Any:
        return client.ask(ALICE, script(*lines), tools=[weather_there], output=kind).result(25).value

    assert await in_thread(way, work) == Place(city="Graz")


async def test_a_call_that_its_program_left_is_open_and_the_same_request_answers_it(way: Way, tenant: Tenant) -> None:
    name, ran = uuid7(), list[str]()

    async def never(city: str) -> str:
        """Look."""
        ran.append(city)
        await asyncio.Event().wait()
        return ""

    async def sunny(city: str) -> str:
        """Look."""
        ran.append(city)
        return "sunny"

    said = script(calling(("look", {"city": "Graz"})), {"text": "Good."})
    never.__name__ = sunny.__name__ = "look"
    async with way.client() as client:
        turn = client.ask(ALICE, said, tools=[never], correlation_id=name)
        with pytest.raises(TimeoutError):
            await turn.result(3)
        named = await turn.start()
    assert ran == ["Graz"]

    opened = await tenant.pool.run(
        lambda conn: list_interrupts(
            conn, tenant.project, turn=named, status=InterruptStatus.OPEN, reason="any", row_limit=9
        )
    )
    assert [interrupt.tool_name for interrupt in opened] == ["look"]
    async with way.client() as client:
        again = client.ask(ALICE, said, tools=[sunny], correlation_id=name)
        assert (await again.result(25)).value == "Good."
        assert (await again.start(), again.reply and again.reply.duplicate) == (named, True)
    assert ran == ["Graz", "Graz"]
    [result] = await results_of(tenant, named)
    assert result["value"] == "sunny"


async def test_a_function_ends_with_its_turn_or_its_deadline(client: Client, tenant: Tenant) -> None:
    began, ended = asyncio.Event(), list[str]()

    async def slow(name: str) -> str:
        """It does not end by itself."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(name)
            raise
        return ""

    late = client.ask(
        ALICE, script(calling(("slow", {"name": "late"})), {"text": "Late."}), tools=[slow], client_tool_seconds=1
    )
    result = await late.result(25)
    assert (result.value, ended) == ("Late.", ["late"])
    assert [code for code, _ in await results_of(tenant, result.agent_turn_id)] == ["tool_timeout"]
    began.clear()
    stopped = client.ask(ALICE, script(calling(("slow", {"name": "stopped"})), {"text": "No."}), tools=[slow])
    waiting = asyncio.ensure_future(stopped.result(25))
    await asyncio.wait_for(began.wait(), 25)
    await stopped.stop()
    assert (await waiting).status == "canceled"

    async def over() -> bool:
        return ended == ["late", "stopped"]

    await until(over, 25, "the function is cancelled")


async def test_what_cannot_be_a_function_is_refused_before_anything_is_sent(client: Client) -> None:
    def untyped(x) -> None:  # type: ignore[no-untyped-def]
        """It has no hint."""

    async def called(call: ToolCall) -> None:
        """It takes what a service gets."""

    refused: list[tuple[list[Callable[..., Any]], type[Exception], str]] = [
        ([untyped], ConfigError, "no type hint"),
        ([lambda: None], ConfigError, "tool"),
        ([called], BadRequest, "ToolCall"),
        ([weather, weather], BadRequest, "called weather"),
    ]
    for tools, kind, words in refused:
        with pytest.raises(kind, match=words):
            client.ask(ALICE, "x", tools=tools)


async def test_another_who_repeats_the_request_cannot_answer_and_hears_it(
    gateway_url: str, token: str, tenant: Tenant
) -> None:
    async def sunny(city: str) -> str:
        """It is always sunny."""
        return "sunny"

    said, name = script(calling(("sunny", {"city": "Graz"})), {"text": "Good."}), uuid7()
    other = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)
    async with Client(gateway_url, token=token) as client, Client(gateway_url, token=other) as stranger:
        turn = client.ask(ALICE, said, tools=[sunny], correlation_id=name)
        await turn.start()
        assert await code_of(stranger.ask(ALICE, said, tools=[sunny], correlation_id=name).result(25)) == "not_yours"
        assert (await turn.result(25)).value == "Good."
