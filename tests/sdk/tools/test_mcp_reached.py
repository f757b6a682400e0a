"""How MCP servers are reached: each transport, each revision of the protocol, and tools that need more than a call."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import mcp_types as types
import pytest

from tests.sdk.tools.test_mcp_hostile import rough, tool, unheard
from tests.support.conditions import until
from tests.support.paths import TESTS
from turnstile.embedded.ports import free_port
from turnstile.schema.errors import TurnstileError
from turnstile.sdk.mcp.mcp_connection import McpConnection, connected
from turnstile.sdk.mcp.mcp_results import result_of
from turnstile.sdk.mcp.mcp_server import McpServer
from turnstile.sdk.mcp.question_owners import QuestionOwners

KIND = TESTS / "support" / "mcp" / "kind_server.py"
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
ASK = [revision for revision in REVISIONS if revision >= "2025-06-18"]


@asynccontextmanager
async def listening(script: Path, *given: str) -> AsyncGenerator[str]:
    """The address of a server over HTTP, a program of its own."""
    port = free_port()
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), "--port", str(port), *given), stdout=DEVNULL, stderr=DEVNULL
    )

    async def there() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(there, 30, "the server listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            program.kill()
        await program.wait()


async def two_seats(params: types.ElicitRequestParams) -> types.ElicitResult:
    """A person who wants two seats."""
    assert params.message == "How many seats?"
    return types.ElicitResult(action="accept", content={"seats": 2})


async def booked(connection: McpConnection) -> object:
    """What a call comes to that asks a person."""
    book = (await connection.listing()).tools["book"]
    async with asyncio.timeout(25):
        answer = await connection.call("book", {}, meta={}, ask=two_seats, progress=unheard)
    return result_of(connection.entry, book, answer)["value"]


@pytest.mark.parametrize("protocol", REVISIONS)
async def test_the_revision_that_an_entry_names_is_spoken_and_its_questions_are_asked(protocol: str) -> None:
    entry = McpServer.model_validate({"command": [sys.executable, str(KIND)], "protocol": protocol})
    async with connected("kind", entry, os.environ) as connection:
        assert connection.protocol == protocol
        if protocol in ASK:
            assert await booked(connection) == '{"seats": 2, "window": false}'


async def test_questions_are_asked_over_http_in_every_revision_and_each_by_its_call() -> None:
    async with listening(KIND) as url:
        for protocol in ASK:
            entry = McpServer.model_validate({"url": f"{url}/mcp", "protocol": protocol})
            async with connected("kind", entry, os.environ) as connection:
                assert connection.protocol == protocol
                both = await asyncio.gather(booked(connection), booked(connection))
                assert both == ['{"seats": 2, "window": false}'] * 2


class _Seats:
    """A person who is asked for each call, and answers when told to."""

    def __init__(self, seats: int) -> None:
        self.seats = seats
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert params.message == "How many seats?"
        self.asked.set()
        await self.may_answer.wait()
        return types.ElicitResult(action="accept", content={"seats": self.seats})


async def booking(connection: McpConnection, person: _Seats) -> object:
    """What a call comes to whose person answers in their own time."""
    book = (await connection.listing()).tools["book"]
    answer = await connection.call("book", {}, meta={}, ask=person, progress=unheard)
    value = result_of(connection.entry, book, answer)["value"]
    assert isinstance(value, str)
    return json.loads(value)["seats"]


@pytest.mark.parametrize("transport", ["stdio", "sse"])
async def test_each_question_of_calls_at_once_comes_to_its_own_call(transport: str) -> None:
    """Where a session does not say whose it is: first calls at once, calls beside a long question, and one given up."""
    async with AsyncExitStack() as stack:
        entry = McpServer.model_validate({"command": [sys.executable, str(KIND)], "protocol": "2025-06-18"})
        if transport == "sse":
            url = await stack.enter_async_context(listening(KIND, "--sse"))
            entry = McpServer.model_validate({"url": f"{url}/sse", "transport": "sse"})
        connection = await stack.enter_async_context(connected("kind", entry, os.environ))
        people = [_Seats(number) for number in range(1, 5)]
        for person in people:
            person.may_answer.set()
        async with asyncio.timeout(25):
            assert await asyncio.gather(*(booking(connection, p) for p in people)) == [1, 2, 3, 4]
            slow, next_one = _Seats(7), _Seats(8)
            first = asyncio.create_task(booking(connection, slow))
            await slow.asked.wait()
            second = asyncio.create_task(booking(connection, next_one))
            for _ in range(2):  # of a tool that is not known yet, and then of one that never asks
                added = await connection.call("add", {"a": 1, "b": 2}, meta={}, ask=next_one, progress=unheard)
                assert result_of(connection.entry, (await connection.listing()).tools["add"], added)["value"] == {
                    "result": 3
                }
            assert not next_one.asked.is_set()
            slow.may_answer.set()
            next_one.may_answer.set()
            assert (await first, await second) == (7, 8)
            # a call that runs long beside: its question is not taken for the other's, and waits for its end
            waited = asyncio.create_task(
                connection.call("wait", {"seconds": 0.5}, meta={}, ask=_Seats(0), progress=unheard)
            )
            await connection.call("add", {"a": 1, "b": 2}, meta={}, ask=_Seats(0), progress=unheard)
            assert await booking(connection, people[2]) == 3
            await waited


def gates(count: int) -> tuple[QuestionOwners[int], list[asyncio.Event]]:
    return QuestionOwners[int](), [asyncio.Event() for _ in range(count)]


async def test_a_question_that_may_be_of_several_calls_waits_and_comes_to_none_that_is_another() -> None:
    owners, (one, two) = gates(2)
    began: list[int] = []

    async def call(tool: str, number: int, over: asyncio.Event) -> None:
        async with owners.running(tool, number):
            began.append(number)
            await over.wait()

    async def both_run() -> bool:
        return began == [1, 2]

    async def unnamed() -> bool:
        return not owners.names_calls

    async with asyncio.timeout(25):
        a, b = asyncio.create_task(call("quiet", 1, one)), asyncio.create_task(call("other", 2, two))
        await until(both_run, 25, "both run: nothing says yet that a question would not name its call")
        asks = asyncio.create_task(owners.owner())
        await until(unnamed, 25, "a question came without its call")
        a.cancel()
        await asyncio.gather(a, return_exceptions=True)
        assert await asks is None  # it may have been the one that was given up
        owner = await owners.owner()
        assert owner is not None
        assert owner.asker == 2  # the only one that is left
        two.set()
        await b


@pytest.mark.parametrize("named", [None, "sse"])
async def test_a_server_of_the_older_transport_is_found_out_and_serves_calls(named: str | None) -> None:
    async with listening(KIND, "--sse") as url:
        entry = McpServer.model_validate({"url": f"{url}/sse", "transport": named})
        async with connected("kind", entry, os.environ) as connection:
            assert connection.entry.transport == "sse"
            assert await booked(connection) == '{"seats": 2, "window": false}'
            tools = (await connection.listing()).tools
            answer = await connection.call("add", {"a": 1, "b": 2}, meta={}, ask=two_seats, progress=unheard)
            assert result_of(connection.entry, tools["add"], answer)["value"] == {"result": 3}


async def test_an_answer_of_the_older_transport_is_bounded() -> None:
    async with listening(KIND, "--sse") as url:
        entry = McpServer.model_validate({"url": f"{url}/sse", "transport": "sse", "max_message_bytes": 8192})
        async with connected("kind", entry, os.environ) as connection:
            with pytest.raises(TurnstileError) as failed:
                async with asyncio.timeout(25):
                    await connection.call("echo", {"text": "x" * 9000}, meta={}, ask=two_seats, progress=unheard)
            assert failed.value.code == "mcp_disconnected"
            assert connection.closed.is_set()


@pytest.mark.parametrize("status", [400, 404, 405, 410, 500])
async def test_an_address_that_is_no_server_says_what_it_answered_and_hangs_nobody(status: int) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
        writer.write(f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        entry = McpServer(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
        with pytest.raises(TurnstileError) as failed:
            async with asyncio.timeout(10), connected("web", entry, os.environ):
                pass
    assert failed.value.code == "mcp_unavailable"
    assert (b"GET" in asked) == (status < 500)
    assert ("HTTP+SSE" in str(failed.value)) == (status < 500)


@pytest.mark.parametrize("support", ["required", "optional", "forbidden"])
async def test_a_tool_that_can_only_be_run_as_a_task_is_left_out_with_the_reason(tmp_path: Path, support: str) -> None:
    async with rough(tmp_path, [tool("slow", execution={"taskSupport": support})]) as connection:
        listing = await connection.listing()
    if support == "required":
        assert listing.left_out == {"slow": "it can only be run as a task (2025-11-25), which is not spoken here"}
    else:
        assert set(listing.tools) == {"slow"}


async def test_a_server_that_speaks_another_revision_is_not_used(tmp_path: Path) -> None:
    async with rough(tmp_path, []) as connection:
        assert connection.protocol == "2025-06-18"
        entry = connection.entry.model_copy(update={"protocol": "2025-03-26"})
    with pytest.raises(TurnstileError, match=r"speaks the protocol 2025-06-18, and its entry names 2025-03-26"):
        async with connected("rough", entry, os.environ):
            pass


async def test_a_message_that_a_server_of_the_older_transport_does_not_take_ends_the_connection() -> None:
    events: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: endpoint\ndata: /post\n\n")
            events.append(writer)
            return
        size = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0)
        message = json.loads(await reader.readexactly(size))
        if message["method"] == "initialize":
            told = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "old", "version": "1"}}
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": told})
            events[0].write(f"event: message\ndata: {line}\n\n".encode())
        status = "500 No" if message["method"].startswith("tools/") else "202 Accepted"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/sse"
        entry = McpServer.model_validate({"url": url, "transport": "sse", "connect_seconds": 5})
        async with connected("old", entry, os.environ) as connection:
            calling = asyncio.create_task(
                connection.call("add", {}, meta={}, ask=two_seats, progress=unheard), name="calling"
            )
            async with asyncio.timeout(25):
                await connection.closed.wait()
        with pytest.raises(TurnstileError) as failed:
            async with asyncio.timeout(25):
                await calling
        assert failed.value.code == "mcp_disconnected"
        events[0].close()
