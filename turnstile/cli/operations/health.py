"""`turnstile health`: whether the processes of a data directory serve, or in a container the one of the settings."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING

from turnstile.cli.errors import REFUSED

if TYPE_CHECKING:
    from pydantic import JsonValue

    from turnstile.cli.session import Session


async def health(session: "Session") -> None:
    """Check whether the processes of the data directory, or the one at the settings' metrics_port, are serving.

    Exit code 1 if one is not serving, 3 if none runs.
    """
    from ipaddress import ip_address

    from turnstile.embedded.ports import LOOPBACK
    from turnstile.schema.errors import ServerUnavailable
    from turnstile.telemetry.health import fetch_status

    section = session.settings.observability
    if not section.metrics_port:
        await _print_data_directory(session, LOOPBACK)
        return
    everywhere = ip_address(section.metrics_host).is_unspecified
    host = "localhost" if everywhere else section.metrics_host
    status = await fetch_status(host, section.metrics_port)
    if status is None:
        raise ServerUnavailable(f"no answer from a worker or bridge at {host}:{section.metrics_port}")
    session.out.result({"standing": status}, status)
    if status != "serving":
        session.exit_code = REFUSED


async def _print_data_directory(session: "Session", host: str) -> None:
    """Print the status of each process of the data directory; the overall status is that of the worst."""
    import asyncio

    from turnstile.schema.errors import ServerUnavailable
    from turnstile.telemetry.health import fetch_status, find_health_files

    files = find_health_files(session.options.data)
    if not files:
        where = f"in {session.options.data}" if session.options.data else "here"
        raise ServerUnavailable(
            f"no worker, bridge or `turnstile up` runs {where}; a process without a data directory serves its health "
            "at [observability].metrics_port"
        )
    statuses = [file or "stuck" for file in await asyncio.gather(*(fetch_status(host, file.port) for file in files))]
    worst = next((s for s in statuses if s != "serving"), "serving")
    if session.out.as_json:
        listed: list[JsonValue] = [
            {"role": file.role, "pid": file.pid, "standing": status}
            for file, status in zip(files, statuses, strict=True)
        ]
        session.out.document({"standing": worst, "processes": listed})
    else:
        for file, status in zip(files, statuses, strict=True):
            session.out.line(f"{file.role} (process {file.pid}): {status}")
    if worst != "serving":
        session.exit_code = REFUSED
