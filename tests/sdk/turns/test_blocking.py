"""Agents asked from a program without an event loop, over NATS and over HTTP."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from tests.sdk.turns.conftest import Way
from tests.sdk.turns.test_turns import NEVER, SLOW, STREAMED, WORDS
from tests.support.tenants import ALICE
from turnstile import BadRequest, Refused, SyncClient
from turnstile.schema.ids import uuid7
from turnstile.schema.states import ChunkType, TurnStatus

Result = TypeVar("Result")
INTERRUPTED = """
import sys, turnstile
with turnstile.SyncClient(sys.argv[1], project=sys.argv[2] or None) as client:
    turn = client.ask("alice", sys.argv[3])
    print(turn.start(), flush=True)
    turn.result()
"""


async def in_thread(way: Way, work: Callable[[SyncClient], Result]) -> Result:
    """What `work` returns, in a thread without an event loop."""

    def run() -> Result:
        with way.sync_client() as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_a_turn_is_streamed_and_has_its_result(way: Way) -> None:
    def work(client: SyncClient) -> None:
        with pytest.raises(Refused) as refused:
            client.ask(ALICE, STREAMED, budget={"max_turns": 0}).start()
        assert refused.value.code == "budget_exceeded"
        with pytest.raises(BadRequest, match="max_tokens"):
            client.ask(ALICE, STREAMED, budget={"max_tokens": -1})
        turn = client.ask(ALICE, STREAMED, budget={"max_seconds": 3600})
        assert "".join(turn) == WORDS
        result = turn.result(10)
        assert (result.value, result.agent_turn_id) == (WORDS, turn.start())
        found = client.turn(turn.start())
        assert found.result(10) == result
        assert (found.reply, turn.reply and turn.reply.duplicate) == (None, False)
        assert found.describe().status == "success"
        assert [each.agent_turn_id for each in turn.tree()] == [turn.start()]
        again = turn.rerun(1, budget={"max_turns": 2})
        assert (again.result(10).value, again.describe().rerun_of) == (WORDS, turn.start())
        with client.ask(ALICE, STREAMED).chunks() as chunks:
            assert [chunk.chunk_type for chunk in chunks][-1] is ChunkType.END

    await in_thread(way, work)


async def test_a_turn_is_left_awaited_and_stopped(way: Way) -> None:
    def work(client: SyncClient) -> None:
        turn = client.ask(ALICE, SLOW)
        for _ in turn:
            break
        with pytest.raises(TimeoutError):
            turn.result(0.2)
        assert turn.steer("one more thing").steer_status == "waiting"
        assert turn.stop("enough", cascade="all")
        assert turn.result(10).status is TurnStatus.CANCELED
        assert not turn.stop()

    await in_thread(way, work)


async def test_a_conversation_goes_on(way: Way) -> None:
    def work(client: SyncClient) -> None:
        talk = client.conversation(f"c-{uuid7()}", profile_name="chatty")
        assert talk.ask("one").result(10).value == "You said: one (before that: nothing)"
        assert "".join(talk.ask("two")) == "You said: two (before that: one)"

    await in_thread(way, work)


async def test_threads_share_a_client(way: Way) -> None:
    def work(client: SyncClient) -> None:
        def text(instruction: str) -> str:
            return "".join(client.ask(ALICE, instruction))

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(text, [STREAMED] * 4)) == [WORDS] * 4

    await in_thread(way, work)


async def test_errors_are_those_of_the_client(way: Way) -> None:
    def work(client: SyncClient) -> None:
        with pytest.raises(Refused) as refused:
            client.ask("nobody", "hi").start()
        assert refused.value.code == "unknown_agent"
        with pytest.raises(BadRequest):
            client.ask("al ice", "hi")

    await in_thread(way, work)
    with pytest.raises(BadRequest, match="inside `with`"):
        way.sync_client().ask(ALICE, "hi")


async def test_after_the_client_its_turns_say_that_it_is_closed(way: Way) -> None:
    def work() -> None:
        with way.sync_client() as client:
            turn = client.ask(ALICE, SLOW)
            pieces = iter(turn)
            next(pieces)
        pieces.close()
        with pytest.raises(BadRequest, match="inside `with`"):
            turn.result()

    await asyncio.to_thread(work)
    assert not [each.name for each in threading.enumerate() if each.name == "turnstile client"]


async def test_ctrl_c_leaves_a_wait_at_once(way: Way) -> None:
    command = [sys.executable, "-c", INTERRUPTED, way.address, way.project or "", NEVER]
    environment = {"TURNSTILE_TOKEN": way.token or ""}
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    assert process.stdout is not None
    turn = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(25):
        _, errors = await process.communicate()
    assert process.returncode == -signal.SIGINT
    assert errors.decode().rstrip().endswith("KeyboardInterrupt")
    async with way.client() as client:
        assert await (await client.turn(turn)).stop()
