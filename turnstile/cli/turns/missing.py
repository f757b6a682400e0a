"""Finds out why a turn does not begin, for the command that waits for it.

Every `_CHECK_SECONDS` until the turn begins it checks whether a bridge answers, which would claim the turn, and whether
a worker serves the agent's target, which would run it.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnstile.cli.errors import NoBridge
from turnstile.cli.session import Session
from turnstile.schema.amounts import amount
from turnstile.schema.errors import TurnstileError
from turnstile.schema.states import HeadStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.transport.connection import connect
from turnstile.transport.stream_probe import answers

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

_CHECK_SECONDS = 3.0
_ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class Missing:
    """Checks why one turn does not begin; with `gives_up` it raises if no bridge answers for long."""

    session: Session
    pool: "Pool"
    gives_up: bool = False
    _next: float = 0.0
    _no_bridge_since: float | None = None
    _printed: str = field(default="")

    async def check(self, view: TurnView) -> None:
        """Print what is missing, once; raises `NoBridge` after `[nats].patience_seconds` without a bridge."""
        now = asyncio.get_running_loop().time()
        if view.ended_at is not None or view.status not in (HeadStatus.DISPATCHED, "queued"):
            self._no_bridge_since = None
            return
        self._next = self._next or now + _CHECK_SECONDS
        if now < self._next:
            return
        bridge = await self._bridge_answers()
        turn = view.agent_turn_id
        if bridge is False:
            self._no_bridge_since = now if self._no_bridge_since is None else self._no_bridge_since
            patience = self.session.settings.nats.patience_seconds
            if self.gives_up and now - self._no_bridge_since >= patience:
                raise NoBridge(
                    f"no bridge has answered for {amount(patience)} s: turn {turn} is kept, and runs once one does"
                )
            until = f"; this command waits {amount(patience)} s for one" if self.gives_up else ""
            self._print_new(f"no bridge answers: start `turnstile bridge` or `turnstile up`{until}")
        else:
            self._no_bridge_since = None
            if target := await self._unserved(view):
                self._print_new(f"no worker serves {target}: start `turnstile worker` or `turnstile up`")
            elif bridge is None:
                self._print_new("NATS does not answer, so whether a bridge runs is not known")
            elif view.status == "queued":
                self._print_new(f"agent {view.agent_id} has other turns first")
        self._next = asyncio.get_running_loop().time() + _CHECK_SECONDS

    def _print_new(self, what: str) -> None:
        if what != self._printed:
            self.session.out.remark(f"waiting: {what}")
            self._printed = what

    async def _bridge_answers(self) -> bool | None:
        """Whether a bridge answers; None if NATS cannot be reached."""
        try:
            url = self.session.nats_url()
            async with asyncio.timeout(_ANSWER_SECONDS):
                conn = await connect(url, name="turnstile cli", on_wait=lambda _: None)
            try:
                subject = subjects.bridge_request(self.session.project, self.session.channel, "describe")
                return await answers(conn, subject, timeout=_ANSWER_SECONDS)
            finally:
                await conn.close()
        except (TurnstileError, TimeoutError):
            return None

    async def _unserved(self, view: TurnView) -> str:
        """The worker target of the turn's agent if no worker serves it, else an empty string."""
        from turnstile.ledger.operations.sweep import is_served  # noqa: PLC0415 -- needs the extra [server]
        from turnstile.ledger.roster import list_agents  # noqa: PLC0415 -- needs the extra [server]

        agents = await list_agents(self.pool, view.project_id)
        target = next((agent.worker_target for agent in agents if agent.agent_id == view.agent_id), None)
        if target is None or await self.pool.run(lambda conn: is_served(conn, target)):
            return ""
        return target
