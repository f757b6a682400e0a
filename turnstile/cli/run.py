"""Runs one command: its settings, log, signals and exit code."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from turnstile.cli.errors import REFUSED, failure_of
from turnstile.cli.options import Options
from turnstile.cli.output import Output
from turnstile.cli.session import Session
from turnstile.processes.addresses import NothingRuns
from turnstile.runtime.event_loop import fast_loop
from turnstile.runtime.program import INTERRUPTED, LATE_SECONDS, Program
from turnstile.settings import load_settings

_NEEDS_SERVERS = (
    "this command connects to PostgreSQL or NATS, and only a gateway is named; through a gateway you can use enqueue, "
    "chat, watch TURN, approvals, budget, file, and turn show, stop and tree"
)


def run_command(command: Callable[[Session], Awaitable[None]], options: Options, *, serves: bool, quiet: bool) -> None:
    """Run the command; end the process with its exit code if that is not 0."""
    out = Output(as_json=options.as_json, verbose=options.verbose)
    program = Program(late_seconds=LATE_SECONDS, new_loop=fast_loop) if serves else Program()
    try:
        settings = load_settings(options.config)
        observability = settings.observability
        logs = serves and not quiet
        out.log_to(observability.log_level if logs else "warning", observability.log_format if logs else "text")
        exit_code = _run(program, command, Session(settings, options, out), serves=serves)
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        exit_code = REFUSED
    except asyncio.CancelledError:
        exit_code = 0 if program.was_late else INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- every error is printed here
        out.trace()
        failure = failure_of(error)
        out.failure(failure)
        exit_code = failure.exit_code
    program.leave(exit_code)


def _run(program: Program, command: Callable[[Session], Awaitable[None]], session: Session, *, serves: bool) -> int:
    async def run() -> None:
        try:
            await command(session)
        except (NothingRuns, ModuleNotFoundError) as error:
            if session.gateway is not None:
                error.add_note(_NEEDS_SERVERS)
            raise

    def on_signal(task: asyncio.Task[None]) -> None:
        session.stop.set()
        if serves:
            program.late_seconds = session.late_seconds
            if session.announces_stop:
                session.out.remark("stopping; Ctrl-C again ends it at once")
        else:
            task.cancel()

    program.run(run(), on_signal, lambda: session.on_interrupt)
    return session.exit_code
