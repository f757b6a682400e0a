"""Budgets against a small model of them, driven by Hypothesis in any order, with repeats, losses and late truth.

After every step each row has spent, reserved and returned what the model says, together no more than it was granted.
`--hypothesis-profile thorough` takes more and longer runs.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

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

Dimension = Literal["tokens", "cost", "turns"]
DIMENSIONS: tuple[Dimension, ...] = ("tokens", "cost", "turns")


@dataclass(eq=False)
class Row:
    """A budget: what it has, and from whom."""

    id: str
    max: dict[Dimension, int]
    came_from: dict[Dimension, list["Row"]]
    turns: int = 0
    """Turns that are counted here."""
    ended: bool = False
    closed: bool = False


@dataclass(eq=False)
class Attempt:
    """What an attempt at a model has reserved, and used."""

    step: int
    number: int
    amount: dict[Dimension, int]
    at: dict[Dimension, list[Row]]
    open: bool = True
    used: dict[Dimension, int | None] = field(default_factory=lambda: {"tokens": None, "cost": None})

    def counts(self, what: Dimension) -> int:
        """What is spent by it, whole where nobody knows."""
        used = self.used[what]
        return self.amount[what] if used is None else used


@dataclass(eq=False)
class Turn:
    """A turn, and where it is charged."""

    lists: dict[Dimension, list[Row]]
    own: Row | None = None
    step: int = 1
    tried: int = 0
    attempts: list[Attempt] = field(default_factory=list[Attempt])


@dataclass
class Books:
    """All rows and attempts; each figure of a row is a sum over them."""

    rows: list[Row] = field(default_factory=list[Row])
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    def spent(self, row: Row, what: Dimension) -> int:
        attempts = sum(x.counts(what) for x in self.attempts if not x.open and what != "turns" and row in x.at[what])
        below = sum(self.spent(g, what) for g in self._grants(row, what) if g.closed)
        return attempts + below + (row.turns if what == "turns" else 0)

    def reserved(self, row: Row, what: Dimension) -> int:
        attempts = sum(x.amount[what] for x in self.attempts if x.open and what != "turns" and row in x.at[what])
        return attempts + sum(g.max[what] for g in self._grants(row, what) if not g.closed)

    def unsettled(self, row: Row, what: Dimension) -> int:
        unknown = [x for x in self.attempts if not x.open and x.used[what] is None and row in x.at[what]]
        return sum(x.amount[what] for x in unknown) + sum(
            self.unsettled(g, what) for g in self._grants(row, what) if g.closed
        )

    def beyond(self, row: Row, what: Dimension) -> int:
        attempts = [x for x in self.attempts if not x.open and row in x.at[what]]
        closed = [g for g in self._grants(row, what) if g.closed]
        return sum(max(x.counts(what) - x.amount[what], 0) for x in attempts) + sum(
            max(self.spent(g, what) - g.max[what], 0) for g in closed
        )

    def rest(self, row: Row, what: Dimension) -> int | None:
        """What may still be given; None: without end."""
        return None if what not in row.max else row.max[what] - self.spent(row, what) - self.reserved(row, what)

    def returned(self, row: Row, what: Dimension) -> int:
        rest = self.rest(row, what)
        return 0 if rest is None or not row.closed else max(rest, 0)

    def resolve(self, rows: list[Row], what: Dimension) -> list[Row]:
        """The rows that are charged now: what is closed and came from above is charged there."""
        found: list[Row] = []
        for row in rows:
            above = row.came_from.get(what, [])
            found += self.resolve(above, what) if row.closed and above else [row]
        return found

    def fits(self, rows: list[Row], what: Dimension, wanted: int) -> bool:
        rests = [rest for row in rows if (rest := self.rest(row, what)) is not None]
        return wanted == 0 or all(wanted <= rest for rest in rests)

    def enqueue(self, name: str, own: dict[Dimension, int], above: dict[Dimension, list[Row]]) -> Turn | None:
        """The turn with its grant; None if it does not fit."""
        if own.get("turns") == 0:
            return None
        at = {what: self.resolve(above[what], what) for what in DIMENSIONS}
        if any(self.spent(row, "tokens") >= row.max["tokens"] for row in at["tokens"]):
            return None
        if any(self.spent(row, "cost") >= row.max["cost"] > 0 for row in at["cost"]):
            return None
        if not all(self.fits(at[what], what, own.get(what, int(what == "turns"))) for what in DIMENSIONS):
            return None
        turn = Turn(dict(above))
        if own:
            turn.own = Row(name, dict(own), {what: at[what] for what in own}, turns=int("turns" in own))
            self.rows.append(turn.own)
            turn.lists |= {what: [turn.own] for what in own}
        if "turns" not in own:
            for row in at["turns"]:
                row.turns += 1
        return turn

    def reserve(self, turn: Turn, tokens: int, cost: int) -> str | None:
        """Which dimension is exhausted; None if it was reserved."""
        for attempt in turn.attempts:
            attempt.open = False
        self.close()
        wanted: dict[Dimension, int] = {"tokens": tokens, "cost": cost}
        at: dict[Dimension, list[Row]] = {what: self.resolve(turn.lists[what], what) for what in wanted}
        for what, amount in wanted.items():
            rests = [rest for row in at[what] if (rest := self.rest(row, what)) is not None]
            if any(amount > rest for rest in rests):
                return what
        if at["tokens"] or at["cost"]:
            attempt = Attempt(turn.step, turn.tried, wanted, at)
            turn.attempts.append(attempt)
            self.attempts.append(attempt)
        return None

    def settle(self, turn: Turn, uses: list[tuple[int, int | None, int | None]]) -> None:
        """What attempts of the step used; what is known stays."""
        for number, tokens, cost in uses:
            for attempt in turn.attempts:
                if (attempt.step, attempt.number) == (turn.step, number):
                    attempt.open = False
                    told: tuple[tuple[Dimension, int | None], ...] = (("tokens", tokens), ("cost", cost))
                    for what, used in told:
                        attempt.used[what] = used if attempt.used[what] is None else attempt.used[what]
        self.close()

    def end(self, turn: Turn) -> None:
        """The end of a turn: what is still reserved is spent."""
        for attempt in turn.attempts:
            attempt.open = False
        if turn.own is not None:
            turn.own.ended = True
        self.close()

    def close(self) -> None:
        """Close what has ended and reserves nothing, and so on upwards."""
        for row in reversed(self.rows):
            if row.ended and not row.closed and not any(self.reserved(row, what) for what in DIMENSIONS):
                row.closed = True

    def _grants(self, row: Row, what: Dimension) -> list[Row]:
        return [r for r in self.rows if row in r.came_from.get(what, [])]


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
        agent = next(a for a in AGENTS if a not in self.live)
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
