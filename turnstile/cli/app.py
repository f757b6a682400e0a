"""`turnstile`: the commands by name, and the errors of the command line itself."""

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from turnstile.cli.access import consoles, tokens, webhooks
from turnstile.cli.budgets import budget_commands
from turnstile.cli.command import command
from turnstile.cli.conversations import conversation_commands, deletions
from turnstile.cli.errors import INTERRUPTED, USAGE, Failure
from turnstile.cli.files import file_commands
from turnstile.cli.mcp import mcp_servers
from turnstile.cli.models import local_models
from turnstile.cli.operations import (
    audit,
    doctor,
    documents,
    health,
    projects,
    retention,
    safety,
    schemas,
    top,
    usage,
    versions,
)
from turnstile.cli.people import approval_commands
from turnstile.cli.processes import servers
from turnstile.cli.roster import agents, profiles, schedule_commands, tools
from turnstile.cli.threads import listeners, thread_commands
from turnstile.cli.turns import boxes, inbox, turn_commands, watch
from turnstile.runtime.release import release

_HELP = """Run turns of LLM agents so that none is lost, on PostgreSQL, NATS and Temporal.

Commands use the servers that config.toml names, else those of a `turnstile up` in this directory or one above it.
With TURNSTILE_URL=https://… and TURNSTILE_TOKEN the commands enqueue, chat, watch, approvals, budget, file and turn
show, stop and tree use that gateway instead.
"""

app = typer.Typer(
    name="turnstile",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"turnstile {release()}")
        raise typer.Exit


@app.callback(help=_HELP)
def _options(  # pyright: ignore[reportUnusedFunction] -- typer calls it
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The options of `turnstile` itself."""


command(app, "up", serves=True)(servers.up)
command(app, "demo", serves=True, quiet=True)(servers.demo)
command(app, "demo-pump", serves=True, quiet=True)(servers.demo_pump)
command(app, "demo-tree", serves=True, quiet=True)(servers.demo_tree)
command(app, "console")(consoles.console)
command(app, "migrate")(servers.migrate)
command(app, "worker", serves=True)(servers.worker)
command(app, "bridge", serves=True)(servers.bridge)
command(app, "gateway", serves=True)(servers.gateway)
for name, commands, purpose in (
    ("project", projects, "Projects: remove one with all its data."),
    ("profile", profiles, "Profiles: prompt, model and tools of agents."),
    ("agent", agents, "Agents: add, list and remove them, and set their memory."),
    ("tool", tools, "Tools that agents can call."),
    ("mcp", mcp_servers, "MCP servers as tools: add, list, test, accept and remove them, serve their calls."),
    ("box", boxes, "Boxes: lists of cards that turns read and write."),
    ("turn", turn_commands, "Turns: show, list, stop and run them again."),
    ("approvals", approval_commands, "Approvals and questions of turns to people: list, show and decide them."),
    ("budget", budget_commands, "Budgets: list, show, raise, and limit what a project spends."),
    ("conversation", conversation_commands, "Conversations with agents: list them, show what was said."),
    ("file", file_commands, "Files of the project: put, get, list and remove them."),
    ("end-user", deletions, "End users: delete one with all their turns, look for what is left."),
    ("model", local_models, "Local models: fetch their weights, serve one."),
    ("schedule", schedule_commands, "Schedules: turns that are asked for at times."),
    ("thread", thread_commands, "Threads: messages of listeners."),
    ("inbox", inbox, "Inbox rows: requests, results and stops of turns."),
    ("schema", schemas, "Interface documents for programs in other languages."),
    ("token", tokens, "Tokens of the gateway: add, list and revoke them."),
    ("webhook", webhooks, "Webhooks: where a project's events are sent."),
    ("worker-version", versions, "Worker versions: which build of the workers runs turns."),
):
    app.add_typer(commands.app, name=name, help=purpose, no_args_is_help=True)
command(app, "enqueue", project=True, channel=True, client=True)(turn_commands.enqueue)
command(app, "chat", project=True, channel=True, client=True)(conversation_commands.chat)
command(app, "watch", project=True, channel=True, client=True)(watch.watch)
command(app, "listeners")(listeners.listeners)
command(app, "top")(top.top)
command(app, "watchdog")(safety.watchdog)
command(app, "rebuild-engine")(safety.rebuild_engine)
command(app, "prune")(retention.prune)
command(app, "export")(retention.export)
command(app, "usage", project=True)(usage.usage)
command(app, "audit")(audit.audit)
command(app, "doctor")(doctor.doctor)
command(app, "health")(health.health)
command(app, "docs")(documents.docs)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        code: object = app(standalone_mode=False)
    except TyperException as error:
        sys.exit(_usage(error))
    except typer.Abort:
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: TyperException) -> int:
    from turnstile.cli.output import Output  # noqa: PLC0415 -- only an error needs rich

    if type(error).__name__ == "NoArgsIsHelpError":  # typer has printed the help
        return USAGE
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path} --help` shows how" if context else None
    failure = Failure("usage", error.format_message(), hint, USAGE)
    Output(as_json="--json" in sys.argv[1:]).failure(failure)
    return USAGE
