"""Classifies errors of PostgreSQL by their SQLSTATE, here and nowhere else (protocol §6).

Pure. `kind_of` returns the kind, `translated` the error that leaves the ledger: `ServerUnavailable`, with a reason, for
a transient one. The reason quotes no message of the server, which may quote the statement's values.
"""

import ssl
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar, cast

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, InternalClientError

from turnstile.ledger.budgets.steering import refusal_of
from turnstile.schema.errors import BadRequest, ConfigError, Refused, ServerUnavailable, TurnstileError

Value = TypeVar("Value")

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, InternalClientError, OSError)
"""The exceptions that connecting or a statement may raise."""


TRANSACTION_MODE = (
    "is a connection pooler in transaction mode (or in statement mode), in which prepared statements, settings and "
    "locks of a session do not last: connect to PostgreSQL itself, or let the pooler have pool_mode = session for this "
    "database"
)
"""What is said of such a pooler, after its address."""
_UNPREPARED = frozenset({"26000", "42P05"})
"""A prepared statement is not there, or another's is: a session is not one's own."""


class ServerBehind(asyncpg.InterfaceError):
    """The server has an older history of the ledger than this process has seen."""


class ErrorKind(StrEnum):
    """Kinds of errors."""

    AWAY = "away"
    """The server does not answer, or not yet."""
    UNABLE = "unable"
    """The server answers that it is unable now: a full disk, a read-only database, a canceled statement."""
    CONFLICT = "conflict"
    """Another transaction was in the way: an immediate repeat may succeed."""
    REFUSED = "refused"
    """The user, the password, the database or the address is wrong."""
    UNSTORABLE = "unstorable"
    """PostgreSQL cannot store the text."""
    PERMANENT = "permanent"
    """A bug, or a rule of the ledger: the same statement fails again."""


TRANSIENT = frozenset({ErrorKind.AWAY, ErrorKind.UNABLE})
"""Kinds after which the same statement may succeed later."""

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
    "53": ErrorKind.UNABLE,  # insufficient resources, such as connections
    "55000": ErrorKind.UNABLE,  # not in prerequisite state
    "55006": ErrorKind.UNABLE,  # object in use
    "55P03": ErrorKind.UNABLE,  # lock not available
    "57": ErrorKind.UNABLE,  # operator intervention
    "57P": ErrorKind.AWAY,  # shutdown, crash, start-up
    "58": ErrorKind.UNABLE,  # system error
}
"""By SQLSTATE or its beginning; the longest match applies."""

_NO_FILE = "TF001"
"""The SQLSTATE with which a card that names a file which is not there undoes its transaction (protocol §22)."""
_WORDS = {
    "25006": "the database is read-only",
    "53": "the database lacks a resource",
    "53100": "the database's disk is full",
    "53200": "the database is out of memory",
    "53300": "the database has no connection left",
    "53400": "the database reached a limit of its configuration",
    "55": "the database is not in the required state",
    "55P03": "a lock was not available in time",
    "57": "an operator of the database intervened",
    "57014": "the database canceled the statement",
    "57P01": "the database is shutting down",
    "57P02": "the database is shutting down",
    "57P03": "the database is starting up, or shutting down",
    "58": "the database cannot read or write its files",
}


def kind_of(error: BaseException, *, connected: bool = False) -> ErrorKind:
    """The kind of an error.

    `connected`: the session is still open. Then an error that is not the server's is permanent, unless it is a timeout.
    Without a session such an error is the reason why there is none.
    """
    match error:
        case ClientConfigurationError():
            return ErrorKind.REFUSED
        case _ if is_shared(error):
            return ErrorKind.REFUSED
        case asyncpg.InvalidCachedStatementError():  # a concurrent migration; asyncpg has dropped the plan by now
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
    """The `TurnstileError` for an error; None for a permanent one that is no refusal, which is raised unchanged."""
    state = _state(error)
    match kind:
        case _ if is_shared(error):
            return ConfigError(f"{server} {TRANSACTION_MODE}")
        case ErrorKind.AWAY if isinstance(error, ServerBehind):
            return ServerUnavailable(str(error))
        case ErrorKind.AWAY | ErrorKind.UNABLE:
            why = _longest(_WORDS, state)
            met = str(error) if isinstance(error, ssl.SSLError) else type(error).__name__  # names the certificate
            lost = f"no answer from {server}: {met}"
            return ServerUnavailable(lost if why is None else f"{server}: {why} ({state})")
        case ErrorKind.CONFLICT if not isinstance(error, asyncpg.UniqueViolationError):
            return ServerUnavailable(f"{server}: others were in the way each time")
        case ErrorKind.REFUSED:
            return ConfigError(f"{server}: {str(error).splitlines()[0]}; check [database].url")
        case ErrorKind.UNSTORABLE:
            return BadRequest("text must not hold NUL characters or broken Unicode")
        case _ if state == _NO_FILE:
            return Refused("unknown_artifact", "the channel has no file of this id that is ready")
        case _:
            return refusal_of(error)


def is_shared(error: BaseException) -> bool:
    """Whether an error shows that the session is shared with others, by a pooler."""
    return _state(error) in _UNPREPARED or "statement pooling mode" in str(error)


def _state(error: BaseException) -> str:
    """The error's SQLSTATE, which asyncpg sets without declaring it."""
    return cast("str | None", getattr(error, "sqlstate", None)) or ""


def _longest(table: Mapping[str, Value], state: str) -> Value | None:
    return next((table[state[:size]] for size in (5, 3, 2) if state[:size] in table), None)
