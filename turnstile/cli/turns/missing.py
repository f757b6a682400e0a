"""What a turn waits for that does not begin: told by the command that waits for it.

Asked some seconds after the turn, and now and then until it begins: whether a bridge answers, which claims it,
and whether a worker serves its agent's target, which runs it. A turn that has begun needs none of this.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnstile.cli.errors import NoBridge
from turnstile.cli.session import Session
from turnstile.ledger.operations.sweep import is_served
from turnstile.processes import addresses
from turnstile.schema.errors import TurnstileError
from turnstile.schema.states import HeadStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.transport.connection import connect
from turnstile.transport.stream_probe import answers

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

_LOOK_SECONDS = 3.0
_ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class Missing:
    """Looks at one turn that is waited for; with `gives_up` a bridge that is missing for long ends the waiting."""

    session: Session
    pool: "Pool"
    gives_up: bool = False
    _next: float = 0.0
    _alone_since: float | None = None
    _told: str = field(default="")

    async def look(self, view: TurnView) -> None:
        """Say what is missing, once; raises `NoBridge` after `[nats].patience_seconds` without one."""
        now = asyncio.get_running_loop().time()
        if view.ended_at is not None or view.status not in (HeadStatus.DISPATCHED, "queued"):
            self._alone_since = None
            return
        self._next = self._next or now + _LOOK_SECONDS
        if now < self._next:
            return
        bridge = await self._bridge_answers()
        turn = view.agent_turn_id
        if bridge is False:
            self._alone_since = now if self._alone_since is None else self._alone_since
            patience = self.session.settings.nats.patience_seconds
            if self.gives_up and now - self._alone_since >= patience:
                raise NoBridge(
                    f"no bridge has answered for {patience:g} s: turn {turn} is kept, and runs once one does"
                )
            until = f"; this command waits {patience:g} s for one" if self.gives_up else ""
            self._tell(f"no bridge answers: start `turnstile bridge` or `turnstile up`{until}")
        else:
            self._alone_since = None
            if target := await self._unserved(view):
                self._tell(f"no worker serves {target}: start `turnstile worker` or `turnstile up`")
            elif bridge is None:
                self._tell("NATS does not answer, so whether a bridge runs is not known")
            elif view.status == "queued":
                self._tell(f"agent {view.agent_id} has other turns first")
        self._next = asyncio.get_running_loop().time() + _LOOK_SECONDS

    def _tell(self, what: str) -> None:
        if what != self._told:
            self.session.out.remark(f"waiting: {what}")
            self._told = what

    async def _bridge_answers(self) -> bool | None:
        """None where NATS cannot be asked."""
        try:
            url = addresses.nats_url(self.session.settings, self.session.options.data)
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
        """The target of its agent, if no worker serves it."""
        from turnstile.ledger.turns.roster import list_agents  # noqa: PLC0415 -- needs the extra [server]

        agents = await list_agents(self.pool, view.project_id)
        target = next((each.worker_target for each in agents if each.agent_id == view.agent_id), None)
        if target is None or await self.pool.run(lambda conn: is_served(conn, target)):
            return ""
        return target
