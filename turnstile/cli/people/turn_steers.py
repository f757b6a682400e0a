"""What is typed while a turn runs steers it, and a line is printed when a step reads it (protocol §6, steer)."""

import asyncio
from contextlib import suppress

from turnstile.cli.errors import failure_of
from turnstile.cli.session import Session
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import SteerId, StepId
from turnstile.schema.people.steers import Steer
from turnstile.schema.states import SteerStatus
from turnstile.sdk.chunk_order import step_number
from turnstile.sdk.turn import Turn

_LOOK_SECONDS = 0.5
_SHOWN = 60


class TurnSteers:
    """The steers of one turn while it runs: one request for each line, in the order in which they were typed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        """None at the end of the turn."""
        self._waiting: dict[SteerId, str] = {}
        self.late: list[str] = []
        """What came too late for the turn."""

    async def take(self, text: str) -> None:
        """Say this to the turn, soon."""
        await self._typed.put(text)

    async def close(self) -> None:
        """The turn is over: `run` then returns."""
        await self._typed.put(None)

    async def run(self, turn: Turn) -> None:
        """Send the turn what is typed until its end, and print what becomes of it, or the error."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS if self._waiting else None):
                    text = await self._typed.get()
            except TimeoutError:
                await self._tell(turn)
                continue
            if text is None:
                await self._tell(turn)
                return
            await self._say(turn, text)

    def unsaid(self) -> list[str]:
        """What the turn did not get, as it had ended or was never asked for: the next one may ask it."""
        while not self._typed.empty():
            if (text := self._typed.get_nowait()) is not None:
                self.late.append(text)
        return self.late

    async def _say(self, turn: Turn, text: str) -> None:
        out = self._session.out
        try:
            reply = await turn.steer(text)
        except TurnstileError as error:
            if error.code == "already_final":
                self.late.append(text)
            else:
                out.failure(failure_of(error))
            return
        out.remark("sent to the running turn, whose next step reads it")
        if reply.steer_id is not None:
            self._waiting[reply.steer_id] = text

    async def _tell(self, turn: Turn) -> None:
        """Print which of these are read now, or never; what is not known yet is printed later."""
        if not self._waiting:
            return
        with suppress(TurnstileError):
            for steer in (await turn.describe()).steers or ():
                if steer.status is not SteerStatus.WAITING and (text := self._waiting.pop(steer.steer_id, None)):
                    self._session.out.remark(_told(steer, text))


def _told(steer: Steer, text: str) -> str:
    excerpt = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    if steer.status is SteerStatus.SKIPPED:
        return f"not read, the turn ended first: {excerpt}"
    return f"read by step {step_number(steer.step_id or StepId(''))}: {excerpt}"
