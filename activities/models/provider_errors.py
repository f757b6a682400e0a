"""One table from a provider's errors to an `error_code`, and whether a retry can help.

Pure, and without importing litellm: errors are recognised by the names of their classes and by their HTTP status. The
resulting message names the model, the code and the error classes, never a prompt, a key or the body of a response. What
the provider said of a refusal goes apart from it, shortened and without what looks like a key: it may quote the prompt.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from json import JSONDecodeError

from turnstile.rules.answer import CONTENT_FILTERED
from turnstile.schema.errors import ModelError
from turnstile.schema.visible import visible

STREAM_BROKEN = "model_stream_broken"


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """One kind of failure: its code, whether a retry can help, and how it is recognised.

    `classes` are names of exception classes (any in the MRO counts), `statuses` HTTP codes, `phrases` parts of the
    provider's text where litellm keeps nothing else. A phrase takes precedence over a class, a class over a status.
    """

    code: str
    retryable: bool
    says: str
    classes: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    phrases: tuple[str, ...] = ()


def _rule(
    code: str,
    says: str,
    *classes: str,
    retryable: bool = False,
    statuses: tuple[int, ...] = (),
    phrases: tuple[str, ...] = (),
) -> ErrorRule:
    return ErrorRule(code, retryable, says, frozenset(classes), frozenset(statuses), phrases)


ERROR_RULES = (
    _rule(
        "context_window_exceeded",
        "the request is larger than the model's context",
        "ContextWindowExceededError",
        statuses=(413,),
        phrases=(
            "exceed_context_size_error",
            "exceeds the available context size",
            "exceeds the maximum number of tokens",
            "maximum context length",
            "prompt is too long",
            "request_too_large",
        ),
    ),
    _rule(
        CONTENT_FILTERED,
        "the provider's content filter refused",
        "ContentPolicyViolationError",
        phrases=("content management policy", "content_policy_violation"),
    ),
    _rule("model_params_unsupported", "the model does not take a parameter of llm_config", "UnsupportedParamsError"),
    _rule(
        "quota_exhausted",
        "the account has no credit left",
        "PaymentRequiredError",
        statuses=(402,),
        phrases=("insufficient_quota", "credit balance is too low"),
    ),
    _rule(
        "auth_failed",
        "the provider refused the key",
        "AuthenticationError",
        "PermissionDeniedError",
        statuses=(401, 403),
        phrases=("api key not valid", "api_key_invalid"),
    ),
    _rule(
        "model_unknown", "the provider has no such model", "NotFoundError", "LiteLLMUnknownProvider", statuses=(404,)
    ),
    _rule("rate_limited", "the provider's rate limit", "RateLimitError", retryable=True, statuses=(429,)),
    _rule(
        "model_overloaded",
        "the provider is overloaded",
        "ServiceUnavailableError",
        retryable=True,
        statuses=(409, 425, 503, 529),
        phrases=("overloaded_error",),
    ),
    _rule(
        "model_timeout",
        "no answer in time",
        "Timeout",
        "APITimeoutError",
        "TimeoutException",
        "TimeoutError",
        retryable=True,
        statuses=(408, 504),
    ),
    _rule(
        "model_server_error",
        "the provider failed",
        "InternalServerError",
        "BadGatewayError",
        retryable=True,
        statuses=(500, 502),
    ),
    _rule(
        "model_response_invalid",
        "the provider's answer does not parse",
        "APIResponseValidationError",
        "JSONDecodeError",
        retryable=True,
    ),
    _rule(
        "model_connection",
        "the connection failed",
        "APIConnectionError",
        "TransportError",
        "ConnectionError",
        retryable=True,
    ),
    _rule(
        "model_bad_request",
        "the provider refused the request",
        "BadRequestError",
        "UnprocessableEntityError",
        statuses=(400, 405, 415, 422),
    ),
)
"""The rules, in the order in which they are tried."""

_OTHER_REFUSAL = _rule("model_bad_request", "the provider refused the request")
_OTHER_FAILURE = _rule("model_server_error", "the provider failed", retryable=True)
_UNKNOWN = _rule("model_failed", "the model library failed")
_BROKEN = _rule(STREAM_BROKEN, "the stream broke off", retryable=True)
_UNREADABLE = _rule(STREAM_BROKEN, "the stream is not JSON in UTF-8", retryable=True)
_MISSHAPEN = _rule("model_response_invalid", "the provider's answer does not parse", retryable=True)

_VAGUE = frozenset({"BadRequestError", "InternalServerError", "APIConnectionError"})
"""Classes that litellm raises for any status: for these the status decides before the name."""
_BREAKS = frozenset({"model_connection", "model_response_invalid", "model_server_error", "model_failed"})
"""Codes that become `model_stream_broken` if the failure comes in the middle of a stream."""

_RETRY_DELAY = re.compile(r'"retryDelay":\s*\\?"(\d+(?:\.\d+)?)s')
"""Gemini says in the body how long to wait."""


_WINDOW = re.compile(
    r"(?:maximum context length (?:of|is)|> |available context size \(|tokens allowed \(|\"n_ctx\": ?)(\d{3,9})(?!\d)"
)
"""How OpenAI, vLLM, Anthropic, llama.cpp and Gemini say how much a model takes."""
_LONGEST_QUOTE = 500
_LITELLMS = re.compile(r"^litellm\.\w+: (?:\w*(?:Exception|Error)\w*(?: -|:) )?")
"""What litellm puts before the words of a provider."""
_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
_KEY = re.compile(
    r"""(?xi)
    \b bearer \s+ \S+
    | \b (?: api[_ -]?key | token | secret | password | authorization ) ["']? \s* [:=] \s* ["']? [^\s"',;]+
    | \b (?: sk | pk | rk | xai | gsk | hf | ghp | AKIA | AIza | eyJ ) [-_A-Za-z0-9.*]{6,}
    | (?<![\w+/=*.-]) (?= [\w+/=*-]*\d ) (?= [\w+/=*-]*[A-Za-z] ) [\w+/=*-]{24,}
    """
)
_CUT = "[removed]"


def quote_provider(error: Exception, keys: Iterable[str] = ()) -> str | None:
    """What a provider said of a request that it refused; None if it said nothing, or did not answer by HTTP.

    `keys` are removed, and all that looks like a key or a bearer token; hidden characters are made visible.
    """
    if _status(error) is None:
        return None
    text = _LITELLMS.sub("", str(error))
    if (match := _MESSAGE.search(text)) is not None:
        text = str(json.loads(f'"{match[1]}"', strict=False))
    for key in sorted(filter(None, keys), key=len, reverse=True):
        text = text.replace(key, _CUT)
    text = visible(" ".join(_KEY.sub(_CUT, text).split())).replace('"', "'")
    return (text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 1]}…") or None


def model_error(
    error: Exception, model: str, *, streaming: bool, quotes: bool = False, keys: Iterable[str] = ()
) -> ModelError:
    """The `ModelError` for an error of a request to `model`; `streaming` if parts of the answer had come.

    With `quotes` it has what the provider said, without these `keys`.
    """
    if isinstance(error, ModelError):
        return error
    original = getattr(error, "original_exception", None)  # of litellm's MidStreamFallbackError
    cause = original if isinstance(original, Exception) else error
    rule = rule_of(cause)
    if streaming and rule.code in _BREAKS:
        rule = _BROKEN
    status, names = _status(cause), [type(e).__name__ for e in _chain(cause)]
    kinds = [f"HTTP {status}", names[0]] if status else list(dict.fromkeys((names[0], names[-1])))
    message = f"{model}: {rule.says} ({', '.join(kinds)})"
    says = quote_provider(cause, keys) if quotes else None
    return ModelError(
        rule.code,
        message,
        retryable=rule.retryable,
        retry_after=retry_after(cause),
        provider_says=says,
        window=_window(cause) if rule.code == "context_window_exceeded" else None,
    )


def _window(error: Exception) -> int | None:
    match = _WINDOW.search(str(error))
    return int(match[1]) if match else None


def rule_of(error: Exception) -> ErrorRule:
    """The rule that matches an error."""
    words = " ".join(f"{e} {getattr(e, 'code', '')}" for e in _chain(error)).lower()
    for rule in ERROR_RULES:
        if any(phrase in words for phrase in rule.phrases):
            return rule
    names, status = {t.__name__ for t in type(error).__mro__}, _status(error)
    if status is None and (network := _network_names(error)):
        names = network
    if status is None and (unread := _unread(error)) is not None:
        return unread
    by_class = next((rule for rule in ERROR_RULES if names & rule.classes), None)
    if by_class is not None and type(error).__name__ not in _VAGUE:
        return by_class
    by_status = next((rule for rule in ERROR_RULES if status in rule.statuses), None)
    if by_status is None and by_class is None and status is not None and 400 <= status < 600:
        return _OTHER_REFUSAL if status < 500 else _OTHER_FAILURE
    return by_status or by_class or _UNKNOWN


def retry_after(error: Exception) -> float | None:
    """Seconds that the provider asks to wait, from its headers (seconds or an HTTP date) or Gemini's `retryDelay`."""
    for headers in _headers(error):
        if (millis := _number(headers.get("retry-after-ms"))) is not None:
            return millis / 1000
        if (value := headers.get("retry-after")) is not None:
            return _parse_retry_after(value, datetime.now(UTC))
    match = _RETRY_DELAY.search(str(error))
    return float(match[1]) if match else None


def _parse_retry_after(value: str, now: datetime) -> float | None:
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _headers(error: Exception) -> Iterator[Mapping[str, str]]:
    for candidate in (
        getattr(getattr(error, "response", None), "headers", None),
        getattr(error, "litellm_response_headers", None),
    ):
        if isinstance(candidate, Mapping):
            pairs: list[tuple[object, object]] = list(candidate.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] -- any mapping
            yield {str(name).lower(): str(value) for name, value in pairs}


def _status(error: Exception) -> int | None:
    """The HTTP status that the provider sent; litellm may set another, such as 500 for a connection error."""
    for e in _chain(error):
        if type(e).__name__ in ("HTTPStatusError", "MaskedHTTPStatusError"):
            sent = getattr(getattr(e, "response", None), "status_code", None)
            return sent if isinstance(sent, int) else None
    status = getattr(error, "status_code", None)
    if type(error).__name__ == "APIConnectionError" or not isinstance(status, int) or _network_names(error):
        return None
    return status


def _network_names(error: Exception) -> set[str]:
    """The class names of the httpx error that caused the error, if one did."""
    for e in _chain(error):
        names = {name.__name__ for name in type(e).__mro__}
        if "TransportError" in names:
            return names
    return set()


def _unread(error: Exception) -> ErrorRule | None:
    """The rule for an answer that could not be parsed, which litellm reports as a connection error."""
    if type(error).__name__ != "APIConnectionError" or _network_names(error):
        return None
    *_, root = _chain(error)
    if isinstance(root, UnicodeError | JSONDecodeError):
        return _UNREADABLE
    return _MISSHAPEN if isinstance(root, AttributeError | TypeError | LookupError) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, closest first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
