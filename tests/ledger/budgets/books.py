"""Budgets as a few sums over what was charged: what the ledger keeps as counters is computed anew each time."""

from dataclasses import dataclass, field
from typing import Literal

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
        return [each for each in self.rows if row in each.came_from.get(what, [])]
