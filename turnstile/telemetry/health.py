"""`/health` over HTTP: whether this process serves, for health checks of containers and for probes.

It reports on this process only. While a server is away the process is healthy: it waits for the server, and restarting
the process would not help.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal

PATH = "/health"
ANSWER_SECONDS = 2.0
"""An event loop that does not answer for so long is stuck."""

SystemStatus = Literal["starting", "serving", "stuck"]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


class Health:
    """The health of one process: `starting` until `serves` is called, then `serving` while its event loop answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serves = False

    def serves(self) -> None:
        """Call this when the process has reached its servers and begun its work."""
        self._serves = True

    def status(self) -> SystemStatus:
        """The status now; call it from another thread than the loop's. Takes at most `ANSWER_SECONDS`."""
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
        """The application `others` with `/health` added: 200 if the status is `serving`, else 503; body: the status."""

        def application(environment: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            if environment["PATH_INFO"] != PATH:
                return others(environment, respond)
            status = self.status()
            code = "200 OK" if status == "serving" else "503 Service Unavailable"
            respond(code, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{status}\n".encode()]

        return application
