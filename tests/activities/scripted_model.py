"""Requests and streams for the tests of models."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from turnstile.runtime.ports import ModelEvent, ModelMessage, ModelRequest
from turnstile.schema.profiles import LlmConfig


def request(model: str = "scripted/x", said: str = "hello there", *, step: int = 1, attempt: int = 1) -> ModelRequest:
    """A request that ends with what the user said."""
    messages = (ModelMessage(role="system", content="be good"), ModelMessage(role="user", content=said))
    return ModelRequest(LlmConfig(model=model), messages, (), step, attempt, timeout_seconds=5)


class Stream:
    """A stream of given events, the last of them followed by a silence if `hangs`; knows whether it was closed."""

    def __init__(self, events: Sequence[ModelEvent], *, hangs: bool = False) -> None:
        self._events = events
        self._hangs = hangs
        self.reached = asyncio.Event()
        """Set when all events are out."""
        self.closed = False

    async def __call__(self) -> AsyncGenerator[ModelEvent, None]:
        try:
            for event in self._events:
                yield event
            self.reached.set()
            if self._hangs:
                await asyncio.Event().wait()
        finally:
            self.closed = True
