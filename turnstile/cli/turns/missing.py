"""Prints why a turn does not begin, for the command that waits for it: once for each reason."""

import asyncio
from dataclasses import dataclass

from turnstile.cli.errors import NoBridge
from turnstile.cli.session import Session
from turnstile.schema.amounts import amount
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.states import HeadStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.turn import Turn
from turnstile.transport.connection import connect
from turnstile.transport.stream_probe import answers

CHECK_SECONDS = 3.0
_ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class Missing:
    """What one turn lacks; with `gives_up` it raises `NoBridge` if no bridge answers for long."""

    session: Session
    gives_up: bool = False
    _no_bridge_since: float | None = None
    _printed: str = ""

    async def watch(self, turn: Turn) -> None:
        """Look every `CHECK_SECONDS`, until cancelled, whether the turn has begun and a bridge answers."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                view = await turn.describe()
            except ServerUnavailable:
                self.show(None, bridge=False)
                continue
            except TurnstileError:
                return
            if has_begun(view):
                self._printed = ""
            else:
                self.show(view, bridge=True)

    def show(self, view: TurnView | None, *, bridge: bool | None) -> None:
        """Print what is missing, unless that was printed last; `bridge`: whether one answers, None if unknown.

        Raises `NoBridge` after `[nats].patience_seconds` without a bridge, if it gives up.
        """
        if bridge is False:
            now = asyncio.get_running_loop().time()
            self._no_bridge_since = now if self._no_bridge_since is None else self._no_bridge_since
            patience = self.session.settings.nats.patience_seconds
            if self.gives_up and now - self._no_bridge_since >= patience:
                turn = "" if view is None else f" {view.agent_turn_id}"
                raise NoBridge(
                    f"no bridge has answered for {amount(patience)} s: turn{turn} is kept, and runs once one does"
                )
            until = f"; this command waits {amount(patience)} s for one" if self.gives_up else ""
            self._print(f"no bridge answers: start `turnstile bridge` or `turnstile up`{until}")
            return
        self._no_bridge_since = None
        if view is not None and view.unserved_target:
            self._print(f"no worker serves {view.unserved_target}: start `turnstile worker` or `turnstile up`")
        elif bridge is None:
            self._print("NATS does not answer, so whether a bridge runs is not known")
        elif view is not None and view.queued_because == "agent_paused":
            self._print(f"agent {view.agent_id} is paused: `turnstile agent resume {view.agent_id}` lets it continue")
        elif view is not None and view.status == "queued":
            self._print(f"agent {view.agent_id} has other turns first")

    def _print(self, what: str) -> None:
        if what != self._printed:
            self.session.out.remark(f"waiting: {what}")
            self._printed = what


def has_begun(view: TurnView) -> bool:
    """Whether the turn has begun, or is over."""
    return view.ended_at is not None or view.status not in (HeadStatus.DISPATCHED, "queued")


async def bridge_answers(session: Session) -> bool | None:
    """Whether a bridge answers; None if NATS cannot be reached."""
    try:
        url = session.nats_url()
        async with asyncio.timeout(_ANSWER_SECONDS):
            conn = await connect(url, name="turnstile cli", on_wait=lambda _: None)
        try:
            subject = subjects.bridge_request(session.project, session.channel, "describe")
            return await answers(conn, subject, timeout=_ANSWER_SECONDS)
        finally:
            await conn.close()
    except (TurnstileError, TimeoutError):
        return None
