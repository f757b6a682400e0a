"""Prints the addresses of a running `turnstile up`, and the report of `migrate`. Passwords are left out."""

from dataclasses import asdict
from pathlib import Path

from pydantic import JsonValue

from turnstile.cli.output import Output
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.processes.addresses import without_password
from turnstile.processes.migration import MigrationReport
from turnstile.processes.up import Running
from turnstile.settings import Settings

_FEW = 10


def print_addresses(out: Output, settings: Settings, data: Path, running: Running) -> None:
    """Print the servers' addresses, the data directory, and commands to try next."""
    endpoints = running.endpoints
    addresses: dict[str, JsonValue] = {
        "database": without_password(endpoints.database_url),
        "nats": ", ".join(without_password(url) for url in endpoints.nats_url.split(",")),
        "temporal": f"{endpoints.temporal_address}, namespace {endpoints.temporal_namespace}",
        "web_ui": settings.temporal.web_ui_url or endpoints.web_ui_url,
        "gateway": endpoints.gateway_url,
        "console": None if endpoints.gateway_url is None else OneTimeLinks(data).link(endpoints.gateway_url),
        "data": str(data.absolute()),
    }
    if out.as_json:
        addresses["embedded"] = [*running.embedded]
        addresses["worker_targets"] = [*settings.worker.worker_targets]
        out.json_line(addresses)
        return
    names = {
        "database": "PostgreSQL",
        "nats": "NATS",
        "temporal": "Temporal",
        "web_ui": "Web UI",
        "gateway": "HTTP",
        "data": "data",
    }
    facts = {names[name]: address for name, address in addresses.items() if name in names}
    facts["passwords"] = str(data.absolute() / "endpoints.json")
    facts["token"] = f"{data.absolute() / 'token'}, for HTTP"
    facts["serves"] = ", ".join(settings.worker.worker_targets)
    out.facts("turnstile is up", facts)
    if (link := addresses["console"]) is not None:
        out.line(f"console: {link}")  # whole, however narrow the terminal is
        out.remark("The link signs in one browser, once, within 10 minutes; `turnstile console` prints another.")
    out.remark("Ctrl-C stops it. In another terminal, in this directory:")
    out.remark("  turnstile profile put FILE; turnstile agent add ID --profile NAME; turnstile enqueue ID TEXT --wait")


def _applied(files: list[str]) -> str:
    """The files by name; of many, how many."""
    return f"{len(files)} files" if len(files) > _FEW else ", ".join(files) or "was up to date"


def print_migration(out: Output, report: MigrationReport) -> None:
    """Print what was applied to the ledger's schema and what was declared."""
    if out.as_json:
        out.document(asdict(report))
        return
    facts = {
        "schema applied": _applied(report.schema_files),
        "streams": ", ".join(report.streams),
        "consumers": ", ".join(report.consumers),
        "search attributes": ", ".join(report.search_attributes),
        "rights given to": ", ".join(report.roles) or "no roles are named in [database]",
    }
    out.facts("migrated", facts)
