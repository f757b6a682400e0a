"""The ledger against a small model of it, driven by Hypothesis in any order, with repeats and stale callers.

After every step the heads are where the model says they are, and the invariants of §2 hold over the whole database.
`make test-long` takes more and longer runs.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.databases import Databases
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CHANNEL,
    PROJECT,
    TARGET,
    add_agents,
    begin,
    claim,
    command,
    commit,
    dispatch,
    finish,
    rows,
    send,
    stop,
)
from tests.support.ledger.calls import ask_to_stop, expire, settle, suspend, tell, waits
from tests.support.ledger.invariants import assert_invariants
from turnstile.embedded import Endpoints
from turnstile.ledger.operations.sweep import list_stranded
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.intake import Enqueue
from turnstile.ledger.turns.steps import retry_step
from turnstile.rules.turn_ends import LIVE, FinishedTurn
from turnstile.schema.cards import CardType
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentId, BoxId, InboxId
from turnstile.schema.states import InboxStatus, TurnStatus
from turnstile.schema.turns import TurnRef

T = TypeVar("T")
AGENTS = (ALICE, BOB)
AGENT = st.sampled_from(AGENTS)
PICK = st.integers(min_value=0, max_value=1_000)
NEAR = st.sampled_from([0, 0, 0, 0, -1, 1])
"""Mostly right, sometimes one off."""


@dataclass(eq=False)
class Row:
    """What the model knows of a report, timeout or stop. `status`: pending | processing | final."""

    turn: "Turn"
    call: str
    message_type: str
    inbox_id: InboxId
    status: str = "pending"


OPEN = {"waiting", "received"}


@dataclass(eq=False)
class Turn:
    """What the model knows of a turn. `status`: queued | dispatched | running | suspended | ended."""

    sent: Enqueue
    box: BoxId
    status: str = "queued"
    epoch: int = 0
    steps: int = 0
    claimed: bool = False
    cards: int = 0
    deadline: bool | None = None
    """Whether it is over; None once the timeouts were injected."""
    calls: dict[str, str] = field(default_factory=dict[str, str])
    placed: list[str] = field(default_factory=list[str])
    """The calls that have their result in the box, in order."""

    def open(self) -> list[str]:
        return [name for name, state in self.calls.items() if state in OPEN]

    @property
    def agent(self) -> AgentId:
        return self.sent.agent_id


@dataclass
class Agent:
    """What the model knows of an agent: its epoch, its turn in hand and its queue."""

    epoch: int = 0
    active: Turn | None = None
    queue: list[Turn] = field(default_factory=list[Turn])


class Ledger(RuleBasedStateMachine):
    """Each rule does one thing to the ledger, foresees the answer, and moves the model."""

    databases: Databases
    template: str
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.name = self.run(self.databases.lend(self.template))
        self.pool = Pool(self.databases.url(self.name), size=2)
        self.run(add_agents(self.pool, *AGENTS))
        self.agents = {agent: Agent() for agent in AGENTS}
        self.turns: list[Turn] = []
        self.rows: list[Row] = []  # in the order in which they came

    def teardown(self) -> None:
        self.run(self.pool.close())
        self.run(self.databases.take_back(self.name))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def stale(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        try:
            return self.run(coroutine)
        except StaleTurn:
            return None

    def ref(self, turn: Turn, epoch_off: int = 0) -> TurnRef:
        return TurnRef(
            project_id=PROJECT,
            channel_id=CHANNEL,
            agent_id=turn.agent,
            agent_turn_id=turn.sent.agent_turn_id,
            turn_epoch=turn.epoch + epoch_off,
            inbox_id=turn.sent.inbox_id,
            worker_target=TARGET,
            profile_box_id=turn.sent.new_context_box_id,  # not read
            context_box_id=turn.sent.new_context_box_id,
            output_box_id=turn.box,
            trace_id="0" * 32,
        )

    def free(self, box: BoxId) -> bool:
        return all(agent.active is None or agent.active.box != box for agent in self.agents.values())

    def lease(self, agent: Agent) -> Turn | None:
        """The model's dispatch_next."""
        turn = next((turn for turn in agent.queue if self.free(turn.box)), None)
        if turn is not None:
            agent.queue.remove(turn)
            agent.epoch += 1
            agent.active, turn.status, turn.epoch = turn, "dispatched", agent.epoch
        return turn

    def end(self, turn: Turn, ended: FinishedTurn, bump: int) -> None:
        agent = self.agents[turn.agent]
        turn.status, agent.active = "ended", None
        for name in turn.open():
            turn.calls[name] = "dropped"
        for row in self.rows:
            if row.turn is turn and row.message_type == "stop":
                row.status = "final"
        leased = self.lease(agent)
        if leased is None:
            agent.epoch += bump
        assert ended.result == "done"
        assert ended.next_turn_id == (leased and leased.sent.agent_turn_id)
        assert ended.head_epoch == agent.epoch

    @initialize(count=st.integers(1, 3), over=st.booleans())
    def sleep(self, count: int, over: bool) -> None:
        """Begin where the most can happen: one turn asleep, another in its queue."""
        self.enqueue(ALICE, None)
        self.begin(0, 0, 0)
        self.suspend(0, 0, count, over)
        self.enqueue(ALICE, None)

    @rule(agent=AGENT, reuse=st.none() | PICK)
    def enqueue(self, agent: AgentId, reuse: int | None) -> None:
        boxes = [turn.box for turn in self.turns]
        box = boxes[reuse % len(boxes)] if boxes and reuse is not None else None
        sent = command(agent, correlation_id=f"c{len(self.turns)}", output_box_id=box)
        turn = Turn(sent, box or sent.new_output_box_id)
        answer = self.run(self.pool.run(lambda conn: send(conn, sent)))
        self.turns.append(turn)
        held = self.agents[agent]
        held.queue.append(turn)
        leased = None if held.active is not None else self.lease(held)
        assert (answer.lease and answer.lease.agent_turn_id) == (leased and leased.sent.agent_turn_id)
        assert answer.reply.inbox_status == (InboxStatus.PENDING if leased is turn else InboxStatus.QUEUED)
        assert (answer.reply.turn_epoch, answer.reply.output_box_id) == (turn.epoch, turn.box)

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, own_ids=st.booleans())
    def enqueue_again(self, pick: int, own_ids: bool) -> None:
        turn = self.turns[pick % len(self.turns)]
        sent = turn.sent
        request = sent.request
        again = (
            sent
            if own_ids
            else command(
                **{name: getattr(request, name) for name in ("correlation_id", "output_box_id")}, agent=turn.agent
            )
        )
        answer = self.run(self.pool.run(lambda conn: send(conn, again)))
        assert answer.reply.agent_turn_id == sent.agent_turn_id
        assert (answer.reply.duplicate, answer.lease) == (not own_ids, None)
        assert answer.reply.turn_epoch == turn.epoch

    @rule()
    def claim(self) -> None:
        claimed = {each.inbox_id: each.verdict for each in self.run(claim(self.pool, *AGENTS, row_limit=500))}
        starts = [turn for turn in self.turns if turn.status == "dispatched" and not turn.claimed]
        foreseen = {turn.sent.inbox_id: "start" for turn in starts}
        for turn in starts:
            turn.claimed = True
        for row in self.rows:
            if row.status == "pending":
                settled = row.message_type != "stop" and row.turn.calls[row.call] not in OPEN
                foreseen[row.inbox_id] = "consumed" if settled else "signal"
                row.status = "final" if settled else "processing"
        assert claimed == foreseen

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, epoch_off=NEAR, step_off=NEAR)
    def begin(self, pick: int, epoch_off: int, step_off: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        step = turn.steps + 1 + step_off
        begun = self.stale(begin(self.pool, self.ref(turn, epoch_off), step))
        opens = turn.status in {"dispatched", "running"} and epoch_off == 0 and (step_off == 0 or step == 0)
        assert (begun is not None) == opens
        if begun is not None:
            turn.status = "running"
            assert begun.head.step_count == turn.steps
            own = [card for card in begun.output if card.metadata.agent_turn_id == turn.sent.agent_turn_id]
            assert len(own) == turn.cards
            assert [card.tool_call_id for card in own if card.type == CardType.TOOL_RESULT] == turn.placed
            last = [name for name in turn.placed if name.startswith(f"{turn.sent.agent_turn_id}-{turn.steps}-")]
            assert sorted(call.tool_call_id for call in begun.head.answered) == sorted(last)

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, epoch_off=NEAR, step_off=NEAR)
    def commit(self, pick: int, epoch_off: int, step_off: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        step = turn.steps + 1 + step_off
        done = self.stale(commit(self.pool, self.ref(turn, epoch_off), step))
        gate = turn.status in set(LIVE) and epoch_off == 0
        if gate and turn.status == "running" and step_off == 0:
            assert done is not None
            assert done.result == "done"
            turn.steps += 1
            turn.cards += 1
        elif gate and 0 < step <= turn.steps:
            assert done is not None
            assert done.result == "already"
        else:
            assert done is None

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, epoch_off=NEAR, step_off=NEAR)
    def finish(self, pick: int, epoch_off: int, step_off: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        step = turn.steps + 1 + step_off
        ended = self.stale(finish(self.pool, self.ref(turn, epoch_off), step))
        if turn.status == "running" and epoch_off == 0 and step_off == 0:
            assert ended is not None
            turn.steps += 1
            self.end(turn, ended, 0)
        elif turn.status == "ended" and 0 < step <= turn.steps:
            assert ended is not None
            assert ended.result == "already"
        else:
            assert ended is None

    @precondition(lambda self: self.turns)
    @rule(pick=PICK, epoch_off=NEAR)
    def fence(self, pick: int, epoch_off: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        ended = self.stale(fence(self.pool, self.ref(turn, epoch_off), TurnStatus.FAILED, "reaped", "reaped"))
        if turn.status in set(LIVE) and epoch_off == 0:
            assert ended is not None
            self.end(turn, ended, 1)
        else:
            assert ended is None

    @precondition(lambda self: self.turns)
    @rule(pick=PICK)
    def stop(self, pick: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        stopped = self.run(stop(self.pool, turn.agent, turn.sent.agent_turn_id))
        assert (stopped is not None) == (turn.status == "queued")
        if stopped is not None:
            others = [agent.active for name, agent in self.agents.items() if name != turn.agent and agent.active]
            assert (stopped.output_box_id == turn.box) == all(other.box != turn.box for other in others)
            self.agents[turn.agent].queue.remove(turn)
            turn.status = "ended"

    def calls(self) -> list[tuple[Turn, str]]:
        return [(turn, name) for turn in self.turns for name in turn.calls]

    @precondition(lambda self: any(turn.status == "running" for turn in self.turns))
    @rule(pick=PICK, epoch_off=NEAR, count=st.integers(1, 3), over=st.booleans())
    def suspend(self, pick: int, epoch_off: int, count: int, over: bool) -> None:
        running = [turn for turn in self.turns if turn.status == "running"]
        turn = running[pick % len(running)]
        step = turn.steps + 1
        names = [f"{turn.sent.agent_turn_id}-{step}-{number}" for number in range(count)]
        seconds = 0 if over else 600
        done = self.stale(suspend(self.pool, self.ref(turn, epoch_off), *names, step=step, wait_seconds=seconds))
        assert (done is not None) == (epoch_off == 0)
        if done is not None:
            assert (done.result, done.status) == ("done", "suspended")
            turn.status, turn.steps, turn.deadline = "suspended", step, over
            turn.cards += 1 + count
            turn.calls |= dict.fromkeys(names, "waiting")

    @precondition(lambda self: self.calls())
    @rule(pick=PICK)
    def report(self, pick: int) -> None:
        calls = self.calls()
        turn, name = calls[pick % len(calls)]
        reply = self.run(tell(self.pool, name)).reply
        earlier = [row for row in self.rows if row.call == name and row.message_type == "tool_result"]
        assert reply.inbox_id is not None
        assert [row.inbox_id for row in earlier] == ([reply.inbox_id] if reply.duplicate else [])
        if not earlier:
            self.rows.append(Row(turn, name, "tool_result", reply.inbox_id))
            if turn.calls[name] == "waiting":
                turn.calls[name] = "received"

    @precondition(lambda self: any(turn.status == "suspended" for turn in self.turns))
    @rule(pick=PICK, epoch_off=NEAR)
    def expire(self, pick: int, epoch_off: int) -> None:
        asleep = [turn for turn in self.turns if turn.status == "suspended"]
        turn = asleep[pick % len(asleep)]
        found = {ring.inbox_id for ring in self.run(expire(self.pool, self.ref(turn, epoch_off)))}
        if epoch_off:
            assert found == set()
            return
        if turn.deadline is not False:  # before it only reports are due
            timed = {row.call for row in self.rows if row.message_type == "timeout"}
            turn.deadline = None
            for name in sorted(turn.open()):
                if turn.calls[name] == "waiting" and name not in timed:
                    self.rows.append(Row(turn, name, "timeout", InboxId(f"timeout-{name}")))
        live = [row for row in self.rows if row.turn is turn and row.status != "final" and row.call in turn.open()]
        assert found == {row.inbox_id for row in live}

    @precondition(lambda self: self.rows)
    @rule(pick=PICK, epoch_off=NEAR, picks=st.sets(PICK, min_size=1, max_size=4))
    def settle(self, pick: int, epoch_off: int, picks: set[int]) -> None:
        turn = self.turns[pick % len(self.turns)] if pick % 3 == 0 else self.rows[pick % len(self.rows)].turn
        rows = [self.rows[index] for index in sorted({p % len(self.rows) for p in picks})]
        done = self.stale(settle(self.pool, self.ref(turn, epoch_off), *(row.inbox_id for row in rows)))
        assert (done is not None) == (turn.status in {"running", "suspended"} and epoch_off == 0)
        if done is None:
            return
        foreseen: dict[str, tuple[str, str | None]] = {}
        for row in rows:
            if row.status == "final" or row.turn.agent != turn.agent or row.message_type == "stop":
                continue
            row.status = "final"
            if row.turn is not turn:
                foreseen[row.inbox_id] = ("skipped", "stale_turn")
            elif row.call in turn.open():
                foreseen[row.inbox_id] = ("consumed", None)
                turn.calls[row.call] = "expired" if row.message_type == "timeout" else "applied"
                turn.cards += 1
                turn.placed.append(row.call)
            else:
                foreseen[row.inbox_id] = ("consumed", "already_settled")
        assert {row.inbox_id: (row.status, row.reason) for row in done.rows} == foreseen
        assert sorted(done.waiting) == sorted(turn.open())
        if not turn.open():
            turn.status = "running"
        assert done.status == turn.status

    @precondition(lambda self: self.turns)
    @rule(pick=PICK)
    def ask_to_stop(self, pick: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        found = self.run(ask_to_stop(self.pool, turn.sent.agent_turn_id))
        asked = [row for row in self.rows if row.turn is turn and row.message_type == "stop"]
        match turn.status:
            case "ended":
                assert found.verdict == "already_final"
            case "queued" | "dispatched":
                assert found.verdict == turn.status
            case _:
                assert found.verdict == ("duplicate" if asked else "accepted")
                assert found.inbox_id is not None
                if not asked:
                    self.rows.append(Row(turn, "", "stop", found.inbox_id))

    @precondition(lambda self: self.turns)
    @rule(pick=PICK)
    def retry(self, pick: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        counted = self.stale(self.pool.run(lambda conn: retry_step(conn, self.ref(turn), turn.steps + 1)))
        assert (counted is not None) == (turn.status == "running")

    @rule()
    def dispatch(self) -> None:
        idle = self.run(self.pool.run(lambda conn: list_stranded(conn, [TARGET], row_limit=9)))
        able = [
            (PROJECT, name)
            for name in AGENTS
            if (agent := self.agents[name]).active is None and any(self.free(t.box) for t in agent.queue)
        ]
        assert sorted(idle) == able
        leased = {
            lease.agent_id: lease.agent_turn_id
            for lease in self.run(dispatch(self.pool, [(PROJECT, a) for a in AGENTS]))
        }
        wants: dict[BoxId, list[Turn]] = {}
        for _, name in able:  # of agents that want one box, the turn that waits longest has it
            first = next(turn for turn in self.agents[name].queue if self.free(turn.box))
            wants.setdefault(first.box, []).append(first)
        winners = [min(turns, key=self.turns.index) for turns in wants.values()]
        assert leased == {turn.agent: turn.sent.agent_turn_id for turn in winners}
        for turn in winners:
            assert self.lease(self.agents[turn.agent]) is turn

    @invariant()
    def heads_are_where_the_model_says(self) -> None:
        found = self.run(rows(self.pool, "SELECT * FROM state.agent_state_head"))
        for row in found:
            agent = self.agents[row["agent_id"]]
            active = agent.active
            assert row["turn_epoch"] == agent.epoch
            assert row["status"] == (active.status if active else "idle")
            assert row["active_agent_turn_id"] == (active.sent.agent_turn_id if active else None)
            assert row["step_count"] == (active.steps if active else 0)
            assert row["waiting_tool_count"] == (len(active.open()) if active else 0)

    @invariant()
    def calls_are_where_the_model_says(self) -> None:
        assert self.run(waits(self.pool)) == {name: turn.calls[name] for turn, name in self.calls()}

    @invariant()
    def the_invariants_hold(self) -> None:
        async def check() -> None:
            async with self.pool.connection() as conn:
                await assert_invariants(conn, skip={"no_idle_head_with_a_free_turn"})  # the model says when

        self.run(check())


@pytest.mark.parametrize(
    ("profile", "examples"), [("default", 6), pytest.param("thorough", 60, marks=pytest.mark.long)]
)
def test_the_ledger_is_what_its_model_is(servers: Endpoints, migrated: str, profile: str, examples: int) -> None:
    databases = Databases(servers.database_url)  # of the loop that drives the machine
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        machine = type("Machine", (Ledger,), {"databases": databases, "template": migrated, "runner": runner})
        chosen = settings(settings.get_profile(profile), max_examples=examples)
        run_state_machine_as_test(machine, settings=chosen)  # pyright: ignore[reportUnknownMemberType] -- untyped in hypothesis
        runner.run(databases.close())
