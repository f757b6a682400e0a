"""Hot statements touch as much of a database with a long past as of an empty one.

Their generic plans are made while the tables are empty, as in a new installation, and nothing is analyzed afterwards.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    TARGET,
    add_agents,
    ask,
    begin,
    claim,
    command,
    commit,
    drain,
    finish,
    finish_on,
    lease,
    locate,
    middle_record,
    rows,
    send,
    stop_on,
)
from tests.support.ledger.calls import ask_to_stop, call_record, ending, request, sleeper, told
from tests.support.ledger.people import asking, held_record, hold, pass_expiry
from tests.support.ledger.reruns import command as rerun
from turnstile.ledger.operations import recovery, sweep
from turnstile.ledger.people.decisions import find_question, list_expired
from turnstile.ledger.people.interrupt_views import count_open_interrupts, list_interrupts
from turnstile.ledger.people.reruns import rerun_on
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.roster import LOCAL, set_status_on
from turnstile.ledger.turns.boxes import compose_box
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.ends import mark_announced, recall_step
from turnstile.ledger.turns.intake import Enqueued
from turnstile.ledger.turns.lease import LiveTurn, claim_inbox, dispatch_next, release_claims
from turnstile.ledger.turns.steps import begin_step, commit_step, retry_step
from turnstile.ledger.turns.views import describe_turn
from turnstile.ledger.turns.waiting import (
    apply_reports,
    describe_call,
    inject_timeouts,
    report_call,
    request_stop,
)
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId, InboxId, ToolCallId, interrupt_id, new_box_id, uuid7
from turnstile.schema.people.interrupts import InterruptStatus
from turnstile.schema.states import DeferReason
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.box_requests import BoxMakeRequest
from turnstile.schema.wire.headers import PARENT_TURN_ID, SENDER
from turnstile.schema.wire.limits import Admission

DAVE, EVE, FRANK, GRACE, HEIDI, IVAN, JUDY, KATE = map(
    AgentId, ("dave", "eve", "frank", "grace", "heidi", "ivan", "judy", "kate")
)
T = TypeVar("T")
PAST = 50_000
ROWS = 40
"""Rows that one node of a plan may see, over all its loops."""
BUFFERS = 150
"""Pages that a statement may touch: a few for each row it reads or writes, and for each index of a row that it inserts,
and none for the past."""
MORE_BUFFERS = {"decide_interrupt": 200, "make_way": 250, "enqueue_turn_in_a_box": 250}
"""Of those that write more rows: a decision its inbox row and edge, a rollback two such, a stop, a box and pointers; an
enqueue in a box locks the boxes that it names, judges them, and records that they are in use."""

FILL = [
    "SET session_replication_role = replica",  # no triggers
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at, archived_at)
    SELECT 'i' || n, 'p1', (ARRAY['alice', 'bob', 'carol'])[n % 3 + 1], 'turn', 'o' || n, 't' || n, n, 'consumed',
    '{"traceparent": "00-0-0-01"}', '{}', now() - interval '1 day', now() - interval '1 day', now()
    FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
    deliverable_card_id, output_box_id, announced_at)
    SELECT 't' || n, 'p1', 'alice', 'public', n, 'i' || n, 'success', 'c' || n, gen_random_uuid(), now()
    FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, status)
    SELECT 'p1', 'alice', 't' || n || '-s1', 't' || n, 'completed' FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id, tool_call_id,
    tool_name, wait_status)
    SELECT 'p1', 'alice', 't' || n, n, 's', 'k' || n, 'search', 'applied' FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id,
    tool_call_id, tool_name, reason, message, allowed_decisions, wait_seconds, status, decision, decided_at, expires_at)
    SELECT 'q' || n, 'p1', 'public', 'alice', 't' || n, 's', 'k' || n, 'search', 'tool_call', '?', '{}', 1, 'resolved',
    'approve', now(), now() FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.execution_edges (edge_id, project_id, primitive, edge_phase, correlation_id, trace_id)
    SELECT 'e' || n, 'p1', 'enqueue', 'request', 'o' || n, '0' FROM generate_series(1, $1::int) n""",
    """INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT 'c' || n, 'p1', '{}', '{"type": "agent.thought"}' FROM generate_series(1, $1::int) n""",
    "INSERT INTO public.boxes (box_id, tenant_id) SELECT md5('b' || n)::uuid, 'p1' FROM generate_series(1, $1::int) n",
    "INSERT INTO public.box_cards SELECT md5('b' || n)::uuid, 1, 'c' || n FROM generate_series(1, $1::int) n",
    """INSERT INTO state.agent_state_head (project_id, agent_id)
    SELECT 'p1', 'x' || n FROM generate_series(1, $1::int / 20) n""",
    """INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id)
    SELECT 'p1', 'x' || n, gen_random_uuid() FROM generate_series(1, $1::int / 20) n""",
    "SET session_replication_role = origin",
]

QUEUES = [
    FILL[0],
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at)
    SELECT 'w' || n, 'p2', 'w' || n % 100, 'turn', 'w' || n, 'w' || n, 0, 'queued', '{"traceparent": "00-0-0-01"}',
    jsonb_build_object('profile_box_id', b.id, 'context_box_id', b.id, 'output_box_id', b.id), 'infinity', now()
    FROM generate_series(1, $1::int / 25) n CROSS JOIN LATERAL (SELECT md5('w' || n)::uuid) b (id)""",
    """INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
    deliverable_card_id, output_box_id)
    SELECT 'v' || n, 'p2', 'w', 'public', n, 'v' || n, 'success', 'v' || n, gen_random_uuid()
    FROM generate_series(1, $1::int / 25) n""",
    FILL[-1],
]
"""Turns that wait for other agents, and ends that are not announced."""

Plan = dict[str, Any]


class Explained(Exception):
    """A statement was explained instead of run."""


class Explaining:
    """A connection whose statements are prepared by SQL, so that EXPLAIN can show the very plan that is cached."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: dict[str, str] = {}
        self.explains = False
        self.plan: Plan = {}

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """Its rows; or `Explained`, with the plan kept and the effect undone."""
        if query not in self._names:
            assert not self.explains, "not seen while the tables were empty"
            self._names[query] = f"p{len(self._names)}"
            await self._session.execute(f"PREPARE {self._names[query]} AS {query}")
        execute = f"EXECUTE {self._names[query]} ({', '.join(map(literal, args))})"
        if not self.explains:
            return await self._session.fetch(execute)
        await self._session.execute("BEGIN")
        [row] = await self._session.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {execute}")
        await self._session.execute("ROLLBACK")
        self.plan = json.loads(row["QUERY PLAN"])[0]["Plan"]
        raise Explained


def literal(value: Any) -> str:
    """A parameter as SQL text."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        words = ("NULL" if each is None else json.dumps(str(each)) for each in cast("list[Any]", value))
        return literal("{" + ",".join(words) + "}")
    text = str(value).replace("'", "''")
    return f"'{text}'"


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


Statement = Callable[[Connection], Awaitable[object]]


@dataclass(frozen=True)
class Live:
    """What is going on when the statements run."""

    running: TurnRef
    """Alice's turn, before its second step; `queued` waits behind it."""
    queued: Enqueued
    claimed: InboxId
    ended: AgentTurnId
    asleep: TurnRef
    """Frank's turn, past its deadline: it waits for two calls, one of them `reported`."""
    silent: ToolCallId
    reported: InboxId
    lost: LiveTurn
    """Grace's turn, asleep: a report of it was claimed."""
    displacing: AgentTurnId
    """Ivan's second turn of a conversation, whose first is leased."""
    asked: ToolCallId
    """A call of Judy's turn, which waits for people; the time of another is over."""
    overdue: ToolCallId
    answered: TurnRef
    """Kate's turn, before its second step: the call of its first was answered."""


async def live(pool: Pool) -> Live:
    """Alice runs, Bob idles with a turn that could run, Carol's rings, Dave is claimed, Frank and Grace sleep."""
    ended = await lease(pool, CAROL)
    await ask(pool, BOB, output_box_id=ended.output_box_id)
    await begin(pool, ended)
    await finish(pool, ended)
    running = await lease(pool)
    await begin(pool, running)
    await commit(pool, running)
    claimed = await lease(pool, DAVE)
    queued = await ask(pool)
    await ask(pool, CAROL)
    asleep = await sleeper(pool, *(calls := [uuid7(), uuid7()]), agent=FRANK, wait_seconds=0)
    await ask_to_stop(pool, running.agent_turn_id)
    reported = await told(pool, calls[0])
    await touch(pool)
    lost = await locate(pool, (await sleeper(pool, call := uuid7(), agent=GRACE, wait_seconds=0)).agent_turn_id)
    await told(pool, call)
    await claim(pool, GRACE)
    assert lost is not None
    silent = ToolCallId(calls[1])
    _, displacing = [await ask(pool, IVAN, conversation_id="c1", incoming={SENDER: "me"}) for _ in range(2)]
    named = AgentTurnId(str(displacing.reply.agent_turn_id))
    await asking(pool, overdue := uuid7(), asked := uuid7(), agent=JUDY)
    await pass_expiry(pool)
    await rows(pool, "UPDATE state.interrupts SET expires_at = 'infinity' WHERE tool_call_id = $1", asked)
    answered = await sleeper(pool, call := uuid7(), agent=KATE)
    row = await told(pool, call)
    await pool.run(lambda conn: apply_reports(conn, answered, [row]))
    others = (silent, reported, lost, named, ToolCallId(asked), ToolCallId(overdue), answered)
    return Live(running, queued, claimed.inbox_id, ended.agent_turn_id, asleep, *others)


async def touch(pool: Pool) -> None:
    """A worker is there."""
    await pool.run(lambda conn: sweep.touch_worker(conn, "w1", [TARGET]))


async def in_hand(conn: Connection, targets: list[str]) -> list[LiveTurn]:
    """list_in_hand, on this connection."""

    async def run(transition: Callable[[Connection], Awaitable[T]]) -> T:
        return await transition(conn)

    return [turn async for turn in recovery.list_in_hand(run, targets, older_seconds=-9)]


async def way_for(conn: Connection, turn: AgentTurnId) -> object:
    """make_way, for a turn that rolls the one before back."""
    given = {"strategy": "rollback", "principal": "me", "reason": "x", "max_queued_turns": 9}
    given["new_box_id"] = new_box_id()
    return await query("make_way").many(conn, project_id=PROJECT, agent_turn_id=turn, **given)


async def made_of_parts(conn: Connection, now: Live) -> object:
    """compose_box, of a box, a card and a text."""
    parts = [{"box_id": now.running.context_box_id}, {"card_id": f"{now.ended}-s1-deliverable"}, {"text": "more"}]
    wanted = BoxMakeRequest.model_validate({"parts": parts})
    return await compose_box(conn, PROJECT, CHANNEL, wanted, new_box_id(), "user.test")


def decision(call: ToolCallId) -> dict[str, Any]:
    """The arguments of decide_interrupt."""
    given = {"caller": "dora", "decision": "reject", "action_digest": "d", "asked": '{"digest": "x"}'}
    return {"project_id": PROJECT, "channel_id": CHANNEL, "interrupt_id": interrupt_id(call), **given}


def statements(now: Live) -> dict[str, Statement]:
    """Every hot statement, in an order in which each has something to do."""
    sent, limits = command(EVE), Admission(max_queued_turns=9, max_live_turns=30)
    limited, queued = (replace(command(agent), admission=limits) for agent in (EVE, ALICE))
    boxed = replace(command(EVE, context_box_id=now.running.context_box_id), admission=limits)
    child = replace(command(EVE, incoming={PARENT_TURN_ID: now.running.agent_turn_id}), admission=limits)
    keys = [(PROJECT, ALICE), (PROJECT, BOB), (PROJECT, CAROL), (PROJECT, FRANK)]
    turn, targets, asleep, row = now.running, [TARGET], now.asleep, uuid7()
    return {
        "list_due_agents": lambda conn: sweep.list_due_agents(conn, targets, older_seconds=0, row_limit=9),
        "list_stranded": lambda conn: sweep.list_stranded(conn, targets, row_limit=9),
        "end_orphans": lambda conn: sweep.end_orphans(conn, older_seconds=5, row_limit=9),
        "list_unannounced": lambda conn: sweep.list_unannounced(conn, targets, older_seconds=0, row_limit=9),
        "retry_dispatched": lambda conn: sweep.retry_dispatched(conn, targets, older_seconds=-9, row_limit=9),
        "release_stale_claims": lambda conn: sweep.release_stale_claims(conn, targets, older_seconds=-9, row_limit=9),
        "list_overdue": lambda conn: sweep.list_overdue(conn, targets, older_seconds=0, row_limit=9),
        "list_stops_overdue": lambda conn: sweep.list_stops_overdue(conn, targets, older_seconds=0, row_limit=9),
        "retry_commands": lambda conn: sweep.retry_commands(conn, targets, older_seconds=-9, row_limit=9),
        "retry_resumes": lambda conn: sweep.retry_resumes(conn, targets, older_seconds=-9, row_limit=9),
        "take_duty": lambda conn: recovery.take_duty(conn, "engine", every_seconds=-9),
        "list_in_hand": lambda conn: in_hand(conn, targets),
        "find_in_hand": lambda conn: recovery.find_in_hand(conn, targets, [now.lost.agent_turn_id]),
        "count_in_hand": lambda conn: recovery.count_in_hand(conn, targets, older_seconds=-9),
        "list_not_in_hand": lambda conn: recovery.list_not_in_hand(conn, [now.lost.agent_turn_id]),
        "list_unknown": lambda conn: recovery.list_unknown(conn, [now.lost.agent_turn_id, AgentTurnId("unknown")]),
        "list_undispatched": lambda conn: recovery.list_undispatched(conn, targets, older_seconds=-9, row_limit=9),
        "list_silent": lambda conn: recovery.list_silent(conn, targets, older_seconds=-9, row_limit=9),
        "confirm_in_hand": lambda conn: recovery.confirm_in_hand(conn, [now.lost]),
        "list_over": lambda conn: recovery.list_over(conn, [now.ended], older_seconds=-9),
        "restart_turn": lambda conn: recovery.restart_turn(conn, now.lost, counted=True),
        "record_repairs": lambda conn: recovery.record_repairs(conn, {"engine": 1}),
        "list_expired": lambda conn: list_expired(conn, targets, older_seconds=-9, row_limit=9),
        "find_question": lambda conn: find_question(conn, PROJECT, CHANNEL, interrupt_id(now.asked)),
        "decide_interrupt": lambda conn: query("decide_interrupt").one(conn, **decision(now.asked)),
        "expire_interrupt": lambda conn: query("expire_interrupt").one(conn, interrupt_id=interrupt_id(now.overdue)),
        "list_open_interrupts": lambda conn: list_interrupts(conn, PROJECT, status=InterruptStatus.OPEN, row_limit=9),
        "count_open_interrupts": lambda conn: count_open_interrupts(conn, PROJECT, most=99),
        "describe_call": lambda conn: describe_call(conn, PROJECT, now.silent),
        "inject_timeouts": lambda conn: inject_timeouts(conn, asleep),
        "report_call": lambda conn: report_call(conn, PROJECT, request(now.silent), "{}", InboxId(row), {}),
        "request_stop": lambda conn: request_stop(
            conn, PROJECT, asleep.agent_turn_id, "enough", InboxId(f"stop-{row}")
        ),
        "release_claims": lambda conn: release_claims(conn, [now.claimed], DeferReason.NOT_BEGUN, delay_seconds=0),
        "mark_announced": lambda conn: mark_announced(conn, [now.ended]),
        "enqueue_turn": lambda conn: send(conn, sent),
        "enqueue_turn_with_limits": lambda conn: send(conn, limited),
        "enqueue_turn_to_a_queue": lambda conn: send(conn, queued),
        "enqueue_turn_in_a_box": lambda conn: send(conn, boxed),
        "enqueue_turn_of_a_turn": lambda conn: send(conn, child),
        "make_way": lambda conn: way_for(conn, now.displacing),
        "compose_box": lambda conn: made_of_parts(conn, now),
        "set_agent_status": lambda conn: set_status_on(conn, PROJECT, HEIDI, "pause", LOCAL, uuid7()),
        "claim_inbox": lambda conn: claim_inbox(conn, keys, targets, row_limit=10),
        "apply_reports": lambda conn: apply_reports(conn, asleep, [now.reported]),
        "finish_suspended_turn": ending(asleep),
        "dispatch_next": lambda conn: dispatch_next(conn, keys),
        "begin_step": lambda conn: begin_step(conn, turn, 2, BoxCache(0)),
        "begin_step_after_a_call": lambda conn: begin_step(conn, now.answered, 2, BoxCache(0)),
        "retry_step": lambda conn: retry_step(conn, turn, 2),
        "recall_step": lambda conn: recall_step(conn, turn, 0),
        "stop_queued_turn": lambda conn: stop_on(conn, ALICE, now.queued),
        "finish_turn": lambda conn: finish_on(conn, turn, 2),
        "commit_step": lambda conn: commit_step(conn, turn, middle_record(turn, 2)),
        "commit_step_with_a_hold": lambda conn: commit_step(conn, turn, held_record(turn, 2, {"h": hold()})),
        "commit_step_with_calls": lambda conn: commit_step(conn, turn, call_record(turn, 2, "a", "b")),
        "describe_turn": lambda conn: describe_turn(conn, PROJECT, now.ended),
        "copy_boxes_of_turn": lambda conn: rerun_on(conn, rerun(now.ended)),
    }


NOBODY = TurnRef.model_construct(agent_turn_id=AgentTurnId(""), trace_id="", context_box_id=new_box_id())
NOTHING = Live(
    *(NOBODY, cast("Any", None), InboxId(""), AgentTurnId(""), NOBODY, ToolCallId(""), InboxId("")),
    *(cast("Any", None), AgentTurnId(""), ToolCallId(""), ToolCallId(""), NOBODY),
)
HOT = list(statements(NOTHING))


@dataclass(frozen=True)
class Old:
    """A session that has known its database since it was empty, and what goes on there now."""

    session: Explaining
    now: Live


@pytest.fixture(scope="module")
async def old(databases: Databases, migrated: str) -> AsyncIterator[Old]:
    """Each statement is planned while the database is empty; then it gets its past."""
    async with aged(databases, migrated, FILL) as made:
        yield made


@pytest.fixture(scope="module")
async def busy(databases: Databases, migrated: str) -> AsyncIterator[Old]:
    """Each statement is planned while the database is empty; then much is in hand there."""
    async with aged(databases, migrated, QUEUES) as made:
        yield made


@contextlib.asynccontextmanager
async def aged(databases: Databases, migrated: str, fills: Sequence[str]) -> AsyncGenerator[Old]:
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=3)
    await add_agents(pool, ALICE, BOB, CAROL, DAVE, EVE, FRANK, GRACE, HEIDI, IVAN, JUDY, KATE)
    async with pool.connection() as conn:
        session = Explaining(conn)
        for statement in statements(await live(pool)).values():
            with contextlib.suppress(StaleTurn):
                await statement(session)
        await drain(pool)
        await claim(pool, ALICE, FRANK, GRACE)  # what came too late
        async with pool.connection() as filling:
            for fill in fills:
                await filling.fetch(fill, *([PAST] if "$1" in fill else []))
        session.explains = True
        yield Old(session, await live(pool))
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", HOT)
async def test_a_statement_does_not_read_the_past(old: Old, name: str) -> None:
    with pytest.raises(Explained):
        await statements(old.now)[name](old.session)
    assert_cheap(old.session.plan, MORE_BUFFERS.get(name, BUFFERS))


KEYED = [
    name
    for name in HOT
    if name.startswith(("begin_", "retry_step", "commit_", "finish_", "recall_", "mark_", "stop_", "report_", "apply_"))
]
"""Of the hot statements those that know the keys of all that they read."""


@pytest.mark.parametrize(
    "name", [*KEYED, "describe_call", "claim_inbox", "inject_timeouts", "enqueue_turn", "enqueue_turn_of_a_turn"]
)
async def test_a_statement_does_not_read_what_waits_elsewhere(busy: Old, name: str) -> None:
    with pytest.raises(Explained):
        await statements(busy.now)[name](busy.session)
    assert_cheap(busy.session.plan)


def assert_cheap(plan: Plan, buffers: int = BUFFERS) -> None:
    """Something happened, and no node of the plan saw the past."""
    for node in nodes(plan):
        seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        where = (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), seen, node["Actual Loops"])
        assert node["Node Type"] != "Seq Scan", where
        assert seen * node["Actual Loops"] <= ROWS, where
    assert sum(node["Actual Rows"] for node in nodes(plan) if node["Node Type"] != "Result") > 0, "nothing happened"
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= buffers
