"""Exclusive targets (protocol §8): taken when they are free, served while the lock is held, given up when it is lost.

Bridges and workers hold locks of their own, so that a target's bridge and its worker may be different processes. The
lock keeps two processes from serving one target; the CAS gate ensures that each turn ends once, with or without it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from turnstile.ledger.operations.exclusive import LOCK_TIMES, ExclusiveLock, LockTaken, try_hold
from turnstile.runtime.waiting import await_first
from turnstile.schema.errors import ServerUnavailable, TargetHeld

log = logging.getLogger(__name__)
Serve = Callable[[asyncio.Event], Awaitable[None]]
"""Serves a target until the event is set; when it returns, it has stopped serving."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ExclusiveTarget:
    """How this process takes exclusive targets: the database that holds the locks, and the name of this process."""

    database_url: str
    instance: str
    standby: bool = True
    """Wait while another process has the target; if False, raise `TargetHeld`."""

    async def serve(
        self, role: Literal["bridge", "worker"], worker_target: str, stop: asyncio.Event, serve: Serve
    ) -> None:
        """Run `serve` while this process holds the target's lock, until `stop`.

        Raises `TargetHeld` if another process has it and this is no standby, `ConfigError` behind a pooler that keeps
        no session, and what `serve` raises.
        """
        lock, who = f"turnstile.{role}/{worker_target}", f"{role} of {worker_target}"
        logged = ""
        while not stop.is_set():
            try:
                async with try_hold(self.database_url, lock, self.instance) as hold:
                    log.info("%s: taken, to be served in %g s", who, LOCK_TIMES.settle)
                    await _while_held(hold, stop, serve, who)
                logged = ""
            except LockTaken as held:
                if not self.standby:
                    raise TargetHeld(f"{worker_target} belongs to one {role}, and {held.holder} has it") from None
                if logged != held.holder:
                    logged = held.holder
                    log.warning("%s: %s has it: standing by", who, logged)
            except ServerUnavailable as error:
                if logged != str(error):
                    logged = str(error)
                    log.warning("%s: waiting for its lock: %s", who, error)
            await await_first(stop, seconds=_LOOK_SECONDS)


async def _while_held(hold: ExclusiveLock, stop: asyncio.Event, serve: Serve, who: str) -> None:
    await await_first(stop, hold.lost, seconds=LOCK_TIMES.settle)
    if not stop.is_set() and not hold.lost.is_set():
        log.info("%s: served here", who)
        await _serve(hold, stop, serve)
    if hold.lost.is_set():
        log.error("%s: no longer served here: %s", who, hold.why)


async def _serve(hold: ExclusiveLock, stop: asyncio.Event, serve: Serve) -> None:
    """Run `serve` until `stop`, the loss of the lock, or its own end; the lock is kept until it has returned."""
    ending = asyncio.Event()
    serving = asyncio.ensure_future(serve(ending))
    waiting = asyncio.create_task(await_first(stop, hold.lost))
    try:
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        ending.set()
        await serving
    finally:
        for task in (serving, waiting):
            task.cancel()
        await asyncio.wait([serving, waiting])
