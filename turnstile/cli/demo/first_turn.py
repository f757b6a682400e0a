"""`turnstile demo`: two agents and a tool on a fresh machine, without a key or a network.

It starts its own servers and never uses those that the settings name. At the end nothing runs any more.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from turnstile.cli.demo.demo_servers import add_demo_agent, run_with_own_servers
from turnstile.cli.errors import REFUSED
from turnstile.cli.session import Session
from turnstile.cli.turns.asking import EnqueueArguments, ask_and_follow, request_of
from turnstile.cli.turns.turn_report import (
    TurnReport,
    document_of,
    link_of,
    print_deliverable,
    print_timeline,
    read_report,
)
from turnstile.processes.addresses import nats_url
from turnstile.schema import verbs
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.wire.roster_requests import ToolPutRequest
from turnstile.sdk.tools.service import ToolService
from turnstile.sdk.turns import Client

DEFAULT_MODEL = "scripted/demo"
QUESTION = "What happens when I ask you something?"


def demo_profiles(model: str = DEFAULT_MODEL) -> tuple[Profile, Profile]:
    """The two profiles of `examples/profiles/`; both call `model` unless it is the default."""
    guide = Profile(
        name="guide",
        tags=["demo"],
        system_prompt_template=(
            "You are {agent_id}, the guide of the project {project_id}. Answer in a few sentences."
        ),
        allowed_tools=["word_count"],
        max_steps=4,
        llm_config=LlmConfig(model=model),
    )
    echo = Profile(
        name="echo",
        tags=["demo"],
        system_prompt_template="You are {agent_id}. Say in one sentence what you were told.",
        max_steps=4,
        llm_config=LlmConfig(model="scripted/echo" if model == DEFAULT_MODEL else model),
    )
    return guide, echo


tools = ToolService()


@tools.tool(target="demo", suffix="count", timeout_seconds=10)
async def word_count(text: str) -> dict[str, int]:
    """Count the words of a text. Use it instead of counting yourself.

    text: The text to count in.
    """
    return {"words": len(text.split())}


async def run_demo(session: Session, *, keep: bool, model: str) -> None:
    """Run the demo; with `keep` stay up until stopped. Raises what `run_up` raises."""
    worker = session.settings.worker.model_copy(update={"worker_targets": [demo_profiles()[0].worker_target]})
    settings = session.settings.model_copy(update={"worker": worker})
    await run_with_own_servers(session, settings, lambda inner: _play(inner, model, keep=keep), keep=keep)


async def _play(session: Session, model: str, *, keep: bool) -> None:
    out = session.out
    guide, echo = demo_profiles(model)
    async with session.client() as client, _serving_tool(session):
        await session.await_bridge(client.bridge)
        for tool in tools.definitions():
            await client.bridge.call(verbs.TOOL_PUT, ToolPutRequest(tool=tool))
        for profile in (guide, echo):
            await add_demo_agent(client.bridge, profile)
        if not out.as_json:
            out.line(f"agents guide and echo are in the project {session.project}, with a tool word_count", style="dim")
            out.line(f"\nenqueue guide {QUESTION!r}", style="bold")
        first = await ask_and_follow(session, client, request_of(EnqueueArguments("guide", QUESTION)))
        output_box = (await read_report(session, client, first)).turn.output_box_id
        if not out.as_json:
            out.line("\nenqueue echo, with guide's output box as its context", style="bold")
        question = EnqueueArguments("echo", "Thank you, guide.", context_box_id=output_box)
        second = await ask_and_follow(session, client, request_of(question))
        await _print_reports(session, client, [first, second], keep=keep)


@asynccontextmanager
async def _serving_tool(session: Session) -> AsyncGenerator[None]:
    """Serve the tool over NATS while the block runs, as a separate process would."""
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(
        tools.run(nats_url(session.settings, session.options.data), stop=stop, ready=ready.set)
    )
    up = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, up], return_when=asyncio.FIRST_COMPLETED)
    up.cancel()
    try:
        if serving.done():
            serving.result()
        yield
    finally:
        stop.set()
        await serving


async def _print_reports(session: Session, client: Client, turns: list[AgentTurnId], *, keep: bool) -> None:
    out = session.out
    reports = [await read_report(session, client, turn) for turn in turns]
    links = [link_of(session, turn) for turn in turns]
    if any(report.turn.status != "success" for report in reports):
        session.exit_code = REFUSED
    if out.as_json:
        out.document({"turns": [document_of(report, link) for report, link in zip(reports, links, strict=True)]})
        return
    for report, link in zip(reports, links, strict=True):
        out.line(f"\n{report.turn.agent_id}: {report.turn.status}", style="bold")
        print_deliverable(out, report)
        if isinstance(report, TurnReport):
            print_timeline(out, report)
        if link:
            out.line(f"in Temporal: {link}", style="dim")
    if not keep:
        out.remark("the links work while it is up: `turnstile demo --keep` stays up")
