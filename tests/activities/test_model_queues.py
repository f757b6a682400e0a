"""Workers share the queues of models (protocol §7.9): on a real ledger and NATS, each worker with a pool of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest

from tests.activities.models.asking import question as alone
from tests.activities.test_fallbacks import PATIENT, answering, failing
from tests.support.conditions import until
from turnstile.activities.models import ScriptedModel, ScriptLine
from turnstile.activities.prompt.model_queues import ModelQueues, Pass
from turnstile.embedded import Endpoints
from turnstile.ledger.budgets.model_queues import LoadedQueue, list_model_queues, load_model_queues
from turnstile.ledger.pool import Pool
from turnstile.runtime.ports import ModelRequest
from turnstile.runtime.telemetry import Metric, Telemetry
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import ProjectId, uuid7
from turnstile.schema.model_rates import ModelRate
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.signals import SubjectSignals

MODEL = "openai/gpt-4o"
A, B = ProjectId("a"), ProjectId("b")


class Deaf:
    """Signals that are all lost."""

    async def send(self, payload: bytes) -> None:
        """Lose it."""

    async def hear(self, take: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Hear nothing."""


@dataclass
class Workers:
    """Makes workers that share a ledger, and signals that no other test hears."""

    open_pool: Callable[..., Pool]
    conn: NatsConnection
    stack: AsyncExitStack
    subject: str = field(default_factory=lambda: f"test.{uuid7()}")

    async def begin(
        self, *, deaf: bool = False, rates: dict[str, ModelRate] | None = None, telemetry: Telemetry | None = None
    ) -> ModelQueues:
        signals = Deaf() if deaf else SubjectSignals(self.conn, self.subject)
        pool = self.open_pool(size=3)
        queues = ModelQueues(
            pool,
            signals,
            lambda model: f"{model}'s key",
            rates,
            retry_initial_seconds=0.05,
            retry_max_seconds=0.1,
            telemetry=telemetry or Telemetry(),
        )
        await queues.open()
        self.stack.push_async_callback(queues.close)
        return queues


@pytest.fixture
async def workers(open_pool: Callable[..., Pool], servers: Endpoints) -> AsyncIterator[Workers]:
    conn = await connect(servers.nats_url, name="test")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(conn.close)
        yield Workers(open_pool, conn, stack)


async def enter(queues: ModelQueues, project: ProjectId = A, tokens: int = 1, patience: float = 25) -> Pass:
    passed = await queues.enter(MODEL, project, tokens, patience)
    passed.before_send()
    return passed


async def test_an_open_model_costs_no_statement_and_a_pause_holds_for_all_workers(workers: Workers, pool: Pool) -> None:
    one, other = await workers.begin(), await workers.begin()
    trips = one._pool.round_trips
    first, late = await enter(one), await other.enter(MODEL, B, 1, 25)
    assert first.ticket is None
    first.end(5)
    assert one._pool.round_trips == trips
    assert await pool.run(lambda conn: list_model_queues(conn, row_limit=9)) == []
    (await enter(one)).refused(300)
    await until(is_true(lambda: other.is_paused(f"{MODEL}'s key", MODEL)), 25, "a pause that the other one hears of")
    with pytest.raises(ModelError, match="wants no requests now"):
        late.before_send()  # it was let through before the other worker heard of the pause
    assert late.is_held
    with pytest.raises(ModelError, match="patience"):
        await enter(other, patience=299)  # at once: the pause is longer
    newcomer = await workers.begin()
    with pytest.raises(ModelError, match="patience"):
        await enter(newcomer, patience=299)
    deaf = await workers.begin(deaf=True)
    assert deaf.is_paused(f"{MODEL}'s key", MODEL)  # it has read what it does not hear
    [queue] = await pool.run(lambda conn: list_model_queues(conn, row_limit=9))
    assert (queue.model, queue.waiting) == (MODEL, 0)
    assert queue.paused_until is not None


@pytest.mark.parametrize("deaf", [False, pytest.param(True, marks=pytest.mark.long)], ids=["heard", "signals are lost"])
async def test_after_a_pause_one_probes_and_projects_take_turns_over_all_workers(workers: Workers, deaf: bool) -> None:
    one, other = await workers.begin(deaf=deaf), await workers.begin(deaf=deaf)
    order, under_way, most = list[ProjectId](), 0, list[int]()

    async def ask(queues: ModelQueues, project: ProjectId) -> None:
        nonlocal under_way
        passed = await enter(queues, project)
        order.append(project)
        under_way += 1
        most.append(under_way)
        await asyncio.sleep(0.05)
        under_way -= 1
        passed.accepted()
        passed.end(1)

    (await enter(one)).refused(1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(ask(one if number % 2 else other, A))
            await asyncio.sleep(0.005)
        for _ in range(3):
            group.create_task(ask(other, B))
            await asyncio.sleep(0.005)
    assert most[0] == 1  # the first one probes
    assert order.count(B) == 3
    if not deaf:
        assert order[:10].count(B) == 3, order  # they came last


async def test_a_rate_holds_in_sum_over_workers_that_reserve_at_once(workers: Workers, pool: Pool) -> None:
    """Each of six workers lets through what fits; what is corrected or given back can be used at once."""
    rates = {"openai/*": ModelRate(requests_per_minute=20, tokens_per_minute=1_000)}
    crowd = [await workers.begin(rates=rates) for _ in range(6)]
    passes = list[Pass]()

    async def ask(number: int) -> None:
        passes.append(await enter(crowd[number % 6], A if number % 3 else B, tokens=100, patience=600))

    async def stored() -> LoadedQueue:
        [queue] = await pool.run(load_model_queues)
        return queue

    async def waiting(many: int) -> bool:
        return [len(queue.state.waiting) for queue in await pool.run(load_model_queues)] == [many]

    asking = [asyncio.create_task(ask(number)) for number in range(60)]
    try:
        await until(lambda: waiting(50), 25, "60 requests, of which 10 have their turn")
        queue = await stored()
        assert queue.state.used(queue.now) == (10, 1_000)
        await until(is_true(lambda: len(passes) == 10), 25, "10 that go")
        for passed in [*passes]:
            passed.end(20)  # 800 tokens are given back, so 8 more may go
        await until(lambda: waiting(42), 25, "8 more")
        await until(is_true(lambda: len(passes) == 18), 25, "8 more that go")
        for passed in passes[10:]:
            passed.end(1)
        await until(lambda: waiting(40), 25, "2 more: that is all in this minute")
        queue = await stored()
        assert queue.state.used(queue.now)[0] == 20
        await until(is_true(lambda: len(passes) == 20), 25, "2 more that go")
    finally:
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)

    async def nobody() -> bool:
        return await pool.run(load_model_queues) == []

    await until(nobody, 25, "nobody who waits")  # who was stopped has left
    assert len(passes) == 20


def is_true(look: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    """The condition as something to await."""

    async def looked() -> bool:
        return look()

    return looked


async def test_a_wait_beyond_the_patience_leads_to_another_model_or_fails_with_a_code(workers: Workers) -> None:
    meter = Meter()
    queues = await workers.begin(telemetry=Telemetry(meter=meter))
    models = ScriptedModel({"a": failing("rate_limited", after=300), "b": answering})
    for _ in range(2):  # the second one finds the pause
        found = await alone(models, "scripted/a", limits=PATIENT, config={"fallbacks": ["scripted/b"]}, queues=queues)
        assert found.said().model == "scripted/b"
        assert found.codes() == ["rate_limited", None]
        assert [record["attempt"] for record in found.attempts.records] == [1, 2]
    assert [each for each in meter.counted if each[0] is Metric.MODEL_PAUSES] == [(Metric.MODEL_PAUSES, "scripted/a")]
    impatient = replace(PATIENT, model_patience_seconds=200)
    found = await alone(models, "scripted/a", limits=impatient, queues=queues)
    assert found.failed().code == "rate_limit_timeout"
    assert found.codes() == ["rate_limited"]


async def test_refusals_are_waited_for_and_count_as_no_failures(workers: Workers) -> None:
    meter = Meter()
    queues = await workers.begin(telemetry=Telemetry(meter=meter))
    asked = list[int]()

    def busy(request: ModelRequest) -> ScriptLine:
        asked.append(request.attempt)
        if len(asked) <= 6:  # more than model_attempts
            code = "rate_limited" if len(asked) % 2 else "model_overloaded"
            raise ModelError(code, "busy", retryable=True, retry_after=0.02)
        return ScriptLine(text="at last")

    found = await alone(ScriptedModel({"a": busy}), "scripted/a", limits=PATIENT, queues=queues)
    assert (found.said().text, asked) == ("at last", [1, 2, 3, 4, 5, 6, 7])
    assert (Metric.MODEL_WAIT, "sent") in meter.counted
    assert (Metric.MODEL_WAITING, "0") in meter.counted


async def test_a_step_that_is_stopped_while_it_waits_leaves_the_queue(workers: Workers, pool: Pool) -> None:
    queues = await workers.begin()
    (await enter(queues)).refused(300)
    asking = asyncio.create_task(enter(queues, patience=600))

    async def places() -> list[int]:
        return [view.waiting for view in await pool.run(lambda conn: list_model_queues(conn, row_limit=9))]

    async def waits() -> bool:
        return await places() == [1]

    async def left() -> bool:
        return await places() == [0]

    await until(waits, 25, "a request that waits")
    asking.cancel()
    await asyncio.wait([asking])
    await until(left, 25, "nobody who waits")
    assert asking.cancelled()


@dataclass
class Meter:
    """Keeps what is counted."""

    enabled: bool = True
    counted: list[tuple[Metric, str]] = field(default_factory=list[tuple[Metric, str]])

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Keep the model."""
        self.counted.append((metric, labels["model"]))

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Keep the outcome."""
        self.counted.append((metric, labels["outcome"]))

    def watch(self, metric: Metric, read: Callable[[], float]) -> None:
        """Read it once."""
        self.counted.append((metric, str(read())))
