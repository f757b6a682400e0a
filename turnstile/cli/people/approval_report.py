"""A question to a person on paper: what is asked, the exact call, its digest, and until when."""

from datetime import UTC, datetime

from turnstile.cli.output import Output
from turnstile.cli.people.quoting import BAR, escaped, quoted_text, quoted_value
from turnstile.schema.amounts import rough_duration
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt, InterruptReason, InterruptStatus


def print_interrupt(out: Output, view: InterruptView) -> None:
    """Print all of it. What a model wrote stands behind bars."""
    now = datetime.now(UTC)
    out.line(f"{view.interrupt_id}  {view.status}", style="bold", note=state_of(view, now))
    if view.reason is InterruptReason.INPUT_REQUIRED:
        out.line(f"{asker_of(view)} asks:")
        for line in quoted_text(view.message):
            out.line(line)
        if view.response_schema is not None:
            out.line("The answer must match:", style="dim")
            for line in quoted_value(view.response_schema):
                out.line(line, style="dim")
    else:
        out.line(escaped(view.message))
        out.line(f"{view.tool_name}, with these arguments:")
        for line in [f"{BAR}(its card is gone)"] if view.arguments is None else quoted_value(view.arguments):
            out.line(line)
    for name, value in _facts(view, now):
        out.line(f"{name:<9} {value}", style="dim")
    if view.status is InterruptStatus.OPEN and not view.is_what_is_shown:
        out.line("The digest does not match this call: do not decide.", style="bold red")


def asker_of(view: Interrupt) -> str:
    """Who asks a question that is no call to be approved."""
    if view.asked_by_tool:
        return f"The tool {escaped(view.tool_name)}, which {view.agent_id} has called,"
    return f"The agent {view.agent_id}"


def summary_of(view: Interrupt) -> str:
    """What is asked, in a line."""
    text = view.message if view.reason is not InterruptReason.INPUT_REQUIRED else f'"{view.message}"'
    return escaped(" ".join(text.split()))


def state_of(view: Interrupt, now: datetime) -> str:
    """How long it is open and what may be decided, or what was."""
    if view.status is InterruptStatus.OPEN:
        allowed = ", ".join(view.allowed_decisions)
        return f"asked {span(view.created_at, now)} ago, expires in {span(now, view.expires_at)}: {allowed}"
    if view.status is InterruptStatus.RESOLVED:
        return f"{view.decision} by {escaped(view.decided_by or '')}"
    return ""


def span(start: datetime, end: datetime) -> str:
    """A time in its largest unit: `3 min`, `6 d`."""
    return rough_duration(max((end - start).total_seconds(), 0))


def _facts(view: InterruptView, now: datetime) -> list[tuple[str, str]]:
    facts = {
        "call": view.tool_call_id,
        "to": view.target_subject,
        "turn": f"{view.agent_turn_id} of {view.agent_id} in {view.channel_id}",
        "asked by": None if view.requester is None else escaped(view.requester),
        "may decide": "who asked for the turn, too" if view.requester_may_decide else None,
        "digest": view.action_digest,
        "comment": None if view.comment is None else escaped(view.comment),
    }
    return [(name, value) for name, value in facts.items() if value]
