"""Words of a person that are committed at one moment with a question: who has words in it does not decide (§13.3)."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.support.ledger.agents import PROJECT, begin, lease
from tests.support.ledger.calls import end, request, settle, told
from tests.support.ledger.people import (
    answer,
    asking,
    asks,
    asks_on,
    decide,
    decide_on,
    edit,
    hold,
    question,
    responds,
    responds_on,
    suspend_held,
)
from tests.support.ledger.steers import commit_asked, finish_asked, say, steers
from tests.support.ledger.unknown_calls import runs, settle_dead, unsure
from tests.support.waiting import Counting, in_flight, until_waiting
from turnstile.ledger.people.decisions import DecisionOutcome
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.waiting import report_call
from turnstile.schema.access import Caller
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InboxId, uuid7
from turnstile.schema.people.approvals import Decision
from turnstile.schema.turns import TurnRef

T = TypeVar("T")
CONFIRMED = answer(Decision.RESPOND, response=1)
Words = Callable[[Connection, TurnRef], Awaitable[Any]]
WORDS: dict[str, Words] = {
    "edit": lambda conn, turn: decide_on(conn, "a", answer(Decision.EDIT, edit=edit(turn, "a", {"q": "mild"}))),
    "response": lambda conn, _: decide_on(conn, "a", answer(Decision.RESPOND, response=1)),
    "rejection": lambda conn, _: decide_on(conn, "a", answer(Decision.REJECT, message="pay 500 instead")),
    "answer": lambda conn, _: responds_on(conn, "c"),
    "report": lambda conn, _: reports(conn, "d"),
}
"""What Dora says in a turn that asks about `a`, whose tools run `b`, `c` and `d`, and the tool of `c` asks."""
REPORTED = json.dumps({"__type__": "ToolResultContent", "status": "success", "result": 1, "error": None})


async def reports(conn: Connection, call: str) -> Any:
    """Dora reports a call by hand."""
    return await report_call(conn, PROJECT, request(call), REPORTED, InboxId(uuid7()), {"CG-Sender": "dora"})


@asynccontextmanager
async def overtaking(pool: Counting, second: Coroutine[Any, Any, T]) -> AsyncGenerator[tuple[Connection, Awaitable[T]]]:
    """A session that holds the heads, for which `second` waits already: what it says now is before that."""
    lock = "SELECT FROM state.agent_state_head FOR NO KEY UPDATE"
    async with pool.connection() as conn, conn.transaction():
        await conn.fetch(lock)
        waiting = asyncio.ensure_future(second)
        await until_waiting(pool)
        yield conn, waiting


async def code_of(deciding: Awaitable[DecisionOutcome]) -> str:
    """`accepted`, or why not."""
    try:
        return (await deciding).verdict
    except Refused as refused:
        return refused.code


async def sleeping(pool: Counting) -> TurnRef:
    """The turn of `WORDS`."""
    turn = await asking(pool, "a", free=("b", "c", "d"))
    assert await asks(pool, "c") == "accepted"
    return turn


@pytest.mark.parametrize("kind", [kind for kind in WORDS if kind != "report"])
async def test_a_question_that_waited_for_words_is_not_their_authors_to_decide(counting: Counting, kind: str) -> None:
    """Both change the head: the question is of the time when it has the lock, and so after the words."""
    turn = await sleeping(counting)
    async with overtaking(counting, asks(counting, "b", requester_may_decide=False)) as (conn, asked):
        await WORDS[kind](conn, turn)
    assert await asked == "accepted"
    assert await responds(counting, "b") == "own_words"
    await end(counting, turn)


@pytest.mark.parametrize("kind", WORDS)
async def test_words_that_waited_for_a_question_come_after_it(counting: Counting, kind: str) -> None:
    """They were not in what its call was made of, as a later look sees, too."""
    turn = await sleeping(counting)
    async with in_flight(counting, lambda conn: asks_on(conn, "b", requester_may_decide=False)):
        said = asyncio.ensure_future(counting.run(lambda conn: WORDS[kind](conn, turn)))
        await (asyncio.wait_for(said, 25) if kind == "report" else until_waiting(counting))
    await said
    assert await responds(counting, "b") == "accepted"
    await end(counting, turn)


async def test_a_decision_waits_for_a_report_that_is_older_than_its_question(counting: Counting) -> None:
    """A report locks its call alone, and may be committed after a question that is younger."""
    turn = await sleeping(counting)
    async with in_flight(counting, lambda conn: reports(conn, "d")):
        assert await asks(counting, "b", requester_may_decide=False) == "accepted"
        decided = asyncio.ensure_future(responds(counting, "b"))
        await until_waiting(counting)
    assert await decided == "own_words"
    await end(counting, turn)


async def test_a_question_whether_a_call_was_done_that_waited_for_words_comes_after_them(counting: Counting) -> None:
    """As one that a tool asks. The call was asked about before, by a rule whose requester may not decide."""
    turn = await asking(counting, "a", "b", requester_may_decide=False)
    await counting.run(lambda conn: decide_on(conn, "b", who="erin"))
    assert await runs(counting, "b")
    [call] = await unsure(counting)
    async with overtaking(counting, settle_dead(counting, call)) as (conn, settled):
        await decide_on(conn, "a", answer(Decision.REJECT, message="pay 500 instead"))
    assert (await settled).verdict == "asked"
    assert await code_of(decide(counting, "b", CONFIRMED, number=2)) == "own_words"
    await end(counting, turn)


SAID: dict[str, str] = {"before its step": "own_words", "during its step": "accepted", "while it sleeps": "accepted"}
"""When Dora steers a turn whose step asks, and what her decision comes to."""


@pytest.mark.parametrize("when", SAID)
async def test_a_steer_is_in_a_call_if_its_step_had_taken_it(counting: Counting, when: str) -> None:
    """The decision says so, and so does the audit when later steps have taken the others (the fixture looks)."""
    turn, dora = await lease(counting), Caller("dora", operates=True)
    if when == "before its step":
        await say(counting, turn, caller=dora)
    await commit_asked(counting, turn, await begin(counting, turn))
    await begin(counting, turn, 2)
    if when == "during its step":
        await say(counting, turn, caller=dora)
    await suspend_held(counting, turn, {"a": hold(requester_may_decide=False)}, step=2)
    if when == "while it sleeps":
        await say(counting, turn, caller=dora)
    assert await code_of(decide(counting, "a")) == SAID[when]
    if SAID[when] == "accepted":
        await settle(counting, turn, await told(counting, "a"))
        await finish_asked(counting, turn, await begin(counting, turn, 3))
        assert [status for status, _ in (await steers(counting, turn)).values()] == ["applied"]
        assert (await question(counting, "a"))["decided_by"] == "dora"
