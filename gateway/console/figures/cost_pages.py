"""What turns cost, by day, agent, model, channel and profile: charts, the same as tables, and as CSV.

One statement sums all of it. Days are of UTC, and those without a turn are shown, too.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

from markupsafe import Markup
from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.figures.charts import Bar, Frame, columns, rows
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import HEADERS, render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.ledger.access.costs import GROUPINGS, TURN_LIMIT, CostGrouping, CostLine, Costs, sum_costs
from turnstile.schema.amounts import money, tokens
from turnstile.schema.base import Strict

COSTS = f"{CONSOLE}/costs"
_SHOWN: Final = 12
"""Bars of a chart of names; the table has all of them, as far as these."""
_LISTED: Final = 200
_HEADS: Final = ("turns", "attempts", "failed_attempts", "prompt_tokens", "completion_tokens", "cost_usd")

Measure = Literal["cost", "tokens", "turns"]


class CostsQuery(Strict):
    """Which turns, and what is drawn."""

    days: int = Field(default=30, ge=1, le=366)
    """Turns that were enqueued today (UTC) and on so many days before, less one."""
    measure: Measure | None = None
    """What the bars show; by default the cost, where any is known."""


class SheetQuery(CostsQuery):
    """The same as CSV."""

    by: CostGrouping = "day"
    """What a line is of."""


@dataclass(frozen=True, slots=True)
class Section:
    """A grouping as the page shows it."""

    by: CostGrouping
    title: str
    charts: Sequence[Markup]
    lines: Sequence[CostLine]
    left: int
    """Lines that the table leaves out."""


_TITLES: Final[dict[CostGrouping, str]] = {
    "day": "By day",
    "agent": "By agent",
    "model": "By model",
    "channel": "By channel",
    "profile": "By profile",
}


def pages(_: Console) -> tuple[Page, ...]:
    """The pages."""
    return (
        Page(name="costs", path=COSTS, handler=show_costs, query=CostsQuery),
        Page(name="costs_csv", path=f"{COSTS}.csv", handler=send_sheet, query=SheetQuery),
    )


async def show_costs(visit: Visit[CostsQuery, NoForm]) -> Response:
    """Charts and tables."""
    if visit.fragment:
        return render(visit, "still.html")
    query = visit.query
    first, costs = await _summed(visit, query.days)
    measure = query.measure or ("cost" if costs.total.cost else "tokens")
    sections = [_section(by, costs.lines[by], measure, first) for by in GROUPINGS]
    return render(
        visit,
        "figures/costs.html",
        sections=sections,
        total=costs.total,
        cut=TURN_LIMIT if costs.cut else None,
        days=query.days,
        measure=measure,
    )


async def send_sheet(visit: Visit[SheetQuery, NoForm]) -> Response:
    """One grouping as CSV."""
    by = visit.query.by
    first, costs = await _summed(visit, visit.query.days)
    text = io.StringIO()
    sheet = csv.writer(text)
    sheet.writerow((by, *_HEADS))
    for line in _days(costs.lines["day"], first) if by == "day" else costs.lines[by]:
        counts = (line.turns, line.attempts, line.failed_attempts, line.prompt_tokens, line.completion_tokens)
        sheet.writerow((_inert(line.name), *counts, "" if line.cost is None else f"{line.cost:.6f}"))
    name = f"costs-by-{by}-{visit.query.days}-days.csv"
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


async def _summed(visit: Visit[CostsQuery, NoForm] | Visit[SheetQuery, NoForm], days: int) -> tuple[date, Costs]:
    """The first of the days, and what was spent since."""
    principal, first = visit.principal, datetime.now(UTC).date() - timedelta(days=days - 1)
    since = datetime(first.year, first.month, first.day, tzinfo=UTC)
    costs = await visit.console.pool.run(
        lambda conn: sum_costs(conn, principal.project_id, channel=principal.channel_id, since=since)
    )
    return first, costs


def _section(by: CostGrouping, lines: Sequence[CostLine], measure: Measure, first: date) -> Section:
    words = money if measure == "cost" else tokens
    says = {"cost": "Cost in US dollars", "tokens": "Tokens read and written", "turns": "Turns"}[measure]
    frame = Frame(f"by-{by}", f"{says} {_TITLES[by].lower()}", "", words)
    if by == "day":
        days = _days(lines, first)
        bars = [_bar(line, measure, name=f"{date.fromisoformat(line.name):%-d %b}") for line in days]
        frame = _said(frame, bars)
        charts = [columns(frame, bars, wide=True), columns(frame, bars, wide=False)]
        return Section(by, _TITLES[by], charts, [line for line in reversed(days) if line.attempts], 0)
    ordered = sorted(lines, key=lambda line: (-_value(line, measure), line.name))
    bars = [_bar(line, measure) for line in ordered[:_SHOWN]]
    if others := ordered[_SHOWN:]:
        bars.append(Bar(f"{len(others)} more", sum(_value(line, measure) for line in others)))
    return Section(by, _TITLES[by], [rows(_said(frame, bars), bars)], ordered[:_LISTED], len(ordered[_LISTED:]))


def _said(frame: Frame, bars: Sequence[Bar]) -> Frame:
    """The frame with a sentence for those who do not see the chart."""
    if not bars:
        return frame
    most = max(bars, key=lambda bar: bar.value)
    says = f"{len(bars)} bars; the highest is {most.name} with {frame.words(most.value)}. The table has all figures."
    return Frame(frame.key, frame.title, says, frame.words)


def _bar(line: CostLine, measure: Measure, name: str | None = None) -> Bar:
    about = f"{line.turns} turns, {tokens(line.tokens)} tokens"
    return Bar(line.name if name is None else name, _value(line, measure), about)


def _value(line: CostLine, measure: Measure) -> float:
    match measure:
        case "cost":
            return line.cost or 0.0
        case "tokens":
            return line.tokens
        case "turns":
            return line.turns


def _days(lines: Sequence[CostLine], first: date) -> list[CostLine]:
    """A line for each day up to today, also where nothing was used."""
    known = {line.name: line for line in lines}
    count = (datetime.now(UTC).date() - first).days + 1
    names = [(first + timedelta(days=number)).isoformat() for number in range(count)]
    return [known.get(name) or _nothing(name) for name in sorted({*names, *known})]


def _nothing(name: str) -> CostLine:
    return CostLine(name=name, turns=0, attempts=0, failed_attempts=0, prompt_tokens=0, completion_tokens=0, cost=None)


def _inert(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name
