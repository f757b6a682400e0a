"""Data converters that let only small payloads of ids and failures without content into Temporal (ARCHITECTURE.md).

A payload above 16 KiB means that content would enter a history: converting it raises an error that is not retried.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadCodec,
    PayloadConverter,
)
from temporalio.exceptions import ApplicationError

PAYLOAD_LIMIT_BYTES = 16_384
ENCRYPTED = b"binary/encrypted"
"""The encoding of a payload that a codec has encrypted (docs/security.md)."""


_JSON = PydanticJSONPlainPayloadConverter()
_ENCODINGS = [
    _JSON if isinstance(payload_converter, JSONPlainPayloadConverter) else payload_converter
    for payload_converter in DefaultPayloadConverter.default_encoding_payload_converters
]


class IdsOnlyPayloadConverter(CompositePayloadConverter):
    """Pydantic models as JSON of limited size.

    The SDK creates a converter for every workflow task. All share the JSON converter, whose schemas are built once.
    """

    def __init__(self) -> None:
        super().__init__(*_ENCODINGS)

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Convert; raises a non-retryable `PayloadTooLarge`."""
        payloads = super().to_payloads(values)
        for payload in payloads:
            if len(payload.data) > PAYLOAD_LIMIT_BYTES:
                message = f"{len(payload.data)} bytes, {PAYLOAD_LIMIT_BYTES} allowed: content belongs into cards"
                raise ApplicationError(message, type="PayloadTooLarge", non_retryable=True)
        return payloads

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type[Any]] | None = None) -> list[Any]:
        """Convert; raises `PayloadUnreadable` if a payload is encrypted and there is no codec."""
        if any(payload.metadata.get("encoding") == ENCRYPTED for payload in payloads):
            raise unreadable("it is encrypted, and this process has no codec")
        return super().from_payloads(payloads, type_hints)


def unreadable(why: str) -> ApplicationError:
    """The error for a payload that this process cannot decrypt; it is retried: another process may have the key."""
    return ApplicationError(f"a payload cannot be read: {why}; see [temporal].codec", type="PayloadUnreadable")


class ContentFreeFailureConverter(DefaultFailureConverter):
    """Keeps the types of failures and Turnstile's error codes; drops other messages, stack traces and details."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert the exception and strip it and all of its causes."""
        super().to_failure(exception, payload_converter, failure)
        ours: BaseException | None = exception
        part: Failure | None = failure
        while part is not None:
            part.stack_trace = ""
            if part.HasField("application_failure_info"):
                part.application_failure_info.ClearField("details")
                if not isinstance(ours, ApplicationError):
                    part.message = part.application_failure_info.type
            ours = None if ours is None else ours.__cause__
            part = part.cause if part.HasField("cause") else None


DATA_CONVERTER = DataConverter(
    payload_converter_class=IdsOnlyPayloadConverter, failure_converter_class=ContentFreeFailureConverter
)


def with_codec(codec: PayloadCodec | None) -> DataConverter:
    """Turnstile's data converter with this codec."""
    return replace(DATA_CONVERTER, payload_codec=codec)
