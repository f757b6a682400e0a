"""Which of the calls of one connection asks, where a server's question does not say it (protocol §17.1).

A session on stdin and stdout, or over HTTP+SSE, carries questions beside the calls. There calls of tools that have
asked run one after the other, and so do those of tools of which no call has ended yet, unless the others just wait for
people. Tools that have never asked run beside them. A question waits until only one call is left that may be its own;
meanwhile none begins. It is refused where that cannot be known, and never comes to another call.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

Asker = TypeVar("Asker")
Waiting = Callable[[], AbstractContextManager[None]]
"""Around the time that a call waits for others, which is not its own."""


@dataclass(eq=False, slots=True)
class RunningCall(Generic[Asker]):
    """A call of a tool."""

    tool: str
    asker: Asker
    """Asks people for it."""
    questions: int = 0
    open_questions: int = 0
    """Those that people have not answered yet."""


class QuestionOwners(Generic[Asker]):
    """The calls that run on a connection."""

    def __init__(self) -> None:
        self.names_calls = True
        """Whether a question comes in the context of its call's request."""
        self._context: ContextVar[RunningCall[Asker] | None] = ContextVar("turnstile_mcp_call", default=None)
        self._running: set[RunningCall[Asker]] = set()
        self._quiet: set[str] = set()
        """Tools a call of which has ended and that have never asked."""
        self._asking: set[str] = set()
        """Tools that have asked."""
        self._moved = asyncio.Condition()
        self._held = 0
        self._lost = 0
        """Calls that ended while a question was held, and not by the server's answer."""

    @asynccontextmanager
    async def running(
        self, tool: str, asker: Asker, waiting: Waiting = nullcontext
    ) -> AsyncGenerator[RunningCall[Asker]]:
        """A call, once it may run; questions that come in its context are its own."""
        call = RunningCall(tool, asker)
        with waiting():
            async with self._moved:
                await self._moved.wait_for(lambda: self._may_begin(tool))
                self._running.add(call)
        entered = self._context.set(call)
        answered = False
        try:
            yield call
            answered = True
        finally:
            self._context.reset(entered)
            self._running.discard(call)
            if self._held and not answered:
                self._lost += 1
            if answered and tool not in self._asking:
                self._quiet.add(tool)
            await asyncio.shield(self._notify())

    @asynccontextmanager
    async def asking(self, call: RunningCall[Asker]) -> AsyncGenerator[None]:
        """Around a question of a call to a person."""
        call.questions += 1
        call.open_questions += 1
        await self._notify()
        try:
            yield
        finally:
            call.open_questions -= 1

    async def owner(self) -> RunningCall[Asker] | None:
        """The call that a question belongs to; None if that cannot be known."""
        call = self._context.get()
        if call not in self._running:
            self.names_calls = False
            call = await self._left_alone()
        may_be_it = self._running if call is None else {call}
        self._asking |= {call.tool for call in may_be_it}
        self._quiet -= self._asking
        return call

    def _may_begin(self, tool: str) -> bool:
        if self._held:
            return False
        if self.names_calls or tool in self._quiet:
            return True
        others = [c for c in self._running if c.tool not in self._quiet]
        return not others if tool in self._asking else all(c.open_questions for c in others)

    async def _left_alone(self) -> RunningCall[Asker] | None:
        lost = self._lost
        async with self._moved:
            self._held += 1
            try:
                # as many questions as calls: none of them would end
                await self._moved.wait_for(lambda: len(self._running) < 2 or self._held >= len(self._running))
                if len(self._running) != 1 or self._lost != lost:
                    return None
                return next(iter(self._running))
            finally:
                self._held -= 1
                self._moved.notify_all()

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()
