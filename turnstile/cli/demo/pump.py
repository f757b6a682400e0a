"""`turnstile demo-pump`: threads of listeners on a fresh machine, without a key or a network.

For each thread it prints every message when it is handled, then the real chain. At the end nothing runs any more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnstile.cli.demo.agents import agent_profiles
from turnstile.cli.demo.demo_servers import add_demo_agent, run_with_own_servers
from turnstile.cli.errors import REFUSED, CommandFailed
from turnstile.cli.session import Session
from turnstile.cli.threads.thread_report import document_of, print_chain, read_thread
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.pump.threads import ReplyKind, ThreadId
from turnstile.schema.wire.events import ReplyEvent
from turnstile.schema.wire.inbox import SendReply, ThreadDescribeRequest
from turnstile.sdk.client import BridgeClient

LISTENERS = ("turnstile.cli.demo.bakery", "turnstile.cli.demo.agents")
MODELS = Path(__file__).with_name("scripts.py")
_POLL_SECONDS = 0.05
_REPLY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A thread of the demo: its title, and its first message."""

    title: str
    to: str
    payload: str


SCENES: tuple[Scene, ...] = (
    Scene(
        "a customer's order: the counter asks the stock, then the price list, then answers",
        "counter",
        "<order><bread>rye</bread><loaves>3</loaves></order>",
    ),
    Scene(
        "an order that cannot be met is answered sooner",
        "counter",
        "<order><bread>barley</bread><loaves>1</loaves></order>",
    ),
    Scene(
        "two agents: the waiter asks the taster, thinks, orders at the counter, and tells the guest",
        "waiter",
        "<wish><text>Which bread goes with soup? We are two.</text></wish>",
    ),
    Scene(
        "what nobody understands is answered too, and the answer does not say who is there",
        "oven",
        "<order><bread>rye</bread><loaves>3</loaves></order>",
    ),
)


async def run_demo_pump(session: Session, *, keep: bool) -> None:
    """Run the demo; with `keep` stay up until stopped. Raises what `run_up` raises."""
    pump = session.settings.pump.model_copy(update={"listeners": list(LISTENERS)})
    model = session.settings.model
    model = model.model_copy(update={"scripts": [*model.scripts, MODELS]})
    settings = session.settings.model_copy(update={"pump": pump, "model": model})
    await run_with_own_servers(session, settings, lambda inner: _play(inner, keep=keep), keep=keep)


async def _play(session: Session, *, keep: bool) -> None:
    out = session.out
    async with session.bridge() as client:
        await session.await_bridge(client)
        for profile in agent_profiles():
            await add_demo_agent(client, profile)
        threads: list[ThreadId] = []
        for scene in SCENES:
            if not out.as_json:
                out.line(f"\n{scene.title}", style="bold")
                out.line(f"thread send {scene.to} '{scene.payload}'")
            threads.append(await _converse(session, client, scene))
        await _print_reports(session, client, threads)
    if not (keep or out.as_json):
        out.remark("the links work while it is up: `turnstile demo-pump --keep` stays up")


async def _converse(session: Session, client: BridgeClient, scene: Scene) -> ThreadId:
    """Send the scene's message, print each message of the thread as it comes, then the reply."""
    async with client.reply_inbox() as inbox:
        arguments: JsonObject = {"to": scene.to, "payload": scene.payload, "reply_to": inbox.subject}
        sent = SendReply.model_validate(await client.request("send", arguments))
        if sent.thread_id is None or sent.message_id is None:
            raise CommandFailed(sent.error_code or "not_sent", sent.error or "the message was not taken")
        waiting = asyncio.create_task(inbox.wait(sent.message_id, _REPLY_SECONDS))
        shown, over = 0, False
        try:
            while not over:
                over = waiting.done()
                shown = await _print_messages(session, client, sent.thread_id, shown)
                await asyncio.wait({waiting}, timeout=_POLL_SECONDS)
            _print_result(session, waiting.result())
        finally:
            waiting.cancel()
    return sent.thread_id


async def _print_messages(session: Session, client: BridgeClient, thread: ThreadId, shown: int) -> int:
    """Print the messages after the first `shown`; returns the number of messages printed so far."""
    described = await client.call(verbs.THREAD_DESCRIBE, ThreadDescribeRequest(thread_id=thread, payloads=True))
    messages = described.messages
    if not session.out.as_json:
        for message in messages[shown:]:
            listener = message.chain.rpartition(".")[2]
            session.out.line(
                f"· {message.from_id} → {listener}: {described.payloads.get(message.message_id)}", style="dim"
            )
    return len(messages)


def _print_result(session: Session, reply: ReplyEvent) -> None:
    if not session.out.as_json:
        session.out.line(f"{reply.sender} answers ({reply.reason}): {reply.payload}")


async def _print_reports(session: Session, client: BridgeClient, threads: Sequence[ThreadId]) -> None:
    """Print the chain of each thread and its page in the Web UI."""
    out = session.out
    reports = [await read_thread(session, client, thread, payloads=out.as_json) for thread in threads]
    if any(reply.kind is not ReplyKind.REPLY for report in reports for reply in report.replies):
        session.exit_code = REFUSED
    if out.as_json:
        out.document({"threads": [document_of(report) for report in reports]})
        return
    for scene, report in zip(SCENES, reports, strict=True):
        out.line(f"\n{scene.title}", style="bold")
        print_chain(out, report)
        out.line(f"turnstile thread show {report.thread.thread_id}", style="dim")
        if report.link:
            out.line(f"in Temporal: {report.link}", style="dim")
