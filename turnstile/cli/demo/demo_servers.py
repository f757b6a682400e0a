"""Runs a demo on its own servers, worker and bridge, by default in a temporary directory.

It never uses the servers that the settings name, since the demo's agents do not belong there. At the end nothing runs.
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
from turnstile.processes.up import Running, StoppedEarly, run_up, unless
from turnstile.schema import verbs
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import Profile
from turnstile.schema.wire.roster_requests import AgentPutRequest, ProfilePutRequest
from turnstile.sdk.client import BridgeClient
from turnstile.settings import DatabaseSettings, GatewaySettings, NatsSettings, Settings, TemporalSettings


async def run_with_own_servers(
    session: Session, settings: Settings, play: Callable[[Session], Coroutine[Any, Any, None]], *, keep: bool
) -> None:
    """Run `play` when all servers are up; with `keep` stay up until stopped. Raises what `play` and `run_up` raise."""
    with _data_directory(session, keep=keep) as data:
        inner = Session(_own_servers(settings), replace(session.options, data=data), session.out)
        up, halt = asyncio.Event(), asyncio.Event()

        def ready(_: Running) -> None:
            up.set()

        session.out.remark(f"starting PostgreSQL, NATS and Temporal in {data}")
        servers = asyncio.create_task(run_up(inner.settings, data, halt, say=session.out.remark, ready=ready))
        try:
            await _first(unless(session.stop, _play_when_up(inner, up, play)), servers)
            if keep:
                session.out.remark("staying up; Ctrl-C stops it. `turnstile console` prints a link to what ran here")
                await _first(session.stop.wait(), servers)
        except StoppedEarly:
            session.exit_code = INTERRUPTED
        finally:
            halt.set()
            await asyncio.wait({servers})
        servers.result()
        session.exit_code = session.exit_code or inner.exit_code


async def add_demo_agent(client: BridgeClient, profile: Profile) -> None:
    """Store the profile and add an agent of the same name, unless an earlier demo on this data added it."""
    await client.call(verbs.PROFILE_PUT, ProfilePutRequest(profile=profile))
    await client.call(verbs.AGENT_PUT, AgentPutRequest(agent_id=AgentId(profile.name), profile_name=profile.name))


async def _play_when_up(
    session: Session, up: asyncio.Event, play: Callable[[Session], Coroutine[Any, Any, None]]
) -> None:
    await up.wait()
    await play(session)


async def _first(work: Coroutine[Any, Any, object], servers: asyncio.Task[None]) -> None:
    """Wait for `work`; cancel it if the servers end first. The caller raises the servers' error."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, servers}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


def _own_servers(settings: Settings) -> Settings:
    """The settings without server addresses, so that embedded servers are used."""
    return settings.model_copy(
        update={
            "database": DatabaseSettings(patience_seconds=settings.database.patience_seconds),
            "nats": NatsSettings(patience_seconds=settings.nats.patience_seconds),
            "temporal": TemporalSettings(),
            "gateway": GatewaySettings(),
        }
    )


@contextmanager
def _data_directory(session: Session, *, keep: bool) -> Generator[Path]:
    """`--data` if given, else with `keep` the default directory, else a temporary one."""
    if session.options.data is not None or keep:
        yield session.options.data or DEFAULT_DATA
        return
    with tempfile.TemporaryDirectory(prefix="turnstile-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "data"
