"""What an error of PostgreSQL means for whoever asked: decided by its SQLSTATE, here and nowhere else (protocol §6).

Pure. `kind_of` gives the kind, `translated` the error that leaves the ledger: `ServerUnavailable`, with the reason in
plain words, for what may pass by itself. The words hold no message of the server, which may quote what was sent.
"""

import ssl
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar, cast

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, InternalClientError

from turnstile.schema.errors import BadRequest, ConfigError, ServerUnavailable, TurnstileError

Value = TypeVar("Value")

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, InternalClientError, OSError)
"""What connecting or a statement may raise."""


class ErrorKind(StrEnum):
    """Kinds of errors."""

    AWAY = "away"
    """The server does not answer, or not yet: it is waited for."""
    UNABLE = "unable"
    """The server answers that it cannot do it now: a full disk, a read-only database, a canceled statement."""
    CONFLICT = "conflict"
    """Another transaction was in the way: the same one may pass at once."""
    REFUSED = "refused"
    """The user, the password, the database or the address is wrong."""
    UNSTORABLE = "unstorable"
    """The text is none that PostgreSQL can store."""
    PERMANENT = "permanent"
    """A bug, or a rule of the ledger: the same statement fails again."""


TRANSIENT = frozenset({ErrorKind.AWAY, ErrorKind.UNABLE})
"""The same statement may succeed later, though nobody does anything about it but wait."""

_KINDS = {
    "08": ErrorKind.AWAY,  # connection exception
    "22021": ErrorKind.UNSTORABLE,  # character not in repertoire
    "22P05": ErrorKind.UNSTORABLE,  # untranslatable character
    "23505": ErrorKind.CONFLICT,  # unique violation: a concurrent lease
    "25006": ErrorKind.UNABLE,  # read-only transaction
    "25P03": ErrorKind.AWAY,  # idle-in-transaction timeout, which ends the session
    "25P04": ErrorKind.AWAY,  # transaction timeout, which ends the session
    "28": ErrorKind.REFUSED,  # invalid authorization
    "3D000": ErrorKind.REFUSED,  # no such database
    "40": ErrorKind.CONFLICT,  # serialization failure, deadlock
    "40002": ErrorKind.PERMANENT,  # integrity constraint violation
    "53": ErrorKind.UNABLE,  # insufficient resources
    "53300": ErrorKind.AWAY,  # too many connections
    "55000": ErrorKind.UNABLE,  # not in prerequisite state
    "55006": ErrorKind.UNABLE,  # object in use
    "55P03": ErrorKind.UNABLE,  # lock not available
    "57": ErrorKind.UNABLE,  # operator intervention
    "57P": ErrorKind.AWAY,  # shutdown, crash, start-up
    "58": ErrorKind.UNABLE,  # system error
}
"""By SQLSTATE or by the beginning of it; the longest that fits counts."""

_WORDS = {
    "25006": "the database is read-only",
    "53": "the database lacks a resource",
    "53100": "the database's disk is full",
    "53200": "the database is out of memory",
    "53300": "the database has no connection left",
    "53400": "the database came to a limit of its configuration",
    "55": "the database cannot do this in the state that it is in",
    "55P03": "a lock could not be had in time",
    "57": "an operator of the database intervened",
    "57014": "the database canceled the statement",
    "57P01": "the database is shutting down",
    "57P02": "the database is shutting down",
    "57P03": "the database is starting up, or shutting down",
    "58": "the database cannot read or write its files",
}


def kind_of(error: BaseException, *, connected: bool = False) -> ErrorKind:
    """Its kind.

    `connected` says that the session is still open: what did not come from the server is then a bug or the caller's
    own error, but for an answer that is late. Without a session it is why there is none.
    """
    match error:
        case ClientConfigurationError():
            return ErrorKind.REFUSED
        case asyncpg.InvalidCachedStatementError():  # a migration beside us: asyncpg has forgotten the plan by now
            return ErrorKind.CONFLICT
        case asyncpg.PostgresError():
            return _longest(_KINDS, _state(error)) or ErrorKind.PERMANENT
        case InternalClientError() | TimeoutError():
            return ErrorKind.AWAY
        case asyncpg.InterfaceError() | OSError() if not connected:
            return ErrorKind.AWAY
        case _:
            return ErrorKind.PERMANENT


def translated(error: Exception, kind: ErrorKind, server: str) -> TurnstileError | None:
    """The error as the rest of Turnstile knows it; None for a permanent one, which is raised as it is."""
    state = _state(error)
    match kind:
        case ErrorKind.AWAY | ErrorKind.UNABLE:
            why = _longest(_WORDS, state)
            met = str(error) if isinstance(error, ssl.SSLError) else type(error).__name__  # which certificate, and why
            lost = f"no answer from {server}: {met}"
            return ServerUnavailable(lost if why is None else f"{server}: {why} ({state})")
        case ErrorKind.CONFLICT if not isinstance(error, asyncpg.UniqueViolationError):
            return ServerUnavailable(f"{server}: others were in the way each time")
        case ErrorKind.REFUSED:
            return ConfigError(f"{server}: {str(error).splitlines()[0]}; check [database].url")
        case ErrorKind.UNSTORABLE:
            return BadRequest("text must not hold NUL characters or broken Unicode")
        case _:
            return None


def _state(error: BaseException) -> str:
    """Its SQLSTATE; asyncpg sets it without declaring it."""
    return cast("str | None", getattr(error, "sqlstate", None)) or ""


def _longest(table: Mapping[str, Value], state: str) -> Value | None:
    return next((table[state[:size]] for size in (5, 3, 2) if state[:size] in table), None)
