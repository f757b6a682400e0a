"""Asks a bridge for children of a call, or a person, until it says what they came to (protocol §12, §13).

Every request is idempotent by the call and its key, so it is simply repeated: while the children run or nobody has
answered, while no bridge or no database is there, and by another replica that runs the call again. A bridge that fails
by itself is asked `FAILURES` times. Costs one request per pause, which grows from 0.1 to 2 s. The time of the run
stands still while a person is asked.
"""

import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext

from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.requests import DelegateRequest
from turnstile.schema.errors import ServerUnavailable
from turnstile.sdk.tools.commands import BridgeFailed, CallClient, CallCommand
from turnstile.sdk.tools.function_run import RunTime
from turnstile.transport.limited_log import LimitedLog

FAILURES = 8
_PAUSE_SECONDS = 0.1, 2.0

logger = logging.getLogger(__name__)


class Questions:
    """What one run of a call asks."""

    def __init__(self, calls: CallClient, command: CallCommand, time: RunTime) -> None:
        self._calls = calls
        self._command = command
        self._time = time
        self._log = LimitedLog(logger)

    async def __call__(self, request: DelegateRequest) -> JsonObject:
        """What it came to; raises `Refused` if nobody is asked, `BridgeFailed` if a bridge keeps failing."""
        with self._time.standing_still() if request.tool == "ask_human" else nullcontext():
            return await self._answer(request)

    def standing_still(self) -> AbstractContextManager[None]:
        """Around what is not the call's own time."""
        return self._time.standing_still()

    async def waits(self) -> bool:
        """Whether the call still waits for its result; True if no bridge can say."""
        return await self._calls.waits(self._command)

    async def _answer(self, request: DelegateRequest) -> JsonObject:
        pause, longest = _PAUSE_SECONDS
        failures = 0
        while True:
            try:
                answer = await self._calls.delegate(self._command, request)
            except ServerUnavailable as error:
                self._log.warning("delegate", "a tool waits for a bridge: %s", error)
            except BridgeFailed as error:
                failures += 1
                if failures == FAILURES:
                    raise
                self._log.warning("delegate", "a bridge failed, and is asked again: %s", error)
            else:
                if answer is not None:
                    return answer
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)
