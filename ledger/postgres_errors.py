"""What an error of PostgreSQL means for whoever asked: decided by its SQLSTATE, here and nowhere else (protocol §6).

Pure. `trouble_of` gives the kind, `told` the error that leaves the ledger: `ServerUnavailable`, with the reason in
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

OF_THE_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, InternalClientError, ConnectionResetError, TimeoutError)
"""What a statement on an open connection may raise."""
TROUBLE = (*OF_THE_DRIVER, OSError)
"""What connecting may raise too."""


class Trouble(StrEnum):
    """Kinds of errors."""

    AWAY = "away"
    """The server does not answer, or not yet: it is waited for."""
    UNABLE = "unable"
    """The server answers that it cannot do it now: a full disk, a read-only database, a canceled statement."""
    IN_THE_WAY = "in_the_way"
    """Another transaction was in the way: the same one may pass at once."""
    REFUSED = "refused"
    """The user, the password, the database or the address is wrong."""
    UNSTORABLE = "unstorable"
    """The text is none that PostgreSQL can store."""
    LASTING = "lasting"
    """A bug, or a rule of the ledger: the same statement fails again."""


PASSING = frozenset({Trouble.AWAY, Trouble.UNABLE})
"""The same statement may succeed later, though nobody does anything about it but wait."""

_KINDS = {
    "08": Trouble.AWAY,  # connection exception
    "22021": Trouble.UNSTORABLE,  # character not in repertoire
    "22P05": Trouble.UNSTORABLE,  # untranslatable character
    "23505": Trouble.IN_THE_WAY,  # unique violation: a concurrent lease
    "25006": Trouble.UNABLE,  # read-only transaction
    "25P03": Trouble.AWAY,  # idle-in-transaction timeout, which ends the session
    "25P04": Trouble.AWAY,  # transaction timeout, which ends the session
    "28": Trouble.REFUSED,  # invalid authorization
    "3D000": Trouble.REFUSED,  # no such database
    "40": Trouble.IN_THE_WAY,  # serialization failure, deadlock
    "40002": Trouble.LASTING,  # integrity constraint violation
    "53": Trouble.UNABLE,  # insufficient resources
    "53300": Trouble.AWAY,  # too many connections
    "55000": Trouble.UNABLE,  # not in prerequisite state
    "55006": Trouble.UNABLE,  # object in use
    "55P03": Trouble.UNABLE,  # lock not available
    "57": Trouble.UNABLE,  # operator intervention
    "57P": Trouble.AWAY,  # shutdown, crash, start-up
    "58": Trouble.UNABLE,  # system error
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


def trouble_of(error: BaseException) -> Trouble:
    """Its kind; what is no error of the server's and names no bug of ours is a lost connection."""
    match error:
        case ClientConfigurationError():
            return Trouble.REFUSED
        case asyncpg.InvalidCachedStatementError():  # a migration beside us: asyncpg has forgotten the plan by now
            return Trouble.IN_THE_WAY
        case asyncpg.PostgresError():
            return _longest(_KINDS, _state(error)) or Trouble.LASTING
        case asyncpg.InterfaceError() | InternalClientError() | OSError():
            return Trouble.AWAY
        case _:
            return Trouble.LASTING


def told(error: Exception, kind: Trouble, server: str) -> TurnstileError | None:
    """The error as the rest of Turnstile knows it; None for a lasting one, which is raised as it is."""
    state = _state(error)
    match kind:
        case Trouble.AWAY | Trouble.UNABLE:
            why = _longest(_WORDS, state)
            met = str(error) if isinstance(error, ssl.SSLError) else type(error).__name__  # which certificate, and why
            lost = f"no answer from {server}: {met}"
            return ServerUnavailable(lost if why is None else f"{server}: {why} ({state})")
        case Trouble.IN_THE_WAY if not isinstance(error, asyncpg.UniqueViolationError):
            return ServerUnavailable(f"{server}: others were in the way each time")
        case Trouble.REFUSED:
            return ConfigError(f"{server}: {str(error).splitlines()[0]}; check [database].url")
        case Trouble.UNSTORABLE:
            return BadRequest("text must not hold NUL characters or broken Unicode")
        case _:
            return None


def _state(error: BaseException) -> str:
    """Its SQLSTATE; asyncpg sets it without declaring it."""
    return cast("str | None", getattr(error, "sqlstate", None)) or ""


def _longest(table: Mapping[str, Value], state: str) -> Value | None:
    return next((table[state[:size]] for size in (5, 3, 2) if state[:size] in table), None)
