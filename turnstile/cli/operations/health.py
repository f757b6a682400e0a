"""`turnstile health`: whether what runs here serves: by the data directory, or by the settings as in containers."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING

import typer

from turnstile.cli.command import command
from turnstile.cli.errors import REFUSED

if TYPE_CHECKING:
    from pydantic import JsonValue

    from turnstile.cli.session import Session


def register(root: typer.Typer) -> None:
    """Add the command to the top level."""
    command(root, "health")(health)


async def health(session: "Session") -> None:
    """Ask the processes of the data directory, or what is at [observability].metrics_port, whether they serve.

    Exit code 1 if one does not, 3 if nothing is there.
    """
    from ipaddress import ip_address

    from turnstile.embedded.ports import LOOPBACK
    from turnstile.schema.errors import ServerUnavailable

    told = session.settings.observability
    if not told.metrics_port:
        await _ask_here(session, LOOPBACK)
        return
    everywhere = ip_address(told.metrics_host).is_unspecified
    host = "localhost" if everywhere else told.metrics_host
    standing = await _standing(host, told.metrics_port)
    if standing is None:
        raise ServerUnavailable(f"no answer from a worker or bridge at {host}:{told.metrics_port}")
    if session.out.as_json:
        session.out.document({"standing": standing})
    else:
        session.out.line(standing)
    if standing != "serving":
        session.exit_code = REFUSED


async def _ask_here(session: "Session", host: str) -> None:
    """The processes that the data directory names; the standing of all is that of the worst."""
    import asyncio

    from turnstile.schema.errors import ServerUnavailable
    from turnstile.telemetry.health_file import find_health_files

    found = find_health_files(session.options.data)
    if not found:
        where = f"in {session.options.data}" if session.options.data else "here"
        raise ServerUnavailable(
            f"no worker, bridge or `turnstile up` runs {where}; one with servers of its own tells its health at "
            "[observability].metrics_port"
        )
    told = [each or "stuck" for each in await asyncio.gather(*(_standing(host, each.port) for each in found))]
    worst = next((each for each in told if each != "serving"), "serving")
    if session.out.as_json:
        listed: list[JsonValue] = [
            {"role": each.role, "pid": each.pid, "standing": standing}
            for each, standing in zip(found, told, strict=True)
        ]
        session.out.document({"standing": worst, "processes": listed})
    else:
        for each, standing in zip(found, told, strict=True):
            session.out.line(f"{each.role} (process {each.pid}): {standing}")
    if worst != "serving":
        session.exit_code = REFUSED


async def _standing(host: str, port: int) -> str | None:
    """What is told there; None if nothing is."""
    import asyncio

    from turnstile.telemetry.health import ANSWER_SECONDS, PATH

    try:
        async with asyncio.timeout(2 * ANSWER_SECONDS):
            return await _ask(host, port, PATH)
    except (OSError, TimeoutError):
        return None


async def _ask(host: str, port: int, path: str) -> str:
    """The body of one answer: plain HTTP/1.0, as a client library takes longer to load than to use."""
    import asyncio

    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return (await reader.read()).decode(errors="replace").rpartition("\r\n\r\n")[2].strip()[:40]
    finally:
        writer.close()
