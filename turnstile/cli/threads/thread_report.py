"""Reads a thread by a bridge and prints it: the real chain of its messages, the replies, its Web UI page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from turnstile.cli.output import Output
from turnstile.cli.session import Session
from turnstile.cli.turns.turn_report import duration_between, page_of
from turnstile.schema import verbs
from turnstile.schema.ledger_reads import ReadRequest, ThreadsRead
from turnstile.schema.pump.threads import MessageId, thread_workflow_id
from turnstile.schema.wire.descriptions import MessageLine, ReplyLine, ThreadLine
from turnstile.schema.wire.inbox import ThreadDescribeRequest
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.requests import parse_request


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """A thread; `payloads` by message, None unless they were requested."""

    thread: ThreadLine
    messages: Sequence[MessageLine]
    replies: Sequence[ReplyLine]
    link: str | None
    payloads: Mapping[MessageId, str] | None


async def read_thread(
    session: Session, client: BridgeClient, thread: str, *, payloads: bool = False, limit: int = 1000
) -> ThreadReport:
    """The thread of any channel with its messages and replies; raises `Refused` (`unknown_thread`)."""
    named = ReadRequest(threads=parse_request(ThreadsRead, {"thread_id": thread}))
    [line] = (await session.read_on(client, named)).threads
    request = ThreadDescribeRequest(thread_id=line.thread_id, payloads=payloads, limit=limit)
    described = await client.in_channel(line.channel_id).call(verbs.THREAD_DESCRIBE, request)
    link = page_of(session, thread_workflow_id(line.thread_id))
    return ThreadReport(line, described.messages, described.replies, link, described.payloads if payloads else None)


def document_of(report: ThreadReport) -> dict[str, JsonValue]:
    """The report as one JSON object; with the payloads of messages and replies only if they were requested."""
    payloads = report.payloads or {}
    messages: list[JsonValue] = []
    for message in report.messages:
        payload = {"payload": payloads[message.message_id]} if message.message_id in payloads else {}
        messages.append({**message.model_dump(mode="json"), **payload})
    hidden = {"payload"} if report.payloads is None else None
    replies: list[JsonValue] = [reply.model_dump(mode="json", exclude=hidden) for reply in report.replies]
    thread = report.thread.model_dump(mode="json")
    return {**thread, "messages": messages, "replies": replies, "web_ui_url": report.link}


def print_thread(out: Output, report: ThreadReport) -> None:
    """Print the whole report for people."""
    thread = report.thread
    status = thread.status if thread.end_reason is None else f"{thread.status}: {thread.end_reason}"
    facts = {
        "id": thread.thread_id,
        "from": thread.requester,
        "status": status,
        "messages": thread.message_count,
        "in flight": thread.open_count or None,
        "created": thread.created_at,
        "took": duration_between(thread.created_at, thread.ended_at),
    }
    out.facts("thread", facts)
    print_chain(out, report)
    if (left := thread.message_count - len(report.messages)) > 0:
        out.line(f"… and {left} more: --limit shows them", style="dim")
    if report.link:
        out.line(f"Temporal: {report.link}", style="dim")


def print_chain(out: Output, report: ThreadReport) -> None:
    """Print the messages in order, each indented by its depth in the chain, and the replies."""
    start = report.thread.created_at
    rows: list[Sequence[object]] = []
    answers = {reply.request_id: reply for reply in report.replies}
    for message in report.messages:
        above, _, listener = message.chain.rpartition(".")
        indent = "  " * above.removeprefix(report.thread.requester).count(".")
        turn = f", turn {message.agent_turn_id}" if message.agent_turn_id else ""
        tries = f", begun {message.attempt} times" if message.attempt > 1 else ""
        rows.append(
            (
                message.number,
                duration_between(start, message.created_at),
                f"{indent}{message.from_id} → {listener}",
                message.kind,
                f"{message.status}: {message.effect}" if message.effect else message.status,
                duration_between(message.begun_at or message.created_at, message.ended_at),
                f"{message.message_id}{tries}{turn}",
            )
        )
    out.table("messages", ["#", "after", "from → to", "kind", "what came of it", "took", "message"], rows)
    _print_payloads(out, report)
    for message in report.messages:
        if (answer := answers.get(message.message_id)) is not None:
            announced = "announced" if answer.announced_at else "not announced yet"
            sender = f" from {answer.from_id}" if answer.from_id else ""
            out.line(f"#{message.number} was answered{sender}: {answer.kind}, {answer.reason}, {announced}")
            if report.payloads and answer.payload:
                out.line(f"    {answer.payload}")


def _print_payloads(out: Output, report: ThreadReport) -> None:
    for message in report.messages:
        if (payload := (report.payloads or {}).get(message.message_id)) is not None:
            out.line(f"#{message.number} {message.from_id} → {message.chain}", style="dim")
            out.line(f"    {payload}")
