"""A tool in ten lines, end to end: what a function answers is what the turn gets."""

import asyncio
import dataclasses
import threading
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from tests.sdk.tools.stack import Call, Stack, eventually
from turnstile.schema.json_reading import MOST_VALUES
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.inbox import RESULT_LIMIT_BYTES
from turnstile.sdk.tools.service import Terminate, ToolCall, ToolFailed, ToolService


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


@dataclasses.dataclass
class Weather:
    city: City
    celsius: float


async def test_an_async_function_answers_a_call(stack: Stack, target: str) -> None:
    service = ToolService(project_id="demo")

    @service.tool(target=target, suffix="count")
    async def word_count(text: str, unit: Literal["words", "lines"] = "words") -> dict[str, int]:
        """Count the words or lines of a text."""
        return {unit: len(text.split() if unit == "words" else text.splitlines())}

    agent = await stack.register(*service.definitions())
    async with stack.serving(service) as [running]:
        played = await stack.play(agent, Call("word_count", {"text": "one two three"}))
        assert running.counts.succeeded == 1
    assert played.event.status is TurnStatus.SUCCESS
    assert played.result["status"] == "success"
    assert played.result["result"] == {"words": 3}


async def test_a_sync_function_runs_in_a_thread_and_gets_models_and_its_call(stack: Stack, target: str) -> None:
    service = ToolService()
    seen: list[ToolCall] = []

    @service.tool(target=target, suffix="weather")
    def weather(city: City, call: ToolCall, days: Annotated[int, Field(le=7)] = 1) -> Weather:
        """Tell the weather."""
        assert threading.current_thread() is not threading.main_thread()
        seen.append(call)
        return Weather(city, float("nan") if days == 1 else 21.5)

    agent = await stack.register(*service.definitions())
    async with stack.serving(service):
        played = await stack.play(agent, Call("weather", {"city": {"name": "Ulm", "people": 3}, "days": 2}))
    assert played.result["result"] == {"city": {"name": "Ulm", "people": 3}, "celsius": 21.5}
    [call] = seen
    assert (call.agent_id, call.project_id, call.tool_name, call.delivery) == (agent, "demo", "weather", 1)
    assert call.agent_turn_id == played.event.agent_turn_id
    assert call.resume_deadline is not None


async def test_what_a_function_raises_is_a_failed_result_without_a_traceback(stack: Stack, target: str) -> None:
    service = ToolService()

    @service.tool(target=target, suffix="fail")
    async def fail(how: str) -> None:
        """Fail."""
        match how:
            case "own code":
                raise ToolFailed("no_such_city", "there is no such city")
            case "long":
                raise ValueError("x" * 2000)
            case "silent":
                raise KeyError
            case "nul":
                raise ValueError("a\0b\ud800")
            case _:
                raise SystemExit(3)

    agent = await stack.register(*service.definitions())

    async def error(how: str) -> tuple[str, str]:
        told = (await stack.play(agent, Call("fail", {"how": how}))).error
        return told.code, told.message

    async with stack.serving(service):
        assert await error("own code") == ("no_such_city", "there is no such city")
        code, message = await error("long")
        assert (code, len(message)) == ("tool_error", 500)
        assert await error("silent") == ("tool_error", "KeyError")
        assert await error("nul") == ("tool_error", "ab\ufffd")
        assert await error("exit") == ("tool_error", "3")


async def test_arguments_that_do_not_fit_are_told_without_being_quoted(stack: Stack, target: str) -> None:
    service = ToolService()

    @service.tool(target=target, suffix="strict")
    async def strict(city: City) -> str:
        """Never runs."""
        raise AssertionError

    [definition] = service.definitions()
    loose = definition.model_copy(update={"parameters": {"type": "object", "properties": {}}})  # an older row, say
    agent = await stack.register(loose)
    async with stack.serving(service):
        error = (await stack.play(agent, Call("strict", {"city": {"people": -77}, "extra": 1}))).error
    assert error.code == "invalid_arguments"
    assert "city.name: is missing" in error.message
    assert "extra: there is no such field" in error.message
    assert "77" not in error.message


async def test_an_overrun_is_told_at_once_and_keeps_its_place(stack: Stack, target: str) -> None:
    service = ToolService()
    go_on = threading.Event()
    cancelled = asyncio.Event()

    @service.tool(target=target, suffix="hang", timeout_seconds=0.2, concurrency=1)
    def hang() -> None:
        """Hang in a thread."""
        go_on.wait(10)

    @service.tool(target=target, suffix="sleep", timeout_seconds=0.2)
    async def sleep() -> None:
        """Sleep."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    agent = await stack.register(*service.definitions())
    async with stack.serving(service) as [running]:
        played = await stack.play(agent, Call("hang"), Call("sleep"))
        assert [result["error"]["code"] for result in played.results] == ["tool_timeout", "tool_timeout"]
        assert [result["status"] for result in played.results] == ["failed", "failed"]
        assert cancelled.is_set()
        second = asyncio.create_task(stack.play(agent, Call("hang")))
        await asyncio.sleep(0.4)
        assert running.service.counts()["hang"].failed == 1, "the thread of the first call still runs"
        go_on.set()
        assert (await second).result["status"] == "success"


async def test_env_values_reach_the_function_and_nobody_else(
    stack: Stack, target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = ToolService()
    monkeypatch.setenv("WEATHER_KEY", "s3cr3t'key\"1")
    got: list[str] = []

    @service.tool(target=target, suffix="keyed", envs={"api_key": "WEATHER_KEY"})
    async def keyed(city: str, api_key: SecretStr) -> dict[str, str]:
        """Use a key."""
        got.append(api_key.get_secret_value())
        if city == "Ulm":
            raise ValueError(f"401 for {api_key.get_secret_value()} {api_key.get_secret_value()!r}")
        return {"city": city, "url": f"https://x/?key={api_key.get_secret_value()}"}

    @service.tool(target=target, suffix="unset", envs={"api_key": "NO_SUCH_KEY_HERE"})
    async def unset(api_key: str) -> None:
        """Never runs."""
        raise AssertionError

    keyed_tool, unset_tool = service.definitions()
    other = unset_tool.model_copy(
        update={
            "tool_name": "other_env",
            "options": unset_tool.options.model_copy(update={"envs": {"api_key": "WEATHER_KEY"}}),
        }
    )
    agent = await stack.register(keyed_tool, unset_tool, other)
    async with stack.serving(service):
        played = await stack.play(agent, Call("keyed", {"city": "Bonn"}))
        assert played.result["result"] == {"city": "Bonn", "url": "https://x/?key=***"}
        failed = await stack.play(agent, Call("keyed", {"city": "Ulm"}))
        assert failed.error.message.count("***") == 2
        stolen = await stack.play(agent, Call("keyed", {"city": {"$env": "WEATHER_KEY"}}))
        assert stolen.error.code == "invalid_arguments"
        assert (await stack.play(agent, Call("unset"))).error.code == "missing_env"
        # a row that asks for a variable the decorator does not allow: the service does not hand it out
        wrong = (await stack.play(agent, Call("other_env"))).error
        assert wrong.code == "missing_env"
        assert "WEATHER_KEY" in wrong.message
    assert got == ["s3cr3t'key\"1", "s3cr3t'key\"1"]
    assert "s3cr3t" not in caplog.text
    assert "401 for ***" in caplog.text
    async with stack.pool.connection() as conn:
        [row] = await conn.fetch("SELECT count(*) AS n FROM public.cards WHERE content::text LIKE '%s3cr3t%'")
    assert row["n"] == 0


async def test_a_result_that_is_too_large_or_no_json_is_a_failed_one(stack: Stack, target: str) -> None:
    service = ToolService()

    @service.tool(target=target, suffix="big")
    async def big(what: str) -> object:
        """Answer too much."""
        deep: list[object] = []
        for _ in range(200):  # JSON here, and one level too deep in the bridge's request
            deep = [deep]
        return {
            "ascii": "x" * (RESULT_LIMIT_BYTES + 1),
            "object": object(),
            "many": [0] * (MOST_VALUES + 1),
            "values": [[0]] * (MOST_VALUES // 2 - 100),
            "deep": deep,
            "characters": {"a\0b\ud83d": float("nan"), "c": b"\xff\xfe", "d": "\ud83d"},
            "fits": "x" * (RESULT_LIMIT_BYTES - 200),
        }[what]

    agent = await stack.register(*service.definitions())

    async def code(what: str) -> str:
        return (await stack.play(agent, Call("big", {"what": what}))).error.code

    async with stack.serving(service):
        assert await code("ascii") == "result_too_large"
        assert await code("many") == "result_too_large"
        assert await code("object") == "tool_error"
        assert await code("deep") == "tool_error"
        characters = (await stack.play(agent, Call("big", {"what": "characters"}))).result["result"]
        assert characters == {"ab\ufffd": None, "c": "//4=", "d": "\ufffd"}
        for what in ("fits", "values"):
            assert (await stack.play(agent, Call("big", {"what": what}))).result["status"] == "success"


async def test_terminate_ends_the_turn_with_the_result(stack: Stack, target: str) -> None:
    service = ToolService()

    @service.tool(target=target, suffix="order")
    async def order(item: str) -> Terminate[dict[str, str]]:
        """Order something; the turn is over then."""
        return Terminate({"ordered": item})

    agent = await stack.register(*service.definitions())
    async with stack.serving(service):
        played = await stack.play(agent, Call("order", {"item": "tea"}))
    assert played.result["after_execution"] == "terminate"
    assert played.result["result"] == {"ordered": "tea"}
    assert played.event.tool_result_card_id is not None
    assert played.event.stats["steps"] == 1


async def test_at_most_so_many_calls_run_at_once_and_replicas_share_the_rest(stack: Stack, target: str) -> None:
    now: dict[str, int] = {"a": 0, "b": 0}
    most: dict[str, int] = {"a": 0, "b": 0}
    gate = asyncio.Event()

    def replica(name: str) -> ToolService:
        service = ToolService(concurrency=2)

        @service.tool(target=target, suffix="slow", name=f"slow_{target}")
        async def slow(number: int) -> int:
            """Wait at the gate."""
            now[name] += 1
            most[name] = max(most[name], now[name])
            await gate.wait()
            await asyncio.sleep(0.02)
            now[name] -= 1
            return number

        return service

    a, b = replica("a"), replica("b")
    agent = await stack.register(*a.definitions())
    async with stack.serving(a, b) as [first, second]:
        turn = asyncio.create_task(stack.play(agent, *(Call(f"slow_{target}", {"number": n}) for n in range(12))))
        await eventually(lambda: now == {"a": 2, "b": 2})
        await asyncio.sleep(0.1)
        assert now == {"a": 2, "b": 2}
        gate.set()
        played = await turn
        assert sorted(result["result"] for result in played.results) == list(range(12))
        assert most == {"a": 2, "b": 2}
        assert first.counts.succeeded + second.counts.succeeded == 12
        assert min(first.counts.succeeded, second.counts.succeeded) >= 3
