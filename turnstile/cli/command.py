"""Registers commands; each gets the common options, a session, an event loop, signal handlers and an exit code.

A command is `async def name(session, …)`. The first SIGINT, SIGTERM or SIGHUP stops a command that runs servers
(`serves`), which ends with exit code 0, and cancels any other, which ends with 130. A second signal ends the process at
once. `--help` imports this module, so heavy imports wait until a command runs.
"""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import typer

from turnstile.cli.options import OPTIONS, Options

F = TypeVar("F", bound=Callable[..., Awaitable[None]])


def command(
    app: typer.Typer,
    name: str,
    *,
    project: bool = False,
    channel: bool = False,
    client: bool = False,
    serves: bool = False,
    quiet: bool = False,
) -> Callable[[F], F]:
    """Register the decorated function as a command of `app`; `project` and `channel` add these options.

    `client` adds those of a command that a gateway can serve: it asks by `Session.client`. A command that is `quiet`,
    or does not serve, logs warnings only. One that serves ends within five seconds of the first signal.
    """

    def register(function: F) -> F:
        optional = {"project": project, "channel": channel, "url": client, "token_file": client}
        left_out = {name for name, included in optional.items() if not included}
        shared = {name: option for name, option in OPTIONS.items() if name not in left_out}
        parameters = list(inspect.signature(function).parameters.values())[1:]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in shared.items()
        ]

        def run(**values: Any) -> None:
            from turnstile.cli.run import run_command

            options = Options(**{name: values.pop(name) for name in shared})
            run_command(lambda session: function(session, **values), options, serves=serves, quiet=quiet)

        keyword = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature([*(parameter.replace(kind=keyword) for parameter in parameters), *added])  # pyright: ignore[reportFunctionMemberAccess] -- what typer reads
        run.__doc__ = function.__doc__
        app.command(name)(run)
        return function

    return register
