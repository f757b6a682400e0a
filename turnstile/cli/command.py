"""Registers commands: each gets the options all have, a session, an event loop, its signals and its exit code.

A command is `async def name(session, …)`. What runs servers (`serves`) is told to stop by the first SIGINT, SIGTERM
or SIGHUP and ends with exit code 0; any other command is cancelled and ends with 130. A second signal ends the process
at once. This module is imported for `--help`: what is heavy is imported when a command runs.
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
    serves: bool = False,
    quiet: bool = False,
) -> Callable[[F], F]:
    """Register the function below as a command of `app`, with `--project` and `--channel` if asked for.

    What is `quiet`, or does not serve, logs warnings only.
    """

    def register(function: F) -> F:
        left_out = {each for each, wanted in (("project", project), ("channel", channel)) if not wanted}
        shared = {each: option for each, option in OPTIONS.items() if each not in left_out}
        own = list(inspect.signature(function).parameters.values())[1:]
        added = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, (annotation, default) in shared.items()
        ]

        def run(**values: Any) -> None:
            from turnstile.cli.run import run_command

            options = Options(**{each: values.pop(each) for each in shared})
            run_command(lambda session: function(session, **values), options, serves=serves, quiet=quiet)

        keyword = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature([*(each.replace(kind=keyword) for each in own), *added])  # pyright: ignore[reportFunctionMemberAccess] -- what typer reads
        run.__doc__ = function.__doc__
        app.command(name)(run)
        return function

    return register
