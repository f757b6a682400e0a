"""Where a demo plays: its own servers with worker and bridge, in a directory that goes with it.

It never touches the servers that the settings name: what a demo makes does not belong there. Nothing is left running.
"""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnstile.cli.errors import INTERRUPTED
from turnstile.cli.session import Session
from turnstile.embedded import DEFAULT_DATA
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.roster import add_agent, list_agents, put_profile
from turnstile.processes.up import Running, Stopped, run_up, unless
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import Profile
from turnstile.settings import DatabaseSettings, NatsSettings, Settings, TemporalSettings


async def run_staged(
    session: Session, settings: Settings, play: Callable[[Session], Coroutine[Any, Any, None]], *, keep: bool
) -> None:
    """Run `play` once all is up; with `keep` stay up until told to stop. Raises what it and `run_up` raise."""
    with _data_directory(session, keep=keep) as data:
        inner = Session(_own_servers(settings), replace(session.options, data=data), session.out)
        up, halt = asyncio.Event(), asyncio.Event()

        def ready(_: Running) -> None:
            up.set()

        session.out.remark(f"starting PostgreSQL, NATS and Temporal in {data}")
        servers = asyncio.create_task(run_up(inner.settings, data, halt, say=session.out.remark, ready=ready))
        try:
            await _first(unless(session.stop, _played(inner, up, play)), servers)
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


async def hire(session: Session, pool: Pool, profile: Profile) -> None:
    """The profile and an agent of its name; what an earlier demo on this data left is used again."""
    await put_profile(pool, session.project, profile)
    agent = AgentId(profile.name)
    if all(row.agent_id != agent for row in await list_agents(pool, session.project)):
        await add_agent(pool, session.project, agent, profile.name)


async def _played(session: Session, up: asyncio.Event, play: Callable[[Session], Coroutine[Any, Any, None]]) -> None:
    await up.wait()
    await play(session)


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


def _own_servers(settings: Settings) -> Settings:
    """The settings without the addresses of other servers."""
    return settings.model_copy(
        update={
            "database": DatabaseSettings(patience_seconds=settings.database.patience_seconds),
            "nats": NatsSettings(patience_seconds=settings.nats.patience_seconds),
            "temporal": TemporalSettings(),
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
