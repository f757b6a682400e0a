"""The errors of all parts of Turnstile.

Each class or instance has a stable `code`, which replies, outcomes and rejections repeat (protocol §6). Messages are
for people: they say what was wrong and what to do, and never hold a key, a prompt or the content of a card.
"""


class TurnstileError(Exception):
    """Base of all errors raised on purpose."""

    code: str = "internal_error"


class BadRequest(TurnstileError):
    """A message cannot be parsed, or breaks a rule of the wire format."""

    code: str = "bad_request"


class StaleTurn(TurnstileError):
    """The CAS gate is closed: another lease, a fence or an end took the turn. Stop, without a side effect (§2.2)."""

    code: str = "stale_turn"


class SteerWaits(TurnstileError):
    """A turn that could end has a steer that no step has asked with: another step follows (protocol §6, steer)."""

    code: str = "steered"


class Refused(TurnstileError):
    """The ledger refused a request; `code` names the rule."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Limited(Refused):
    """A limit is reached (docs/limits.md): nothing was written, and the same request may be accepted later."""

    def __init__(self, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(code, message)
        self.retry_after = retry_after
        """Seconds after which to try again, if known."""


class ModelError(TurnstileError):
    """A model call failed; `retryable` says whether another attempt can help (protocol §7.9)."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        provider_says: str | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds that the provider asks to wait, if it does."""
        self.provider_says = provider_says
        """The provider's own words, without keys. They may quote the prompt: for the turn's cards, never for a log."""

        self.window = window
        """The tokens that the model takes, if a refusal as too long says so."""

    @property
    def quotation(self) -> str | None:
        """What the provider said, marked as such."""
        return None if self.provider_says is None else f'the provider says: "{self.provider_says}"'


class ConfigError(TurnstileError):
    """A setting is unknown or out of range."""

    code: str = "config_error"


class ServerUnavailable(TurnstileError):
    """PostgreSQL, NATS or Temporal does not answer, or cannot serve the request now; it may succeed later."""

    code: str = "server_unavailable"


class TargetHeld(TurnstileError):
    """Another process holds an exclusive worker target (protocol §8)."""

    code: str = "target_held"
