"""`turnstile demo`: everything on a fresh machine, without a key or a network, and nothing left running.

It always starts its own servers and never touches those that the settings name: its agents do not belong there.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.tool_service import ToolService
from ledger.pool import Pool
from ledger.roster import add_agent, list_agents, put_profile, put_tool
from schema.ids import AgentId, AgentTurnId
from schema.profiles import LlmConfig, Profile
from turnstile.cli.asking import Question, ask_and_follow, request_of
from turnstile.cli.errors import INTERRUPTED, REFUSED
from turnstile.cli.session import Session
from turnstile.cli.turn_report import document_of, link_of, print_deliverable, print_timeline, read_report
from turnstile.embedded import DEFAULT_DATA
from turnstile.settings import DatabaseSettings, NatsSettings, Settings, TemporalSettings
from turnstile.up import Running, Stopped, run_up, unless
from turnstile.wiring import nats_url

DEFAULT_MODEL = "scripted/demo"
QUESTION = "What happens when I ask you something?"


def demo_profiles(model: str = DEFAULT_MODEL) -> tuple[Profile, Profile]:
    """The two profiles of `examples/profiles/`; both ask `model` unless it is the default."""
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
    """Run it; with `keep` stay up until told to stop. Raises what `run_up` raises."""
    with _data_directory(session, keep=keep) as data:
        inner = Session(_own_servers(session.settings), replace(session.options, data=data), session.out)
        up = asyncio.Event()
        halt = asyncio.Event()

        def ready(_: Running) -> None:
            up.set()

        session.out.remark(f"starting PostgreSQL, NATS and Temporal in {data}")
        servers = asyncio.create_task(run_up(inner.settings, data, halt, say=session.out.remark, ready=ready))
        try:
            await _first(unless(session.stop, _tell(inner, up, model, keep=keep)), servers)
            if keep:
                session.out.remark("staying up; Ctrl-C stops it")
                await _first(session.stop.wait(), servers)
        except Stopped:
            session.exit_code = INTERRUPTED
        finally:
            halt.set()
            await asyncio.wait({servers})
        servers.result()
        session.exit_code = session.exit_code or inner.exit_code


async def _first(work: Coroutine[Any, Any, object], servers: asyncio.Task[None]) -> None:
    """Wait for `work`; give it up if the servers end first, whose error is then raised by the caller."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, servers}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _tell(session: Session, up: asyncio.Event, model: str, *, keep: bool) -> None:
    await up.wait()
    out = session.out
    guide, echo = demo_profiles(model)
    async with session.ledger() as pool, _serving(session):
        for tool in tools.definitions():
            await put_tool(pool, session.project, tool)
        for profile in (guide, echo):
            await _add(session, pool, profile)
        if not out.as_json:
            out.line(f"agents guide and echo are in the project {session.project}, with a tool word_count", style="dim")
            out.line(f"\nenqueue guide {QUESTION!r}", style="bold")
        first = await ask_and_follow(session, pool, request_of(Question("guide", QUESTION)))
        output_box = (await read_report(pool, session, first)).turn.output_box_id
        if not out.as_json:
            out.line("\nenqueue echo, with guide's output box as its context", style="bold")
        question = Question("echo", "Thank you, guide.", context_box_id=output_box)
        second = await ask_and_follow(session, pool, request_of(question))
        await _report(session, pool, [first, second], keep=keep)


@asynccontextmanager
async def _serving(session: Session) -> AsyncGenerator[None]:
    """The tool, answering calls on NATS as one in a process of its own would."""
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


async def _add(session: Session, pool: Pool, profile: Profile) -> None:
    """The profile and an agent of its name; what an earlier demo on this data left is used again."""
    await put_profile(pool, session.project, profile)
    agent = AgentId(profile.name)
    if all(row.agent_id != agent for row in await list_agents(pool, session.project)):
        await add_agent(pool, session.project, agent, profile.name)


async def _report(session: Session, pool: Pool, turns: list[AgentTurnId], *, keep: bool) -> None:
    out = session.out
    reports = [await read_report(pool, session, turn) for turn in turns]
    links = [link_of(session, turn) for turn in turns]
    if any(report.turn.status != "success" for report in reports):
        session.exit_code = REFUSED
    if out.as_json:
        out.document({"turns": [document_of(report, link) for report, link in zip(reports, links, strict=True)]})
        return
    for report, link in zip(reports, links, strict=True):
        out.line(f"\n{report.turn.agent_id}: {report.turn.status}", style="bold")
        print_deliverable(out, report)
        print_timeline(out, report)
        if link:
            out.line(f"in Temporal: {link}", style="dim")
    if not keep:
        out.remark("the links work while it is up: `turnstile demo --keep` stays up")


def _own_servers(settings: Settings) -> Settings:
    """The settings without the addresses of other servers, serving the target of the demo's profiles."""
    target = demo_profiles()[0].worker_target
    return settings.model_copy(
        update={
            "database": DatabaseSettings(patience_seconds=settings.database.patience_seconds),
            "nats": NatsSettings(patience_seconds=settings.nats.patience_seconds),
            "temporal": TemporalSettings(),
            "worker": settings.worker.model_copy(update={"worker_targets": [target]}),
        }
    )


@contextmanager
def _data_directory(session: Session, *, keep: bool) -> Generator[Path]:
    """`--data`, else the usual one with `keep`, else one that is removed."""
    if session.options.data is not None or keep:
        yield session.options.data or DEFAULT_DATA
        return
    with tempfile.TemporaryDirectory(prefix="turnstile-demo-") as directory:
        yield Path(directory) / "data"
