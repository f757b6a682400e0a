"""A turn on paper: its facts, its timeline, its deliverable and its page in the Web UI. Reads the ledger, prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue
from rich.json import JSON

from ledger.cards import get_card
from ledger.pool import Pool
from ledger.views import StepView, list_steps
from schema.cards import Card, CardUnreadable, JsonContent, TextContent, content_of
from schema.described import TurnView
from schema.ids import AgentTurnId, workflow_id
from turnstile import wiring
from turnstile.cli.lookup import require_turn
from turnstile.cli.output import Output
from turnstile.cli.session import Session


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What the ledger knows of a turn."""

    turn: TurnView
    steps: Sequence[StepView]
    deliverable: Card | None


async def read_report(pool: Pool, session: Session, turn: AgentTurnId) -> TurnReport:
    """The turn with its steps and its deliverable; raises `Refused` (`unknown_turn`)."""
    view = await require_turn(pool, session.project, turn)
    steps = await pool.run(lambda conn: list_steps(conn, session.project, turn))
    card_id = view.deliverable_card_id
    card = None
    if card_id is not None:
        card = await pool.run(lambda conn: get_card(conn, session.project, card_id))
    return TurnReport(view, steps, card)


def link_of(session: Session, turn: AgentTurnId) -> str | None:
    """The turn's page in the Web UI, if its address is known."""
    return page_of(session, workflow_id(turn))


def page_of(session: Session, workflow: str) -> str | None:
    """A workflow's page in the Web UI, if its address is known."""
    found = wiring.announced(session.options.data)
    web_ui = wiring.web_ui_url(session.settings, found)
    namespace = session.settings.temporal.namespace or (found.temporal_namespace if found else wiring.NAMESPACE)
    return wiring.turn_link(web_ui, namespace, workflow) if web_ui else None


def deliverable_of(card: Card | None) -> JsonValue:
    """The deliverable as JSON: a text, or what its content holds; null if there is none, or none that can be read."""
    if card is None:
        return None
    try:
        content = content_of(card)
    except CardUnreadable:
        return card.content
    match content:
        case TextContent(text=text):
            return text
        case JsonContent(data=data):
            return data
        case _:
            return content.model_dump(mode="json")


def document_of(report: TurnReport, link: str | None) -> dict[str, JsonValue]:
    """The report as one JSON object."""
    return {
        **report.turn.model_dump(mode="json"),
        "deliverable": deliverable_of(report.deliverable),
        "step_list": [step.model_dump(mode="json") for step in report.steps],
        "web_ui_url": link,
    }


def print_report(out: Output, report: TurnReport, link: str | None) -> None:
    """The whole report for people."""
    turn = report.turn
    waits = None
    if turn.waiting_tool_count:
        waits = f"{turn.waiting_tool_count} tool calls, until {turn.resume_deadline:%H:%M:%S %Z}"
    facts: dict[str, object] = {
        "status": turn.status,
        "agent": f"{turn.agent_id} in {turn.project_id}/{turn.channel_id}",
        "epoch": turn.turn_epoch,
        "correlation": None if turn.correlation_id == turn.agent_turn_id else turn.correlation_id,
        "inbox row": f"{turn.inbox_id} ({turn.inbox_status})",
        "waits for": waits,
        "error": " ".join(filter(None, (turn.error, turn.error_code and f"({turn.error_code})"))),
        "last error": turn.last_error,
        "context box": turn.context_box_id,
        "output box": turn.output_box_id,
        "trace": turn.trace_id,
        "usage": _usage(turn),
    }
    out.facts(f"turn {turn.agent_turn_id}", facts)
    print_timeline(out, report)
    print_deliverable(out, report)
    if link:
        out.line(f"Temporal: {link}", style="dim")


def print_timeline(out: Output, report: TurnReport) -> None:
    """When what happened, from the enqueue on."""
    start = report.turn.created_at
    rows = [(duration(start, moment), what, took, detail) for moment, what, took, detail in _moments(report)]
    out.table("timeline", ["after", "what", "took", "detail"], rows)


def print_deliverable(out: Output, report: TurnReport) -> None:
    """The deliverable with its card's id, or that there is none yet."""
    card = report.deliverable
    if card is None:
        out.line("no deliverable yet", style="dim")
        return
    partial = ", partial" if card.metadata.partial else ""
    out.line(f"deliverable (card {card.card_id}{partial})", style="bold")
    value = deliverable_of(card)
    out.line(value if isinstance(value, str) else JSON.from_data(value).text.plain)


def _moments(report: TurnReport) -> list[tuple[datetime, str, str, str]]:
    """Moments in the order of the protocol (§7): clocks of worker and database may differ by some milliseconds."""
    turn = report.turn
    moments = [(turn.created_at, "enqueued", "", "")]
    if turn.started_at:
        moments.append((turn.started_at, "started", "", f"epoch {turn.turn_epoch}"))
    for number, step in enumerate(report.steps, 1):
        took = duration(step.started_at, step.ended_at)
        moments.append((step.ended_at or step.started_at, f"step {number} {step.status}", took, _step_detail(step)))
    if turn.ended_at:
        moments.append((turn.ended_at, f"ended: {turn.status}", "", turn.error_code or ""))
    if turn.announced_at:
        moments.append((turn.announced_at, "announced", "", "task event acknowledged by NATS"))
    return moments


def duration(start: datetime, end: datetime | None) -> str:
    """`40 ms`, `12.5 s`; empty if there is no end."""
    if end is None:
        return ""
    seconds = (end - start).total_seconds()
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _step_detail(step: StepView) -> str:
    told: list[str] = []
    timing = step.metadata.get("timing")
    if isinstance(timing, dict):
        told.extend(f"{name} {value:.4g}" for name, value in timing.items() if isinstance(value, (int, float)))
    if step.tool_call_ids:
        told.append(f"{len(step.tool_call_ids)} tool calls")
    if step.error:
        told.append(step.error)
    return ", ".join(told)


def _usage(turn: TurnView) -> str:
    stats = turn.stats or {}
    return ", ".join(f"{name} {value}" for name, value in stats.items() if isinstance(value, (int, float, str)))
