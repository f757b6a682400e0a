"""`MessageThread` on a real engine, with activities that answer what a test wants, when it wants."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle

from tests.support.conditions import until
from turnstile.embedded import Endpoints
from turnstile.schema.ids import ChannelId, ProjectId, uuid7
from turnstile.schema.pump.threads import (
    AdvanceInput,
    MessageId,
    MessageStatus,
    OpenMessage,
    ThreadAdvanced,
    ThreadEnded,
    ThreadInput,
    ThreadRef,
    new_thread_id,
    thread_workflow_id,
)
from turnstile.temporal.converters import PAYLOAD_LIMIT_BYTES
from turnstile.temporal.plugin import turn_workers, turnstile_plugin
from turnstile.workflows import options
from turnstile.workflows.message_thread import MessageThread

NOBODY: list[MessageId] = []
M1, M2, M3 = (MessageId(f"m{number}") for number in (1, 2, 3))
Handle = WorkflowHandle[MessageThread, ThreadEnded]


def now_open(version: int, *names: MessageId, canceled: tuple[MessageId, ...] = (), **fields: object) -> ThreadAdvanced:
    """An answer in which these messages are open."""
    known = {"status": MessageStatus.PENDING, "listener": "a", **fields}
    lines = tuple(OpenMessage.model_validate({"message_id": name, **known}) for name in names)
    return ThreadAdvanced(version=version, open=lines, open_count=len(lines), canceled=canceled)


@dataclass
class Stage:
    """The activities of one thread: what they answer, and what was asked of them."""

    client: Client
    target: str
    look: Callable[[int], Awaitable[ThreadAdvanced]]
    advance: Callable[[MessageId, int], Awaitable[ThreadAdvanced]]
    looks: int = 0
    advanced: Counter[MessageId] = field(default_factory=Counter[MessageId])
    at: dict[MessageId, list[float]] = field(default_factory=lambda: defaultdict[MessageId, list[float]](list))
    canceled: list[MessageId] = field(default_factory=list[MessageId])

    @activity.defn(name="look_at_thread")
    async def look_at_thread(self, thread: ThreadRef) -> ThreadAdvanced:
        """Look."""
        self.looks += 1
        return await self.look(self.looks)

    @activity.defn(name="advance_message")
    async def advance_message(self, given: AdvanceInput) -> ThreadAdvanced:
        """Advance; with a sign of life, by which it hears that it is let go."""
        name = given.message_id
        self.advanced[name] += 1
        self.at[name].append(asyncio.get_running_loop().time())
        working = asyncio.ensure_future(self.advance(name, self.advanced[name]))
        try:
            while not working.done():
                activity.heartbeat()
                await asyncio.wait([working], timeout=0.1)
        except asyncio.CancelledError:
            working.cancel()
            self.canceled.append(name)
            raise
        return await working

    async def start(self, *names: MessageId) -> Handle:
        """The workflow, woken for these messages."""
        thread = ThreadInput(
            project_id=ProjectId("p"),
            channel_id=ChannelId("public"),
            thread_id=new_thread_id(),
            worker_target=self.target,
            heartbeat_timeout_seconds=5,
        )
        return await self.client.start_workflow(
            MessageThread.run,
            thread,
            id=thread_workflow_id(thread.thread_id),
            task_queue=options.task_queue(self.target),
            start_signal="wake",
            start_signal_args=[list(names)],
        )

    async def until(self, done: Callable[[], bool]) -> None:
        """Returns when it is so."""

        async def is_done() -> bool:
            return done()

        await until(is_done, 25, "the stage is set")


async def nothing(*_: object) -> ThreadAdvanced:
    """The answer of an empty thread."""
    return now_open(0)


@pytest.fixture(scope="module")
async def client(servers: Endpoints) -> Client:
    """A client as programs have it."""
    address, namespace = servers.temporal_address, servers.temporal_namespace
    return await Client.connect(address, namespace=namespace, plugins=[turnstile_plugin()])


@pytest.fixture
async def stage(client: Client) -> AsyncIterator[Stage]:
    """A stage with a worker of its own."""
    made = Stage(client, f"w-{uuid7()}", nothing, nothing)
    activities = [made.look_at_thread, made.advance_message]
    [worker] = turn_workers(client, [made.target], max_concurrency=10, activities=activities)
    async with worker:
        yield made


async def ended(handle: Handle) -> int:
    """The version with which it ended."""
    return (await asyncio.wait_for(handle.result(), 25)).version


async def test_it_ends_when_nothing_is_open(stage: Stage) -> None:
    assert await ended(await stage.start()) == 0
    assert not stage.advanced


async def test_a_wake_that_comes_while_it_closes_is_heard(stage: Stage) -> None:
    """The engine does not let a workflow close over a signal that it has not seen."""
    gate = asyncio.Event()

    async def look(_: int) -> ThreadAdvanced:
        await gate.wait()
        return now_open(1)

    async def advance(*_: object) -> ThreadAdvanced:
        return now_open(3)

    stage.look, stage.advance = look, advance
    handle = await stage.start()
    await stage.until(lambda: stage.looks > 0)
    await handle.signal(MessageThread.wake, [M1])
    gate.set()
    assert await ended(handle) == 3
    assert stage.advanced == {M1: 1}


async def test_a_wake_after_its_end_starts_it_again(stage: Stage) -> None:
    handle = await stage.start()
    await ended(handle)
    again = await stage.client.start_workflow(
        MessageThread.run,
        ThreadInput.model_validate(
            {"project_id": "p", "channel_id": "c", "thread_id": handle.id[7:], "worker_target": stage.target}
        ),
        id=handle.id,
        task_queue=options.task_queue(stage.target),
        id_reuse_policy=options.THREAD_ID_REUSE,
        id_conflict_policy=options.TURN_ID_CONFLICT,
        start_signal="wake",
        start_signal_args=[[M1]],
    )
    await ended(again)
    assert stage.advanced == {M1: 1}


async def test_a_long_history_is_left_with_its_signals_and_nothing_is_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is woken while another one is handled and the history is long: the next run sees to it."""
    is_long, gate = [True], asyncio.Event()

    def long_now(_: MessageThread) -> bool:
        return is_long[0]

    monkeypatch.setattr(MessageThread, "_is_long", long_now)
    left = {M1, M2}

    async def look(_: int) -> ThreadAdvanced:
        return now_open(5, *sorted(left))

    async def advance(name: MessageId, _: int) -> ThreadAdvanced:
        await gate.wait()
        left.discard(name)
        return now_open(6, *sorted(left - {M2})) if name == M1 else now_open(9)  # which does not know of M2 yet

    stage.look, stage.advance = look, advance
    is_long[0] = False
    left.discard(M2)
    handle = await stage.start(M1)
    await stage.until(lambda: stage.advanced[M1] == 1)
    is_long[0] = True
    left.add(M2)
    await handle.signal(MessageThread.wake, [M2])
    looks = stage.looks
    await handle.signal(MessageThread.wake, NOBODY)
    await stage.until(lambda: stage.looks > looks)
    assert stage.advanced == {M1: 1}
    gate.set()

    async def continued() -> bool:
        is_long[0] = (await handle.describe()).run_id == handle.first_execution_run_id
        return not is_long[0]

    await until(continued, 25, "it goes on in a new history", pause=0.01)
    assert await ended(handle) == 9
    assert stage.advanced == {M1: 1, M2: 1}


async def test_what_comes_while_a_long_history_is_left_is_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal arrives in the very task that would continue as new."""
    gate = asyncio.Event()

    def long_at_first(_: MessageThread) -> bool:
        return stage.looks < 3

    monkeypatch.setattr(MessageThread, "_is_long", long_at_first)

    async def look(number: int) -> ThreadAdvanced:
        if number == 1:
            await gate.wait()
        return now_open(number, M1, status=MessageStatus.WAITING)

    async def advance(name: MessageId, _: int) -> ThreadAdvanced:
        return now_open(9, M1, status=MessageStatus.WAITING) if name == M2 else now_open(10)

    stage.look, stage.advance = look, advance
    handle = await stage.start()
    await stage.until(lambda: stage.looks == 1)
    await handle.signal(MessageThread.wake, [M2])
    gate.set()
    await stage.until(lambda: stage.looks >= 3)
    await handle.signal(MessageThread.wake, [M1])
    await ended(handle)
    assert stage.advanced[M1] == 1  # M2 was put back, and the look of the next run did not show it


async def test_a_handler_whose_message_was_canceled_is_let_go(stage: Stage) -> None:
    async def look(_: int) -> ThreadAdvanced:
        return now_open(1, M1, M2)

    async def advance(name: MessageId, _: int) -> ThreadAdvanced:
        if name == M1:
            await asyncio.sleep(60)
        await stage.until(lambda: stage.advanced[M1] == 1)
        return now_open(2, canceled=(M1,))

    stage.look, stage.advance = look, advance
    assert await ended(await stage.start()) == 2
    await stage.until(lambda: stage.canceled == [M1])
    assert stage.advanced == {M1: 1, M2: 1}


async def test_a_message_that_is_let_go_before_it_began_is_not_waited_for(stage: Stage) -> None:
    """Two answers come at once: one starts a message, the other lets it go."""
    answered: list[MessageId] = []

    async def look(number: int) -> ThreadAdvanced:
        if number > 1:
            await stage.until(lambda: len(answered) == 2)
            await asyncio.sleep(0.3)  # until the engine has both answers, which follow this look together
        return now_open(1, M1, M2)

    async def advance(name: MessageId, _: int) -> ThreadAdvanced:
        await stage.until(lambda: stage.looks == 2)
        if name == M2:
            await stage.until(lambda: answered == [M1])
            await asyncio.sleep(0.2)
        answered.append(name)
        return now_open(2, M2, M3) if name == M1 else now_open(3, canceled=(M3,))

    stage.look, stage.advance = look, advance
    handle = await stage.start()
    await stage.until(lambda: stage.advanced == {M1: 1, M2: 1})
    await handle.signal(MessageThread.wake, NOBODY)
    assert await ended(handle) == 3
    assert stage.advanced == {M1: 1, M2: 1}


async def test_what_cannot_be_repeated_fails_the_workflow_once_nothing_runs(stage: Stage) -> None:
    """A bug: the safety net starts the workflow again, and no handler is cut off."""
    finished: list[MessageId] = []

    async def look(_: int) -> ThreadAdvanced:
        return now_open(1, M1, M2)

    async def advance(name: MessageId, _: int) -> ThreadAdvanced:
        if name == M1:
            return ThreadAdvanced(version=2, chains=("x" * PAYLOAD_LIMIT_BYTES,))  # which cannot be sent
        await asyncio.sleep(0.5)
        finished.append(name)
        return now_open(2, M1, M3)

    stage.look, stage.advance = look, advance
    handle = await stage.start()
    with pytest.raises(WorkflowFailureError):
        await ended(handle)
    assert (await handle.describe()).status == WorkflowExecutionStatus.FAILED
    assert finished == [M2]
    assert stage.canceled == []
    assert stage.advanced == {M1: 1, M2: 1}


async def test_a_late_turn_is_looked_for_however_much_else_happens(stage: Stage) -> None:
    late = datetime.now(UTC) + timedelta(seconds=0.5)
    over = asyncio.Event()
    waiting = now_open(2, M1, status=MessageStatus.WAITING, deadline=late)

    async def look(_: int) -> ThreadAdvanced:
        return waiting

    async def advance(name: MessageId, _: int) -> ThreadAdvanced:
        if name == M1:
            over.set()
            return now_open(3)
        return waiting

    stage.look, stage.advance = look, advance
    handle = await stage.start()
    async with asyncio.timeout(25):
        while not over.is_set():
            await handle.signal(MessageThread.wake, [M2])
            await asyncio.sleep(0.05)
    await ended(handle)
    assert stage.advanced[M2] > 0


async def test_the_ledgers_clock_says_whether_a_turn_is_late(stage: Stage) -> None:
    """It is behind: the workflow asks again, and not all the time."""
    late = datetime.now(UTC) - timedelta(seconds=1)
    waiting = now_open(1, M1, status=MessageStatus.WAITING, deadline=late)

    async def look(_: int) -> ThreadAdvanced:
        return waiting

    async def advance(_: MessageId, number: int) -> ThreadAdvanced:
        return waiting if number < 5 else now_open(2)

    stage.look, stage.advance = look, advance
    await ended(await stage.start())
    assert stage.advanced == {M1: 5}
    pauses = [after - before for before, after in pairwise(stage.at[M1])]
    assert min(pauses) > 0.15
    assert pauses[-1] > 0.7, "it asks ever more seldom"
