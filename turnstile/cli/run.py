"""Runs one command: settings, log, signals, and the exit code of whatever happens."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from turnstile.cli.command import Options
from turnstile.cli.errors import INTERRUPTED, failure_of
from turnstile.cli.output import Output
from turnstile.cli.session import Session
from turnstile.settings import load_settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(command: Callable[[Session], Awaitable[None]], options: Options, *, serves: bool, quiet: bool) -> None:
    """Run it and end the process with its exit code, if that is not 0."""
    out = Output(as_json=options.as_json, verbose=options.verbose)
    try:
        settings = load_settings(options.config)
        told = settings.observability
        logs = serves and not quiet
        out.log_to(told.log_level if logs else "warning", told.log_format if logs else "text")
        exit_code = asyncio.run(_with_signals(command, Session(settings, options, out), serves=serves))
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except asyncio.CancelledError:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 -- the last one to tell what went wrong
        out.trace()
        failure = failure_of(error)
        out.failure(failure)
        raise SystemExit(failure.exit_code) from None
    if exit_code:
        raise SystemExit(exit_code)


async def _with_signals(command: Callable[[Session], Awaitable[None]], session: Session, *, serves: bool) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(command(session))

    def on_signal() -> None:
        if session.stop.is_set():
            os._exit(INTERRUPTED)  # embedded servers end with us: their warden sees to it
        session.stop.set()
        if serves:
            session.out.remark("stopping; once more to stop at once")
        else:
            task.cancel()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, on_signal)
    await task
    return session.exit_code
