"""Who is claimed for next, and who may ask: projects take turns, and everything is bounded."""

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnstile.bridge.inbox import claim_queue
from turnstile.bridge.inbox.claim_queue import ClaimQueue, FairQueue
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.prompt_claims import MOST_STARTS, PromptClaims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.serving.micro_service import RequestPayload, VerbHandler, VerbRequest, run_verb
from turnstile.bridge.serving.rate_limits import throttled
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey, Claim
from turnstile.runtime import throttle
from turnstile.runtime.ports import Publisher
from turnstile.runtime.throttle import Throttle
from turnstile.schema.base import Reply
from turnstile.schema.ids import AgentId, ChannelId, ProjectId
from turnstile.schema.states import ReplyStatus

FLOOD, QUIET = ProjectId("flood"), ProjectId("quiet")


def agents(project: ProjectId, count: int) -> list[AgentKey]:
    return [(project, AgentId(f"a{number}")) for number in range(count)]


def test_one_agent_does_not_wait_behind_a_flood() -> None:
    queue = FairQueue()
    queue.offer(agents(FLOOD, 5_000), "doorbell")
    queue.take(16)
    queue.offer(agents(QUIET, 1), "watchdog")
    taken = queue.take(16)
    assert taken["watchdog"] == agents(QUIET, 1)
    assert taken["doorbell"] == agents(FLOOD, 31)[16:]


def test_an_agent_waits_once_and_may_come_again() -> None:
    queue = FairQueue()
    assert queue.offer(agents(FLOOD, 2) * 3, "doorbell") == 2
    assert queue.offer(agents(FLOOD, 2), "watchdog") == 0
    assert queue.take(9) == {"doorbell": agents(FLOOD, 2)}
    assert queue.offer(agents(FLOOD, 1), "watchdog") == 1
    assert (queue.take(9), queue.take(9), len(queue)) == ({"watchdog": agents(FLOOD, 1)}, {}, 0)


def test_there_is_an_end_to_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_queue, "MAX_OF_PROJECT", 10)
    monkeypatch.setattr(claim_queue, "MAX_WAITING", 15)
    queue = FairQueue()
    assert queue.offer(agents(FLOOD, 100), "doorbell") == 10
    assert queue.offer(agents(QUIET, 100), "doorbell") == 5
    assert len(queue) == 15


async def test_enqueues_claim_only_while_nothing_waits_and_few_starts_are_in_flight() -> None:
    queue, stop, free = ClaimQueue(), asyncio.Event(), asyncio.Event()

    class Held(Claims):
        """Claims whose starts take until `free`."""

        async def start_claimed(self, claim: Claim) -> None:
            await free.wait()

        async def ring(self, claims: list[Claim]) -> None:
            raise AssertionError

    held = Held(cast("Pool", None), cast("Publisher", None), ServedTargets(["near"]))
    prompt = PromptClaims(queue, held, ServedTargets(["near"]))
    assert prompt.targets() == (), "the queue does not run"
    running = asyncio.create_task(queue.run(held, stop))
    await asyncio.sleep(0)
    assert prompt.targets() == ("near",)
    for _ in range(MOST_STARTS):
        prompt.start(
            Claim.model_construct(verdict="start", project_id=QUIET, agent_id="a", agent_turn_id="t", turn_epoch=1)
        )
    assert prompt.targets() == (), "enough are in flight"
    stop.set()
    await asyncio.sleep(0.01)
    assert not running.done(), "its end waits for what was claimed"
    free.set()
    await running
    assert held.counts.by_reason == {"enqueue": MOST_STARTS}

    queue.runs = True
    assert prompt.targets() == ("near",)
    queue.offer(agents(FLOOD, 1), "doorbell")
    assert prompt.targets() == (), "projects take turns in the queue"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(1, 7))
def test_everybody_is_taken_once_and_no_project_is_passed_over(offered: list[tuple[int, int]], count: int) -> None:
    keys = [(ProjectId(f"p{project}"), AgentId(f"a{agent}")) for project, agent in offered]
    queue, taken = FairQueue(), list[AgentKey]()
    queue.offer(keys, "doorbell")
    while found := queue.take(count):
        taken += found["doorbell"]
    assert sorted(taken) == sorted(set(keys))
    first = [project for project, _ in taken[: len({project for project, _ in keys})]]
    assert len(first) == len(set(first)), "one of each before a second of any"


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_empties_and_fills() -> None:
    clock = Clock()
    bucket = Throttle(2.0, 3, clock)
    assert [bucket.take(FLOOD) for _ in range(4)] == [0, 0, 0, 0.5]
    assert bucket.take(QUIET) == 0
    clock.now = 0.25
    assert bucket.take(FLOOD) == 0.25
    clock.now = 0.5
    assert [bucket.take(FLOOD), bucket.take(FLOOD)] == [0, 0.5]
    clock.now = 1000
    assert [bucket.take(FLOOD) for _ in range(4)] == [0, 0, 0, 0.5]


def test_no_rate_is_no_limit() -> None:
    bucket = Throttle(0, 1)
    assert [bucket.take(FLOOD) for _ in range(100)] == [0] * 100
    assert len(bucket) == 0


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_BUCKETS", 10)
    bucket = Throttle(1, 1, Clock())
    for number in range(50):
        bucket.take(ProjectId(f"p{number}"))
    assert len(bucket) == 10
    assert bucket.take(ProjectId("p49")) > 0, "those that asked last are kept"


async def test_which_verbs_the_rate_refuses_and_how() -> None:
    async def handler(request: VerbRequest) -> BaseModel:
        await asyncio.sleep(0)
        return Reply(status=ReplyStatus.ACCEPTED, error=str(request.wait_seconds))

    verbs: dict[str, VerbHandler] = dict.fromkeys(("enqueue", "send", "describe", "stop", "report"), handler)
    behind = throttled(verbs, Throttle(1, 1, Clock()))

    async def asked(verb: str) -> tuple[object, object, object]:
        request = VerbRequest(verb, FLOOD, ChannelId("public"), RequestPayload(b"{}"), {}, "request")
        reply = (await run_verb(behind, request)).reply
        return reply["status"], reply["error_code"] or reply["error"], reply.get("retry_after_seconds")

    assert await asked("describe") == ("accepted", "0.0", None)
    assert await asked("describe") == ("busy", "rate_limited", 1.0)
    for verb in ("enqueue", "send"):  # told of the wait, and then theirs to refuse
        assert await asked(verb) == ("accepted", "1.0", None)
    for verb in ("stop", "report"):
        assert await asked(verb) == ("accepted", "0.0", None)
