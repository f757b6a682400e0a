"""Budgets against a small model of them, driven by Hypothesis in any order, with repeats, losses and late truth.

After every step each row has spent, reserved and returned what the model says, together no more than it was granted.
`--hypothesis-profile thorough` takes more and longer runs.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.ledger.budgets.books import DIMENSIONS, Books, Dimension, Row, Turn
from tests.support.databases import Databases
from tests.support.ledger.agents import PROJECT, add_agents, begin, rows, start
from tests.support.ledger.budgets import child_on, commit_uses, end, hook, limit, payload, price, reserve, uses
from tests.support.ledger.invariants import assert_invariants
from turnstile.embedded import Endpoints
from turnstile.ledger.budgets.steering import More, raise_budget
from turnstile.ledger.pool import Pool
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, uuid7
from turnstile.schema.turns import TurnRef

T = TypeVar("T")
AGENTS = [AgentId(f"spender-{n}") for n in range(5)]
PICK = st.integers(min_value=0, max_value=1_000)
OWN = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "tokens": st.sampled_from([0, 100, 400, 900]),
            "cost": st.sampled_from([500, 4000]),
            "turns": st.integers(0, 4),
        },
    ),
)
USED = st.one_of(st.none(), st.sampled_from([0, 10, 60, 300]))
USES = st.lists(st.tuples(USED, USED), min_size=0, max_size=3)


class Spending(RuleBasedStateMachine):
    pool: Pool
    runner: asyncio.Runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    @initialize(tokens=st.sampled_from([None, 1500]), turns=st.sampled_from([None, 8]))
    def begin_anew(self, tokens: int | None, turns: int | None) -> None:
        self.books = Books()
        self.live: dict[AgentId, tuple[TurnRef, Turn]] = {}
        self.over: list[tuple[TurnRef, Turn]] = []
        self.names: dict[Row, str] = {}
        self.raises: dict[str, tuple[Row, Dimension, int]] = {}
        self.top: dict[Dimension, list[Row]] = {what: [] for what in DIMENSIONS}
        self.run(self.emptied())
        limits: dict[Dimension, int] = {}
        if tokens is not None:
            limits["tokens"] = tokens
        if turns is not None:
            limits["turns"] = turns
        if limits:
            self.run(limit(self.pool, max_tokens=limits.get("tokens"), max_turns=limits.get("turns")))
            [found] = self.run(rows(self.pool, "SELECT budget_id FROM state.budgets"))
            day = Row(found["budget_id"], limits, {})
            self.books.rows.append(day)
            self.top |= {what: [day] for what in limits}

    async def emptied(self) -> None:
        """All turns of the run before are over: what was booked for them goes."""
        for table in ("budgets", "budget_reservations", "project_budgets"):
            await rows(self.pool, f"DELETE FROM state.{table}")  # noqa: S608 -- constants
        await rows(self.pool, "UPDATE state.agent_inbox SET payload = payload - 'budget' WHERE payload ? 'budget'")

    def turn(self, pick: int) -> tuple[AgentId, TurnRef, Turn]:
        agent = sorted(self.live)[pick % len(self.live)]
        return agent, *self.live[agent]

    @precondition(lambda self: len(self.live) < len(AGENTS))
    @rule(pick=PICK, own=OWN, below=st.booleans(), late=st.booleans())
    def enqueue(self, pick: int, own: dict[Dimension, int] | None, below: bool, late: bool) -> None:
        """A turn of the project's, or below one that runs or has gone on without waiting."""
        agent = next(each for each in AGENTS if each not in self.live)
        parents = [*self.live.values(), *(self.over if late else [])]
        above, known = self.top, None
        if below and parents:
            ref, parent = parents[pick % len(parents)]
            above, known = parent.lists, self.run(payload(self.pool, ref))
        asked = None if own is None else {f"max_{what}": amount for what, amount in own.items()}
        foreseen = self.books.enqueue("", own or {}, above)
        try:
            self.run(self.pool.transact(lambda conn: child_on(conn, known, asked, agent)))
        except Refused:
            assert foreseen is None
            return
        assert foreseen is not None
        turn = self.run(start(self.pool, agent))
        self.run(begin(self.pool, turn))
        if foreseen.own is not None:
            foreseen.own.id = turn.agent_turn_id
        self.live[agent] = (turn, foreseen)

    @precondition(lambda self: self.live)
    @rule(pick=PICK, amount=st.sampled_from([(0, 10), (20, 30), (100, 100)]), repeated=st.booleans())
    def reserve(self, pick: int, amount: tuple[int, int], repeated: bool) -> None:
        """An attempt at the model."""
        _, ref, turn = self.turn(pick)
        turn.tried += 1
        made = self.run(reserve(self.pool, ref, turn.step, turn.tried, amount))
        short = self.books.reserve(turn, sum(amount), amount[0] * 2 + amount[1] * 10)
        assert (made.verdict, made.dimension) == (("reserved", None) if short is None else ("exhausted", short))
        if repeated and short is None:
            assert self.run(reserve(self.pool, ref, turn.step, turn.tried, amount)).verdict == "reserved"

    @precondition(lambda self: self.live)
    @rule(pick=PICK, used=USES)
    def commit(self, pick: int, used: list[tuple[int | None, int | None]]) -> None:
        """A step that says what its attempts used, some of them, and maybe of some that were not."""
        _, ref, turn = self.turn(pick)
        told = [(turn.tried - place, *each) for place, each in enumerate(used) if turn.tried > place]
        self.run(commit_uses(self.pool, ref, uses(*told), turn.step))
        self.books.settle(turn, told)
        turn.step += 1
        turn.tried = 0
        self.run(begin(self.pool, ref, turn.step))

    @precondition(lambda self: self.live)
    @rule(pick=PICK, used=st.one_of(st.none(), USES))
    def finish(self, pick: int, used: list[tuple[int | None, int | None]] | None) -> None:
        """The end, whether or not the last step says what it used."""
        agent, ref, turn = self.turn(pick)
        told = [(turn.tried - place, *each) for place, each in enumerate(used or []) if turn.tried > place]
        self.run(end(self.pool, ref, None if used is None else uses(*told), turn.step))
        self.books.settle(turn, told)
        self.books.end(turn)
        self.over.append(self.live.pop(agent))

    @precondition(lambda self: self.books.rows)
    @rule(
        pick=PICK,
        what=st.sampled_from(DIMENSIONS),
        amount=st.sampled_from([50, 500, -50, -500]),
        key=st.sampled_from([None, "a", "b"]),
    )
    def raise_it(self, pick: int, what: Dimension, amount: int, key: str | None) -> None:
        """An operator gives more, or takes what is free; maybe again, after others."""
        row = self.books.rows[pick % len(self.books.rows)]
        key = key or uuid7()
        if (earlier := self.raises.get(key)) is not None:
            row, what, amount = earlier
            self.run(self.raised(row, what, amount, key))
            return
        rest = self.books.rest(row, what)
        above = row.came_from.get(what, [])
        may = (
            not row.closed
            and rest is not None
            and rest + min(amount, 0) >= 0
            and (amount < 0 or self.books.fits(above, what, amount))
        )
        try:
            self.run(self.raised(row, what, amount, key))
        except Refused:
            assert not may
        else:
            assert may
            row.max[what] += amount
            self.raises[key] = (row, what, amount)

    async def raised(self, row: Row, what: Dimension, amount: int, key: str) -> None:
        more = More(**{what: amount})
        await self.pool.run(lambda conn: raise_budget(conn, PROJECT, BudgetId(row.id), more, "user.test", key))

    @invariant()
    def ledger_and_model_agree(self) -> None:
        if not hasattr(self, "books"):
            return
        found = {row["budget_id"]: row for row in self.run(rows(self.pool, "SELECT * FROM state.budgets"))}
        assert found.keys() == {row.id for row in self.books.rows}
        for row in self.books.rows:
            kept = found[row.id]
            assert (kept["ended_at"] is not None, kept["closed_at"] is not None) == (row.ended, row.closed)
            for what in DIMENSIONS:
                books = self.books
                figures = (books.spent(row, what), books.reserved(row, what), books.returned(row, what))
                assert tuple(kept[f"{part}_{what}"] for part in ("spent", "reserved", "returned")) == figures
                assert kept[f"max_{what}"] == row.max.get(what)
                beyond = 0
                if what != "turns":
                    beyond = books.beyond(row, what)
                    told = (kept[f"unsettled_{what}"], kept[f"beyond_{what}"])
                    assert told == (books.unsettled(row, what), beyond)
                if row.closed and what in row.max:
                    assert row.max[what] <= sum(figures) <= row.max[what] + beyond
                elif what in row.max:
                    assert sum(figures) <= row.max[what] + beyond

    def teardown(self) -> None:
        async def check() -> None:
            async with self.pool.connection() as conn:
                await assert_invariants(conn)

        if hasattr(self, "books"):
            for ref, turn in self.live.values():
                self.run(end(self.pool, ref, None, turn.step))
            self.run(check())


def test_budgets_are_what_their_model_is(servers: Endpoints, migrated: str) -> None:
    databases = Databases(servers.database_url)  # of the loop that drives the machine
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        name = runner.run(databases.create(migrated))
        pool = Pool(databases.url(name), size=5)
        machine = type("Machine", (Spending,), {"pool": pool, "runner": runner})
        runner.run(add_agents(pool, *AGENTS))
        runner.run(hook(pool))
        runner.run(price(pool))
        try:
            run_state_machine_as_test(machine)  # pyright: ignore[reportUnknownMemberType] -- untyped in hypothesis
        finally:
            runner.run(pool.close())
            runner.run(databases.drop(name))
            runner.run(databases.close())
