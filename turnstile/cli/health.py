"""`turnstile health`: whether the worker or bridge of these settings serves, for the health checks of containers."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING

import typer

from turnstile.cli.command import command
from turnstile.cli.errors import REFUSED

if TYPE_CHECKING:
    from turnstile.cli.session import Session


def register(root: typer.Typer) -> None:
    """Add the command to the top level."""
    command(root, "health")(health)


async def health(session: "Session") -> None:
    """Ask what is at [observability].metrics_port whether it serves: exit code 1 if not, 3 if nothing is there."""
    import asyncio
    from ipaddress import ip_address

    from schema.errors import ConfigError, ServerUnavailable
    from turnstile.health import ANSWER_SECONDS, PATH

    told = session.settings.observability
    if not told.metrics_port:
        raise ConfigError("[observability].metrics_port is 0: health is told beside the metrics, so set it for both")
    everywhere = ip_address(told.metrics_host).is_unspecified
    host = "localhost" if everywhere else told.metrics_host
    try:
        async with asyncio.timeout(2 * ANSWER_SECONDS):
            standing = await _ask(host, told.metrics_port, PATH)
    except (OSError, TimeoutError):
        raise ServerUnavailable(f"no answer from a worker or bridge at {host}:{told.metrics_port}") from None
    if session.out.as_json:
        session.out.document({"standing": standing})
    else:
        session.out.line(standing)
    if standing != "serving":
        session.exit_code = REFUSED


async def _ask(host: str, port: int, path: str) -> str:
    """The body of one answer: plain HTTP/1.0, as a client library takes longer to load than to use."""
    import asyncio

    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return (await reader.read()).decode(errors="replace").rpartition("\r\n\r\n")[2].strip()[:40]
    finally:
        writer.close()
