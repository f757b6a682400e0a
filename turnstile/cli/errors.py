"""The message and the exit code of a command that fails: one line with a stable code, and a hint where one helps.

Exit codes: 0 done; 1 refused, or the turn failed; 2 usage and settings; 3 a server does not answer; 130 interrupted.
With `--json` the error is the JSON document on standard output, `{"error": {"code", "message", "hint"}}`; else it is
text on standard error.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from turnstile.schema.errors import BadRequest, ConfigError, ServerUnavailable, TurnstileError

DONE = 0
REFUSED = 1
USAGE = 2
UNAVAILABLE = 3
INTERRUPTED = 130

_HINTS = {
    "unknown_project": "`turnstile profile put FILE` creates the project; --project names another one",
    "unknown_agent": "`turnstile agent list` shows the agents, `turnstile agent add` adds one",
    "agent_busy": "`turnstile turn list --agent AGENT` shows them; wait, or `turnstile turn stop TURN`",
    "unknown_profile": "`turnstile profile list` shows the profiles, `turnstile profile put FILE` adds one",
    "unknown_turn": "`turnstile turn list` shows the turns; --project names another project",
    "ambiguous_turn": "give more of the id",
    "unknown_interrupt": "`turnstile approvals list` lists the ids; --project names another project",
    "already_decided": "`turnstile approvals show` says how and by whom",
    "own_request": "somebody else decides, or its policy says requester_may_decide: true",
    "own_words": "somebody else decides, or its policy says requester_may_decide: true",
    "unknown_thread": "`turnstile thread list` shows the threads; one can be joined by who began it, in its channel",
    "undelivered": "there is no such listener, or it does not accept this payload; the error does not say which",
    "pruned": "send it again, in a thread of its own or when the other messages are answered",
    "limit": "`turnstile thread show` shows how far it got; the limits are in [pump]",
    "project_busy": "wait for them, or end them with --stop-turns",
    "retention_busy": "wait until it has ended",
    "result_too_large": "ask for fewer rows: --limit",
    "busy": "wait until messages of the thread are answered, or leave out --thread",
    "correlation_conflict": "repeat the first request as it was, or use another --correlation-id",
    "not_migrated": "`turnstile migrate` brings it up to date",
    "interface_outdated": "`turnstile schema export` writes the documents anew",
    "model_unknown": "`turnstile docs models` lists providers; scripts are built in, or in [model].scripts",
    "unknown_build": "start a worker of that build first; `turnstile worker-version list` shows who has polled",
    "missing_targets": "start its workers for these targets first, or go on without them: --ignore-missing",
    "target_held": "without --no-standby it waits until the target is free",
    "no_bridge": "start `turnstile bridge` or `turnstile up`",
    "server_unavailable": (
        "check that it runs, that its address is right and that its disk has room; `turnstile doctor` shows more"
    ),
}


_EXTRAS = {
    "asyncpg": "server",
    "litellm": "server",
    "prometheus_client": "server",
    "temporalio": "server",
    "cryptography": "codec",
    "opentelemetry": "otel",
    "xllamacpp": "local",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "httpx2": "mcp",
}
"""Packages that the base install lacks, and the extra that has each (pyproject.toml)."""


_MENDABLE = {
    errno.EACCES: "give this user permission, or name another path",
    errno.EPERM: "give this user permission, or name another path",
    errno.EROFS: "the file system is read-only: name another path",
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room: this user's quota is used up",
    errno.ENOENT: "name one that exists, or create it first",
    errno.ENOTDIR: "a part of the path is a file: name another path",
    errno.EISDIR: "name a file in that directory",
    errno.EEXIST: "remove it, or name another path",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.EMFILE: "allow this user more open files (ulimit -n)",
    errno.ENFILE: "the system has too many open files",
}
"""What people can mend themselves, by the system's error number."""


class CommandFailed(TurnstileError):
    """The command ran, and its result is a failure (a turn that ended as failed)."""

    code: str = "turn_failed"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotMigrated(TurnstileError):
    """The database lacks files of this version's schema."""

    code: str = "not_migrated"


class NoBridge(ServerUnavailable):
    """No bridge answers."""

    code: str = "no_bridge"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is printed."""

    code: str
    message: str
    hint: str | None
    exit_code: int


def failure_of(error: BaseException) -> Failure:
    """The printed form of an error and its exit code. An unexpected exception is `internal_error`."""
    match error:
        case BaseExceptionGroup():
            return failure_of(_chosen(error))
        case ServerUnavailable():
            return _failure(error, UNAVAILABLE)
        case ConfigError() | BadRequest():
            return _failure(error, USAGE)
        case TurnstileError():
            return _failure(error, REFUSED)
        case ModuleNotFoundError(name=str(name)) if extra := _EXTRAS.get(name.partition(".")[0]):
            up = "; `turnstile up` needs 'turnstile-kernel[embedded]'" if extra == "server" else ""
            hints = [f"pip install 'turnstile-kernel[{extra}]'{up}", *getattr(error, "__notes__", ())]
            message = f"this command needs {name}, of the extra [{extra}]"
            return Failure("extra_missing", message, "; ".join(hints), USAGE)
        case OSError(errno=int(number)) if number in _MENDABLE:
            where = ": ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
            message = f"{where}: {error.strerror}" if where else str(error.strerror)
            return Failure("file_unusable", message, _MENDABLE[number], REFUSED)
        case _:
            name, message = type(error).__name__, str(error)
            if name == "ValidationError":  # of pydantic, which --help does not import
                from pydantic import ValidationError  # noqa: PLC0415 -- as above

                from turnstile.schema.validation import describe_faults  # noqa: PLC0415 -- as above

                message = describe_faults(error) if isinstance(error, ValidationError) else message
            message = f"{name}: {message}"
            return Failure("internal_error", message, "--verbose shows where; please report it", REFUSED)


def _chosen(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of the errors of tasks that failed together, the first `TurnstileError`, else the first."""
    leaves = list(_leaves(group))
    return next((leave for leave in leaves if isinstance(leave, TurnstileError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exception in group.exceptions:
        if isinstance(exception, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", exception))
        else:
            yield exception


def _failure(error: TurnstileError, exit_code: int) -> Failure:
    """The hint is that of the code, then the notes on the error."""
    hints = [_HINTS.get(error.code, ""), *getattr(error, "__notes__", ())]
    return Failure(error.code, str(error), "; ".join(hint for hint in hints if hint) or None, exit_code)
