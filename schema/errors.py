"""The error every part of Turnstile raises, and the codes a client may meet.

Each leaf carries a stable `code`, which is what replies, outcomes and rejections repeat (protocol §6). Messages are
for people: they say what was wrong and what to do, and never hold a key, a prompt or the content of a card.
"""


class TurnstileError(Exception):
    """Base of all errors raised on purpose."""

    code: str = "internal_error"


class BadRequest(TurnstileError):
    """What was sent cannot be understood, or breaks a rule of the wire."""

    code: str = "bad_request"


class StaleTurn(TurnstileError):
    """The CAS gate is gone: another lease, a fence or an end took the turn. Stop, without a side effect (§2.2)."""

    code: str = "stale_turn"


class Refused(TurnstileError):
    """The ledger refused a request; `code` says which rule."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Limited(Refused):
    """A limit is reached (docs/limits.md): nothing was written, and the same request may be accepted later."""

    def __init__(self, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(code, message)
        self.retry_after = retry_after
        """Seconds after which it is worth another try, where that is known."""


class ModelError(TurnstileError):
    """A model call failed; `retryable` says whether another attempt can help (protocol §7.9)."""

    def __init__(self, code: str, message: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds the provider asked to wait, if it did."""


class ConfigError(TurnstileError):
    """A setting is unknown or out of range."""

    code: str = "config_error"


class ServerUnavailable(TurnstileError):
    """Postgres, NATS or Temporal does not answer, or says that it cannot do it now: the same may succeed later."""

    code: str = "server_unavailable"


class TargetHeld(TurnstileError):
    """A worker target that belongs to one process is held by another (protocol §8)."""

    code: str = "target_held"
