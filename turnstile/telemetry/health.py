"""Whether this process serves, told over HTTP beside its metrics: for health checks of containers and probes.

It speaks of this process alone: a server that is away is waited for, and a restart would not bring it back.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal

PATH = "/health"
ANSWER_SECONDS = 2.0
"""How long the event loop may take before it counts as stuck."""

SystemStatus = Literal["starting", "serving", "stuck"]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


class Health:
    """One process: it is starting until `serves` is called, then serving as long as its event loop answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serves = False

    def serves(self) -> None:
        """Its servers have answered, and its work has begun."""
        self._serves = True

    def standing(self) -> SystemStatus:
        """Now; asked in another thread than the loop's, at most `ANSWER_SECONDS`."""
        if not self._serves:
            return "starting"
        answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            answer.result(ANSWER_SECONDS)
        except TimeoutError:
            answer.cancel()
            return "stuck"
        return "serving"

    def beside(self, others: Application) -> Application:
        """`others`, with `/health` added: 200 and `serving`, else 503 and the word."""

        def application(environment: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            if environment["PATH_INFO"] != PATH:
                return others(environment, respond)
            standing = self.standing()
            status = "200 OK" if standing == "serving" else "503 Service Unavailable"
            respond(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{standing}\n".encode()]

        return application
