"""`/console/turns/{id}`: a turn with its timeline, its cards, its attempts, and what may be done with it.

At most ten statements on one connection, whatever the turn has made. Of its steps a window is shown with their cards:
the last `WINDOW`, or those up to a number.

The timeline is drawn to scale as SVG. A step's attempts are known by how long they took, not by when they began: the
first is drawn at the step's begin, the last at its end, and the pauses between them are drawn equally long. Text of
strangers is escaped; looks are classes of the stylesheet, since the page allows no inline style.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from markupsafe import Markup
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from turnstile.gateway.console.formats import as_json
from turnstile.gateway.console.page import Links, Visit
from turnstile.gateway.console.rendering import HEADERS, render
from turnstile.gateway.console.turns.now import LiveLine, line_of
from turnstile.ledger.access.now import (
    TurnCall,
    TurnPlace,
    describe_place,
    list_cards_of_steps,
    list_turn_calls,
    list_turn_inputs,
    look_at_live_turns,
)
from turnstile.ledger.budgets.budget_views import list_budgets_of_turn
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.cards import get_card
from turnstile.ledger.turns.views import describe_turn, list_steps
from turnstile.rules.transcript import CallEntry, SteerEntry, StepEntry, transcript_of
from turnstile.schema.access import Principal
from turnstile.schema.amounts import duration
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.cards import Card, CardType, seen_card, value_of
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId, uuid7, workflow_id
from turnstile.schema.ledger_reads import StepView
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus
from turnstile.schema.step_metadata import ATTEMPT_CANCELED
from turnstile.schema.visible import visible
from turnstile.schema.wire.descriptions import TurnView

Kind = Literal["queue", "step", "attempt", "failed", "call", "bad", "people", "live", "end"]

MOST_STEPS = 30
"""Steps that have rows of their own: the first five and the last ones."""
_FIRST = 5
_MOST_CALLS = 6
"""Calls of a step that have rows of their own."""
_WIDTH, _LABELS, _ROW, _BAR, _TOP = 1000, 190, 24, 12, 30
_TICKS = 6
_NICE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_LABEL = 24


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """A stretch of time; `title` says in words what it is."""

    begin: datetime
    end: datetime
    kind: Kind
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the timeline; `step` is what it leads to."""

    label: str
    bars: tuple[TimelineBar, ...]
    depth: int = 0
    step: StepId | None = None

    @property
    def begin(self) -> datetime:
        """When its first bar begins."""
        return min(bar.begin for bar in self.bars)

    @property
    def end(self) -> datetime:
        """When its last bar ends."""
        return max(bar.end for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The rows between two moments; `live`: the turn goes on after the last."""

    begin: datetime
    end: datetime
    live: bool
    rows: tuple[Row, ...]


def timeline_of(
    turn: TurnView,
    steps: Sequence[StepView],
    calls: Sequence[TurnCall],
    questions: Sequence[Interrupt],
    now: datetime,
) -> Timeline:
    """The timeline of a turn as it stands at `now`."""
    end = max(turn.ended_at or now, turn.created_at)
    begun = turn.started_at or (steps[0].started_at if steps else end)
    rows = [Row("queued", (TimelineBar(turn.created_at, max(begun, turn.created_at), "queue", "waits for its agent"),))]
    interrupts: dict[ToolCallId, list[Interrupt]] = {}
    for question in questions:
        interrupts.setdefault(question.tool_call_id, []).append(question)
    by_step: dict[StepId, list[TurnCall]] = {}
    for call in calls:
        by_step.setdefault(call.step_id, []).append(call)
    numbered = list(enumerate(steps, 1))
    folded = max(len(numbered) - MOST_STEPS, 0)
    for number, step in numbered:
        if folded and number == _FIRST + 1:
            rows.append(_folded(numbered[_FIRST : _FIRST + folded], end))
        if folded and _FIRST < number <= _FIRST + folded:
            continue
        rows.append(_step(number, step, end))
        mine = by_step.get(step.step_id, [])
        rows += [_call(call, interrupts.get(call.tool_call_id, ()), end) for call in mine[:_MOST_CALLS]]
        if rest := mine[_MOST_CALLS:]:
            rows.append(_more(rest, end))
    live = turn.ended_at is None
    if not live:
        how = turn.status if turn.error_code is None else f"{turn.status}: {turn.error_code}"
        rows.append(Row("end", (TimelineBar(end, end, "end", how),)))
    if live and turn.status == "running":
        last = max((step.ended_at or step.started_at for step in steps), default=begun)
        since = max([last, *(call.applied_at for call in calls if call.applied_at)])
        rows.append(Row(f"step {len(steps) + 1}", (TimelineBar(since, end, "live", "runs now"),)))
    return Timeline(turn.created_at, end, live, tuple(rows))


def _step(number: int, step: StepView, end: datetime) -> Row:
    """A step, and in it the attempts at its model."""
    over = step.ended_at or end
    bars = [TimelineBar(step.started_at, over, "step", f"step {number}: {step.status}")]
    records = step.metadata.get("attempts")
    attempts = [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []
    lengths = [timedelta(milliseconds=_bounded(a.get("duration_ms"))) for a in attempts]
    spare = max(over - step.started_at - sum(lengths, timedelta()), timedelta())
    pause = spare / (len(attempts) - 1) if len(attempts) > 1 else timedelta()
    at = step.started_at
    for place, (attempt, length) in enumerate(zip(attempts, lengths, strict=True), 1):
        code = attempt.get("error_code")
        title = f"attempt {place} at {attempt.get('model')}: {duration(length)}"
        kind: Kind = "attempt" if code in {None, ATTEMPT_CANCELED} else "failed"
        how = "" if code is None else ", cut short" if code == ATTEMPT_CANCELED else f", failed: {code}"
        bars.append(TimelineBar(at, min(at + length, over), kind, title + how))
        at = min(at + length + pause, over)
    return Row(f"step {number}", tuple(bars), step=step.step_id)


def _call(call: TurnCall, questions: Sequence[Interrupt], end: datetime) -> Row:
    """A call from its commit to its result, and in it how long people took."""
    over = call.received_at or call.applied_at or (call.updated_at if call.wait_status == "dropped" else end)
    over = max(over, call.created_at)
    bad = call.wait_status in {"expired", "dropped"} or call.result_status not in {None, "success"}
    how = call.result_status or ("waits" if call.wait_status in {"waiting", "received"} else call.wait_status)
    children = "" if call.tasks is None else f", {call.tasks} turns started"
    title = f"{call.tool_name}: {how}, {duration(over - call.created_at)}{children}"
    bars = [TimelineBar(call.created_at, over, "bad" if bad else "call", title)]
    for question in questions:
        decided = min(max(question.decided_at or over, question.created_at), over)
        what = f"waits for a person ({question.decision or question.status})"
        bars.append(TimelineBar(question.created_at, decided, "people", what))
    begun = call.created_at
    for step in () if call.recorded is None else call.recorded.steps:
        done = min(max(step.created_at, begun), over)
        asked = "" if step.model is None else f" at {step.model}"
        bars.append(TimelineBar(begun, done, "attempt", f"{step.key}{asked}: {duration(done - begun)}"))
        begun = done
    return Row(call.tool_name, tuple(bars), 1, call.step_id)


def _folded(steps: Sequence[tuple[int, StepView]], end: datetime) -> Row:
    bars = [
        TimelineBar(step.started_at, step.ended_at or end, "step", f"step {number}: {step.status}")
        for number, step in steps
    ]
    return Row(f"steps {steps[0][0]} to {steps[-1][0]}", tuple(bars))


def _more(calls: Sequence[TurnCall], end: datetime) -> Row:
    overs = [call.received_at or call.applied_at or end for call in calls]
    bar = TimelineBar(min(call.created_at for call in calls), max(overs), "call", f"{len(calls)} more calls")
    return Row(f"{len(calls)} more calls", (bar,), 1, calls[0].step_id)


def _bounded(value: object) -> float:
    return min(max(float(value), 0.0), 1e12) if isinstance(value, int | float) else 0.0


def drawn(timeline: Timeline) -> Markup:
    """The timeline as SVG; it needs no script, and its table says the same in words."""
    scale = _Scale(timeline.begin, timeline.end)
    height = _TOP + _ROW * len(timeline.rows) + 8
    parts = [*_axis(scale, height), *_rows(timeline.rows, scale)]
    if timeline.live:
        parts.append(
            Markup('<line class="tl-now" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                _tenths(scale.x(timeline.end)), _TOP - 6, height - 6
            )
        )
    return Markup(
        '<svg class="timeline" viewBox="0 0 {} {}" width="{}" height="{}" role="group" aria-label="{}"'
        ' focusable="false">{}</svg>'
    ).format(
        _WIDTH,
        height,
        _WIDTH,
        height,
        f"Timeline of {duration(timeline.end - timeline.begin)}; the table below has the same figures",
        Markup("").join(parts),
    )


class _Scale:
    """Where a moment is drawn."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.seconds = max((end - begin).total_seconds(), 0.001)

    def x(self, at: datetime) -> float:
        share = min(max((at - self.begin).total_seconds() / self.seconds, 0.0), 1.0)
        return _LABELS + share * (_WIDTH - _LABELS - 10)


def _axis(scale: _Scale, height: int) -> Iterable[Markup]:
    every = next((seconds for seconds in _NICE if scale.seconds / seconds <= _TICKS), max(scale.seconds / _TICKS, 1e-3))
    for tick in range(int(scale.seconds / every) + 1):
        at = timedelta(seconds=tick * every)
        yield Markup(
            '<line class="tl-tick" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/><text class="tl-time" x="{0}" y="14">{3}</text>'
        ).format(_tenths(scale.x(scale.begin + at)), _TOP - 10, height - 6, duration(at) if tick else "0")


def _rows(rows: Sequence[Row], scale: _Scale) -> Iterable[Markup]:
    for place, row in enumerate(rows):
        y = _TOP + place * _ROW
        label = Markup('<text class="tl-label" x="{}" y="{}">{}</text>').format(
            8 + 16 * row.depth, y + 15, _cut(row.label)
        )
        if row.step is not None:
            label = Markup('<a href="#{}">{}</a>').format(row.step, label)
        yield label
        for bar in row.bars:
            x, until = scale.x(bar.begin), scale.x(bar.end)
            thin = bar.kind in {"attempt", "failed", "people"}
            yield Markup(
                '<rect class="tl-{}" x="{}" y="{}" width="{}" height="{}" rx="2"><title>{}</title></rect>'
            ).format(
                bar.kind,
                _tenths(x),
                y + 7 if thin else y + 4,
                _tenths(max(until - x, 1.5)),
                _BAR - 6 if thin else _BAR,
                f"{visible(bar.title)} ({duration(bar.end - bar.begin)})",
            )


def _tenths(number: float) -> str:
    return f"{number:.1f}"


def _cut(label: str) -> str:
    text = visible(label)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


WINDOW: Final = 20
"""Steps whose cards are shown on one page."""
LONGEST: Final = 20_000
"""Characters of a text, and of arguments and results as JSON, that are on the page; the rest is behind a link."""
_INPUTS: Final = 20
_QUESTIONS: Final = 200


class TurnQuery(Strict):
    """Which part of the turn."""

    to: int | None = Field(default=None, ge=1, le=1_000_000)
    """The last step that is shown with its cards."""
    again: int | None = Field(default=None, ge=1, le=100_000)
    """The step that the form to run it again names."""


@dataclass(frozen=True, slots=True)
class TurnReading:
    """What the ledger has of a turn."""

    view: TurnView
    place: TurnPlace
    steps: Sequence[StepView]
    calls: Sequence[TurnCall]
    questions: Sequence[Interrupt]
    budgets: Sequence[BudgetView]
    inputs: Sequence[Card]
    cards: Sequence[Card]
    first: int
    """The number of the first step whose cards these are."""
    window: Sequence[StepView]
    live: LiveLine | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a step's model."""

    number: int
    model: str
    seconds: float | None
    first_token_seconds: float | None
    tokens: int | None
    estimated: bool
    cost: float | None
    error_code: str | None
    summary: bool


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call with what became of it."""

    entry: CallEntry
    sent: TurnCall | None
    question: Interrupt | None


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step with its attempts, its calls, and what was said to the turn before it."""

    entry: StepEntry
    attempts: Sequence[Attempt]
    calls: Sequence[ShownCall]
    steers: Sequence[SteerEntry]
    finish_reason: str | None
    text_card: CardId | None
    """The card that has all of its text."""

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it runs."""
        ended = self.entry.ended_at
        return None if ended is None else (ended - self.entry.started_at).total_seconds()


async def turn_page(visit: Visit[TurnQuery, Any]) -> Response:
    """A turn."""
    principal, query = visit.principal, visit.query
    turn = AgentTurnId(visit.path["turn_id"])
    reading = await visit.console.pool.run(lambda conn: read_turn(conn, principal, turn, query.to))
    view, now = reading.view, datetime.now(UTC)
    timeline = timeline_of(view, reading.steps, reading.calls, reading.questions, now)
    texts = {card.card_id: str(value_of(card)) for card in reading.cards if card.type == CardType.STEER}
    steers = [SteerEntry(**dict(steer), text=texts.get(CardId(steer.steer_id))) for steer in view.steers or ()]
    steps = _steps(reading, steers)
    records = [call.recorded for call in reading.calls if call.recorded is not None]
    last = reading.first + len(reading.window) - 1
    deliverable = next((card for card in reading.cards if card.card_id == view.deliverable_card_id), None)
    return render(
        visit,
        "turns/turn.html",
        turn=view,
        place=reading.place,
        live=reading.live,
        steps=steps,
        step_count=len(reading.steps),
        first=reading.first,
        last=last,
        earlier=reading.first - 1 if reading.first > 1 else None,
        later=min(last + WINDOW, len(reading.steps)) if last < len(reading.steps) else None,
        inputs=reading.inputs,
        deliverable=deliverable,
        delivered=None if deliverable is None else value_of(deliverable),
        steers=[steer for steer in steers if steer.step_id is None],
        questions=reading.questions,
        budgets=[budget for budget in reading.budgets if principal.sees(budget.channel_id)],
        tokens=sum(_total(step.metadata.get("llm_usage")) for step in reading.steps)
        + sum(record.tokens or 0 for record in records),
        cost=_sum([*(step.metadata.get("llm_response_cost") for step in reading.steps), *(r.cost for r in records)]),
        seconds=((view.ended_at or now) - view.created_at).total_seconds(),
        timeline=timeline,
        drawing=drawn(timeline),
        links=_links(visit.console.links, view),
        again=query.again,
        key=uuid7(),
        longest=LONGEST,
    )


async def card_page(visit: Visit[Any, Any]) -> Response:
    """All of a card that the turn's page shows in part, as plain text; raises `Refused` (unknown_card)."""
    principal, turn = visit.principal, AgentTurnId(visit.path["turn_id"])

    async def read(conn: Connection) -> Card | None:
        view = await described(conn, principal, turn)
        card = await get_card(conn, principal.project_id, CardId(visit.path["card_id"]))
        if card is None or card.metadata.agent_turn_id == turn:
            return card
        box = view.context_box_id
        inputs = [] if box is None else await list_turn_inputs(conn, principal.project_id, box, row_limit=_INPUTS)
        steer_ids = {steer.steer_id for steer in view.steers or ()}
        return card if card.card_id in {*steer_ids, *(c.card_id for c in inputs)} else None

    card = await visit.console.pool.run(read)
    visible_card = None if card is None else seen_card(card, principal.sees_detail)
    if visible_card is None:
        raise Refused("unknown_card", "the turn has no such card, or retention has removed it")
    value = value_of(visible_card)
    return PlainTextResponse(value if isinstance(value, str) else as_json(value), headers=HEADERS)


async def described(conn: Connection, principal: Principal, turn: AgentTurnId) -> TurnView:
    """The turn; raises `Refused` (unknown_turn) for one that the token may not see."""
    view = await describe_turn(conn, principal.project_id, turn)
    if view is None or not principal.sees(view.channel_id):
        raise Refused("unknown_turn", "the project has no such turn")
    return view


async def read_turn(conn: Connection, principal: Principal, turn: AgentTurnId, upto: int | None) -> TurnReading:
    """What the ledger has of a turn; raises `Refused` (unknown_turn) for one that the token may not see."""
    project = principal.project_id
    view = await described(conn, principal, turn)
    place = await describe_place(conn, project, turn)
    steps = await list_steps(conn, project, turn)
    calls = await list_turn_calls(conn, project, turn)
    questions = await list_interrupts(conn, project, turn=turn, row_limit=_QUESTIONS)
    budgets = await list_budgets_of_turn(conn, project, turn) if view.budget is not None else []
    box = view.context_box_id
    inputs = [] if box is None else await list_turn_inputs(conn, project, box, row_limit=_INPUTS)
    last = min(upto or len(steps), len(steps))
    first = max(last - WINDOW, 0) + 1
    window = steps[first - 1 : last]
    others = [] if view.deliverable_card_id is None else [view.deliverable_card_id]
    cards = await list_cards_of_steps(conn, project, turn, [step.step_id for step in window], others)
    line = None
    if view.ended_at is None:
        live = await look_at_live_turns(conn, project, channel=None, turn=turn, row_limit=1)
        line = next((line_of(t, live.seen_at, live.usual_seconds) for t in live.turns), None)
    inputs, cards = _seen(inputs, principal), _seen(cards, principal)
    return TurnReading(view, place, steps, calls, questions, budgets, inputs, cards, first, window, line)


def _seen(cards: Sequence[Card], principal: Principal) -> list[Card]:
    """What of these cards the principal sees."""
    return [visible for card in cards if (visible := seen_card(card, principal.sees_detail)) is not None]


def _steps(reading: TurnReading, steers: Sequence[SteerEntry]) -> list[ShownStep]:
    """The window's steps."""
    transcript = transcript_of(reading.window, reading.inputs, reading.cards, reading.calls, first=reading.first)
    sent = {call.tool_call_id: call for call in reading.calls}
    interrupts = {question.tool_call_id: question for question in sorted(reading.questions, key=_matters)}
    thoughts = {card.metadata.step_id: card.card_id for card in reading.cards if card.type == CardType.THOUGHT}
    return [
        ShownStep(
            entry=entry,
            attempts=attempts_of(step),
            calls=[
                ShownCall(call, sent.get(call.tool_call_id), interrupts.get(call.tool_call_id)) for call in entry.calls
            ],
            steers=[steer for steer in steers if steer.step_id == step.step_id],
            finish_reason=_text(step.metadata.get("finish_reason")),
            text_card=thoughts.get(step.step_id),
        )
        for step, entry in zip(reading.window, transcript.steps, strict=True)
    ]


def _matters(question: Interrupt) -> tuple[bool, datetime]:
    """Of several questions about a call an open one is shown, else the last."""
    return question.status is InterruptStatus.OPEN, question.created_at


def attempts_of(step: StepView) -> list[Attempt]:
    """The attempts at a step's model, in order; what another version wrote otherwise is left out."""
    attempts = step.metadata.get("attempts")
    records: list[JsonObject] = [r for r in attempts if isinstance(r, dict)] if isinstance(attempts, list) else []
    return [
        Attempt(
            number=number,
            model=_text(record.get("model")) or "unknown",
            seconds=_thousandth(record.get("duration_ms")),
            first_token_seconds=_thousandth(record.get("first_token_ms")),
            tokens=_total(record.get("usage")) or None,
            estimated=record.get("usage_kind") == "estimated",
            cost=_number(record.get("response_cost")),
            error_code=_text(record.get("error_code")),
            summary=record.get("summary") is True,
        )
        for number, record in enumerate(records, 1)
    ]


def _links(links: Links, view: TurnView) -> list[tuple[str, str]]:
    """Where other programs show the same turn."""
    addresses: list[tuple[str, str]] = []
    if links.workflow is not None:
        addresses.append(("Temporal", links.workflow(workflow_id(view.agent_turn_id))))
    if links.trace is not None and view.trace_id:
        addresses.append(("Trace", links.trace(view.trace_id)))
    return addresses


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _thousandth(value: object) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000


def _total(usage: object) -> int:
    """`total_tokens` of counts as providers name them."""
    total = cast("JsonObject", usage).get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and not isinstance(total, bool) else 0


def _sum(costs: Any) -> float | None:
    known = [cost for cost in map(_number, costs) if cost is not None]
    return sum(known) if known else None
