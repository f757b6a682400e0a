"""Reads a turn by a client, and prints it: transcript, deliverable, and its page in the Web UI.

Text of models and tools is indented below a line that names its source, so that it cannot be taken for Turnstile's.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from pydantic import JsonValue
from rich.json import JSON

from turnstile.cli.budgets.budget_report import budget_line
from turnstile.cli.output import Output, clock
from turnstile.cli.session import Session
from turnstile.cli.turns.lookup import require_of_client, turn_request
from turnstile.processes import addresses
from turnstile.rules.transcript import CallEntry, SteerEntry, StepEntry, Transcript, transcript_of
from turnstile.schema import amounts
from turnstile.schema.budgets.views import BudgetView, ids_of
from turnstile.schema.cards import Card, value_of
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, BoxId, CardId, workflow_id
from turnstile.schema.ledger_reads import BoxRead, ReadReply, ReadRequest, StepView, TurnLine
from turnstile.schema.states import SteerStatus, TurnStatus
from turnstile.schema.step_metadata import Compaction
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.nats_turns import turn_in
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client

_TEXT = 2000
_QUEUED = {
    "agent_paused": "its agent, which is paused (`turnstile agent resume` lets it continue)",
    "agent_busy": "its agent, which has another turn",
    "output_box_busy": "its output box, which a turn of another agent writes",
}
_STEPS = 20
"""Without --full so many of the steps are shown that a program recorded under a call."""
_VALUE = 400
"""Without --full this many characters are shown of a text (`_TEXT`), and of a call's arguments or result (`_VALUE`)."""


@dataclass(frozen=True, slots=True)
class Deliverable:
    """What a turn delivered."""

    card_id: CardId
    value: JsonValue
    partial: bool


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn, and what it delivered."""

    turn: TurnView
    deliverable: Deliverable | None
    budgets: Sequence[BudgetView]
    """The budgets that it is charged to and that may be seen, the nearest first."""


@dataclass(frozen=True, slots=True)
class TurnReport(TurnEnd):
    """A turn with its steps and transcript."""

    steps: Sequence[StepView]
    transcript: Transcript


Reading = Callable[[ReadRequest], Awaitable[ReadReply]]
"""Asks `ledger.read`."""


async def read_report(session: Session, client: Client, turn: Turn | str) -> TurnEnd:
    """The turn, or the one whose id begins so, with its deliverable; a `TurnReport` for operators over NATS.

    Raises `Refused` (`unknown_turn`, `ambiguous_turn`).
    """
    named = turn if isinstance(turn, str) else await turn.start()
    if session.gateway is None:
        try:
            return await report_from(lambda request: session.read_on(client.bridge, request), named)
        except Refused as error:
            if error.code != "forbidden":
                raise
    turn = await require_of_client(session, client, turn) if isinstance(turn, str) else turn
    return await _read_end(client, turn)


async def report_from(read: Reading, turn: str) -> TurnReport:
    """The turn, or the one whose id begins so, with its steps, transcript and deliverable; raises as `read_report`."""
    reply = await read(turn_request(turn, record=True))
    view = turn_in(reply)
    boxes = [await _box(read, box) for box in (view.context_box_id, view.output_box_id)]
    cards = {card.card_id: card for card in (*reply.outside, *boxes[0], *boxes[1])}
    card = None if view.deliverable_card_id is None else cards.get(view.deliverable_card_id)
    deliverable = None if card is None else Deliverable(card.card_id, value_of(card), bool(card.metadata.partial))
    said = {steer.steer_id: cards.get(CardId(steer.steer_id)) for steer in view.steers or ()}
    steers = [
        SteerEntry(**dict(steer), text=None if (text := said[steer.steer_id]) is None else str(value_of(text)))
        for steer in view.steers or ()
    ]
    transcript = transcript_of(reply.steps, boxes[0], boxes[1], reply.calls, steers)
    return TurnReport(view, deliverable, reply.budgets, reply.steps, transcript)


async def _box(read: Reading, box: BoxId | None) -> list[Card]:
    try:
        return [] if box is None else await read_box(read, box)
    except Refused as error:
        if error.code != "unknown_box":  # retention has removed it
            raise
        return []


async def read_box(read: Reading, box: BoxId) -> list[Card]:
    """The cards of a box in order; raises `Refused` (unknown_box)."""
    cards: list[Card] = []
    after: object = 0
    while isinstance(after, int):
        page = await read(ReadRequest(box=BoxRead(box_id=box, after=after)))
        cards += page.cards
        after = page.next
    return cards


async def _read_end(client: Client, turn: Turn) -> TurnEnd:
    view = await turn.describe()
    budgets: list[BudgetView] = []
    for budget in () if view.budget is None else ids_of(view.budget):
        try:
            budgets.append(await client.budget(budget))
        except Refused as error:  # one that is not shown to this client
            if error.code != "unknown_budget":
                raise
    if view.ended_at is None:
        return TurnEnd(view, None, budgets)
    result = await turn.result()
    card_id = result.card_id
    return TurnEnd(view, None if card_id is None else Deliverable(card_id, result.value, result.partial), budgets)


def link_of(session: Session, turn: AgentTurnId) -> str | None:
    """The turn's page in the Web UI; None if the address of the Web UI is not known."""
    return page_of(session, workflow_id(turn))


def page_of(session: Session, workflow: str) -> str | None:
    """A workflow's page in the Web UI; None if the address of the Web UI is not known."""
    address = _web_ui(session)
    return address and addresses.turn_link(*address, workflow)


def list_of(session: Session, agent: str | None) -> str | None:
    """The Web UI's list of the project's or an agent's turns that did not succeed; None as for `link_of`."""
    address = _web_ui(session)
    whose = f' AND TurnAgent = "{agent}"' if agent else ""
    ended = ", ".join(f'"{status}"' for status in TurnStatus if status is not TurnStatus.SUCCESS)
    query = f'TurnProject = "{session.project}"{whose} AND TurnStatus IN ({ended})'
    return address and addresses.list_link(*address, query)


def _web_ui(session: Session) -> tuple[str, str] | None:
    """The address of the Web UI and the namespace that it shows; None if the address is not known."""
    if session.gateway is not None:
        return None
    endpoints = addresses.announced(session.options.data)
    web_ui = addresses.web_ui_url(session.settings, endpoints)
    namespace = session.settings.temporal.namespace or (
        endpoints.temporal_namespace if endpoints else addresses.NAMESPACE
    )
    return (web_ui, namespace) if web_ui else None


def document_of(report: TurnEnd, link: str | None) -> dict[str, JsonValue]:
    """The report as one JSON object."""
    document: dict[str, JsonValue] = {
        **report.turn.model_dump(mode="json"),
        "deliverable": None if report.deliverable is None else report.deliverable.value,
        "budgets": [budget.model_dump(mode="json") for budget in report.budgets],
        "web_ui_url": link,
    }
    if isinstance(report, TurnReport):
        document["transcript"] = report.transcript.model_dump(mode="json")
        document["step_list"] = [step.model_dump(mode="json") for step in report.steps]
    return document


def print_view(out: Output, report: TurnEnd) -> None:
    """Print where a turn stands and what it delivered, for people, without its transcript."""
    out.facts(f"turn {report.turn.agent_turn_id}", _facts(report, None))
    print_deliverable(out, report)


def print_report(out: Output, report: TurnReport, link: str | None, *, whole: bool = False) -> None:
    """Print the report for people: the request, each step, the deliverable; with `whole` nothing is shortened."""
    turn, transcript = report.turn, report.transcript
    out.facts(f"turn {turn.agent_turn_id}", _facts(report, transcript))
    moment = turn.created_at
    out.line(f"\n{_clock(moment)}  asked", style="bold")
    for request in transcript.request:
        out.indented(_shortened(_text(request), None if whole else _TEXT))
    if not transcript.request:
        out.indented("(no instruction: the turn reads its boxes as they are)", style="dim")
    for step in transcript.steps:
        moment = max(moment, step.started_at)
        _print_step(
            out, step, moment, [steer for steer in transcript.steers if steer.step_id == step.step_id], whole=whole
        )
    step_ids = {step.step_id for step in transcript.steps}
    if rest := [steer for steer in transcript.steers if steer.step_id not in step_ids]:
        out.line()
        _print_steers(out, rest, None if whole else _TEXT)
    if turn.ended_at is not None:
        moment = max(moment, turn.ended_at)
        code = f" ({turn.error_code})" if turn.error_code else ""
        out.line(f"\n{_clock(moment)}  ended: {turn.status}{code}", style="bold")
    print_deliverable(out, report)
    if link:
        out.line(f"Temporal: {link}", style="dim")


def _facts(report: TurnEnd, transcript: Transcript | None) -> dict[str, object]:
    turn = report.turn
    waits = _QUEUED.get(turn.queued_because or "")
    if turn.waiting_tool_count:
        until = f", until {turn.resume_deadline.astimezone():%H:%M:%S}" if turn.resume_deadline else ""
        waits = f"{amounts.counted(turn.waiting_tool_count, 'call')}{until}"
    return {
        "status": turn.status,
        "note": _notes(turn, transcript),
        "error": " ".join(filter(None, (turn.error, turn.error_code and f"({turn.error_code})"))),
        "last error": turn.last_error,
        "waits for": waits,
        "steers": _joined(*(f"{count} {status}" for status, count in Counter(_standing(turn)).items())),
        "agent": f"{turn.agent_id} in {turn.project_id}/{turn.channel_id}, epoch {turn.turn_epoch}",
        "took": duration_between(turn.created_at, turn.ended_at),
        "cost": amounts.counted(turn.steps, "step") if transcript is None else _cost(transcript),
        "budget": "\n".join(f"{budget_line(budget)} ({_whose(budget, turn)})" for budget in report.budgets),
        "until": None if turn.budget is None or turn.budget.until is None else clock(turn.budget.until),
        "runs again": turn.rerun_of and f"turn {turn.rerun_of} from step {turn.from_step}",
        "run again by": ", ".join(f"turn {rerun}" for rerun in turn.reruns),
        "correlation": None if turn.correlation_id == turn.agent_turn_id else turn.correlation_id,
        "inbox row": f"{turn.inbox_id} ({turn.inbox_status})",
        "context box": turn.context_box_id,
        "output box": turn.output_box_id,
        "trace": turn.trace_id,
    }


def _whose(budget: BudgetView, turn: TurnView) -> str:
    if budget.agent_turn_id is None:
        return f"the project's {budget.kind}"
    return "its own" if budget.agent_turn_id == turn.agent_turn_id else f"of turn {budget.agent_turn_id}"


def _standing(turn: TurnView) -> list[SteerStatus]:
    return [steer.status for steer in turn.steers or ()]


def _notes(turn: TurnView, transcript: Transcript | None) -> str:
    calls = [call for step in transcript.steps for call in step.calls] if transcript else []
    late = sorted({call.tool for call in calls if call.status == "timeout"})
    timed_out, failed = (transcript.calls_timed_out, transcript.failed_attempts) if transcript else (0, 0)
    cut = _truncated(turn)
    return _joined(
        f"{amounts.counted(timed_out, 'call')} timed out ({', '.join(late)})" if late else "",
        f"{amounts.counted(failed, 'attempt')} at the model failed" if failed else "",
        f"the last answer is cut off ({cut})" if cut else "",
        between="; ",
    )


def _print_steers(out: Output, steers: Sequence[SteerEntry], limit: int | None) -> None:
    for steer in steers:
        text = "(its card is gone)" if steer.text is None else _shortened(steer.text, limit)
        status = "" if steer.status is SteerStatus.APPLIED else f" ({steer.status})"
        out.indented(f"» {steer.steered_by}{status}: {text}", style="magenta")


def _print_step(out: Output, step: StepEntry, moment: datetime, steers: Sequence[SteerEntry], *, whole: bool) -> None:
    facts = _joined(
        step.model,
        duration_between(step.started_at, step.ended_at),
        f"{step.tokens:,} tokens" if step.tokens else "",
        f"${step.response_cost:.4f}" if step.response_cost else "",
    )
    out.line()
    out.line(f"{_clock(moment)}  step {step.number} {step.status}", style="bold", note=facts)
    for number, code in enumerate(step.failed_attempts, 1):
        out.indented(f"! attempt {number} at the model: {code}", style="yellow")
    if step.compaction is not None:
        out.indented(_cut(step.compaction), style="yellow")
    _print_steers(out, steers, None if whole else _TEXT)
    if step.text:
        out.indented(_shortened(step.text, None if whole else _TEXT))
    for call in step.calls:
        _print_call(out, call, None if whole else _VALUE)
    if step.truncated:
        out.indented(f"! the answer is cut off ({step.truncated})", style="yellow")
    if step.reminded:
        out.indented("! reminded to end the turn with a tool", style="yellow")
    if step.error:
        out.indented(f"! {step.error}", style="red")


def _cut(compaction: Compaction) -> str:
    """How the memory was compacted, and why."""
    why = "it was full" if compaction.reason == "full" else "the model refused the request as too long"
    how = "summarized" if compaction.when_full == "summarize" else "left out"
    failed = f", without a summary ({compaction.error_code})" if compaction.error_code else ""
    kept = f"{amounts.counted(compaction.turns_cut, 'earlier turn')} {how}{failed}, {compaction.turns_kept} kept"
    about = "" if compaction.counted == "exact" else "about "
    tokens = f"from {about}{compaction.tokens_before:,} tokens to {compaction.tokens_after:,}"
    return f"! memory compacted, {why}: {kept}; {tokens}"


def _print_call(out: Output, call: CallEntry, limit: int | None) -> None:
    out.indented(f"→ {call.tool} {_shortened(_text(call.arguments), limit)}", style="cyan")
    if call.edited is not None:
        out.indented(f"→ edited by a person: {_shortened(_text(call.edited), limit)}", style="cyan")
    if (record := call.recorded) is not None:
        shown = record.steps if limit is None else record.steps[:_STEPS]
        for step in shown:
            used = f"{step.tokens:,} tokens" if step.tokens is not None else ""
            cost = f"${step.cost:.4f}" if step.cost else ""
            out.indented(
                f"· {_clock(step.created_at)} {step.key}  {_joined(step.model, used, cost)}".rstrip(), style="dim"
            )
        if record.count > len(shown):
            out.indented(f"· {amounts.counted(record.count - len(shown), 'more step')}", style="dim")
    if call.status == "waiting":
        out.indented("← waiting for its result", style="yellow")
        return
    took = "" if call.sent_at is None else duration_between(call.sent_at, call.answered_at)
    after = f" after {took}" if took else ""
    if call.error_code is None:
        out.indented(f"← {call.status}{after}: {_shortened(_text(call.result), limit)}")
    else:
        words = f"{call.error_code}: {_shortened(call.error or '', limit)}"
        out.indented(f"← {call.status}{after}: {words}", style="yellow")


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shortened(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters; --full shows them)"


def _clock(moment: datetime) -> str:
    return moment.astimezone().strftime("%H:%M:%S")


def _truncated(turn: TurnView) -> str | None:
    cut = (turn.stats or {}).get("truncated")
    return cut if isinstance(cut, str) else None


def _cost(transcript: Transcript) -> str:
    tokens = sum(step.tokens or 0 for step in transcript.steps)
    return _joined(
        amounts.counted(len(transcript.steps), "step"),
        f"{tokens:,} tokens" if tokens else "",
        f"${transcript.response_cost:.4f}" if transcript.response_cost else "",
    )


def _joined(*facts: str | None, between: str = ", ") -> str:
    return between.join(fact for fact in facts if fact)


def print_timeline(out: Output, report: TurnReport) -> None:
    """Print the turn's moments as a table, with times relative to its enqueue."""
    start = report.turn.created_at
    rows = [(duration_between(start, moment), what, took, detail) for moment, what, took, detail in _moments(report)]
    out.table("timeline", ["after", "what", "took", "detail"], rows)


def print_deliverable(out: Output, report: TurnEnd, shown: str = "") -> None:
    """Print the deliverable with its card's id, or that there is none yet; not again the text that was just `shown`."""
    deliverable = report.deliverable
    if deliverable is None:
        out.line("no deliverable yet", style="dim")
        return
    cut, value = _truncated(report.turn), deliverable.value
    partial = ", partial" if deliverable.partial and not cut else ""
    above = ": the text above" if shown and value == shown else ""
    out.line(f"deliverable (card {deliverable.card_id}{partial}){above}", style="bold")
    if cut:
        out.line(f"! cut off ({cut})", style="yellow")
    if above:
        return
    out.line(value if isinstance(value, str) else JSON.from_data(value).text.plain)


def _moments(report: TurnReport) -> list[tuple[datetime, str, str, str]]:
    """The turn's moments in the protocol's order (§7), none before its predecessor: machines' clocks may differ."""
    turn = report.turn
    moments = [(turn.created_at, "enqueued", "", "")]
    if turn.started_at:
        moments.append((turn.started_at, "started", "", f"epoch {turn.turn_epoch}"))
    for number, step in enumerate(report.steps, 1):
        took = duration_between(step.started_at, step.ended_at)
        moments.append((step.ended_at or step.started_at, f"step {number} {step.status}", took, _step_detail(step)))
    if turn.ended_at:
        moments.append((turn.ended_at, f"ended: {turn.status}", "", turn.error_code or ""))
    if turn.announced_at:
        moments.append((turn.announced_at, "announced", "", "task event acknowledged by NATS"))
    latest = accumulate((moment for moment, *_ in moments), max)
    return [(moment, what, took, detail) for moment, (_, what, took, detail) in zip(latest, moments, strict=True)]


def note_of(line: TurnLine) -> str:
    """The note beside a turn's status in a list: its error code, a cut-off answer, timed-out calls."""
    cut = f"cut off: {line.truncated}" if line.truncated else ""
    late = f"{amounts.counted(line.calls_timed_out, 'call')} timed out" if line.calls_timed_out else ""
    return _joined(line.error_code, cut, late)


def duration_between(start: datetime, end: datetime | None) -> str:
    """The time between the two; empty if there is no end."""
    return "" if end is None else amounts.duration(end - start)


def _step_detail(step: StepView) -> str:
    details: list[str] = []
    timing = step.metadata.get("timing")
    if isinstance(timing, dict):
        numbers = ((name, value) for name, value in timing.items() if isinstance(value, (int, float)))
        details.extend(f"{name} {amounts.amount(value)}" for name, value in numbers)
    if step.tool_call_ids:
        details.append(f"{len(step.tool_call_ids)} tool calls")
    if step.error:
        details.append(step.error)
    return ", ".join(details)
