"""A turn's timeline: what happened when, as rows of bars, and these drawn to scale as SVG. Pure.

A step's attempts are known by how long they took, not by when they began: the first is drawn at the step's begin, the
last at its end, and the pauses between them are drawn equally long. Text of strangers is escaped; looks are classes of
the stylesheet, since the page allows no inline style.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from markupsafe import Markup

from turnstile.ledger.access.now import TurnCall
from turnstile.schema.amounts import duration
from turnstile.schema.ids import StepId, ToolCallId
from turnstile.schema.ledger_reads import StepView
from turnstile.schema.people.interrupts import Interrupt
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
    lengths = [timedelta(milliseconds=_number(a.get("duration_ms"))) for a in attempts]
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


def _number(value: object) -> float:
    return min(max(float(value), 0.0), 1e12) if isinstance(value, int | float) else 0.0


def drawn(timeline: Timeline) -> Markup:
    """The timeline as SVG; it needs no script, and its table says the same in words."""
    scale = _Scale(timeline.begin, timeline.end)
    height = _TOP + _ROW * len(timeline.rows) + 8
    parts = [*_axis(scale, height), *_rows(timeline.rows, scale)]
    if timeline.live:
        parts.append(
            Markup('<line class="tl-now" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                _text(scale.x(timeline.end)), _TOP - 6, height - 6
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
        ).format(_text(scale.x(scale.begin + at)), _TOP - 10, height - 6, duration(at) if tick else "0")


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
                _text(x),
                y + 7 if thin else y + 4,
                _text(max(until - x, 1.5)),
                _BAR - 6 if thin else _BAR,
                f"{visible(bar.title)} ({duration(bar.end - bar.begin)})",
            )


def _text(number: float) -> str:
    return f"{number:.1f}"


def _cut(label: str) -> str:
    text = visible(label)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"
