"""AgentServer's primitives: a handler's response and metadata, and the two messages of the pump (protocol §9).

The texts of the pump's messages are fixed: they never say what was wrong, nor whether a target exists.
"""

import base64
from enum import StrEnum
from typing import Self

from pydantic import ConfigDict, Field, InstanceOf
from pydantic.dataclasses import dataclass

from turnstile.schema.base import Strict
from turnstile.schema.pump.payloads import Payload

CORE_NAMESPACE = "https://xml-pipeline.org/ns/core/v1"
INVALID_STRUCTURE = "Invalid payload structure"
"""The only text of `huh`, for an invalid payload and for an unknown one."""
UNDELIVERABLE = "Message could not be delivered. Please verify your target and try again."
"""The text for an unknown target and for a forbidden one."""
REJECTED = "Message could not be delivered. Please verify its content and try again."
TIMED_OUT = "Message could not be delivered in time."
MAX_ATTEMPT = 4_096
"""Bytes of the original message that `huh` quotes."""


class ResponseKind(StrEnum):
    """The receiver of a handler's message."""

    FORWARD = "forward"
    RESPOND = "respond"


@dataclass(frozen=True, slots=True, config=ConfigDict(hide_input_in_errors=True))
class HandlerResponse:
    """The message that a handler returns; a handler that sends none returns None.

    It goes to the listener `to`, or without `to` to the listener whose payload has this root tag. `respond` makes a
    message to the caller, which ends everything below this handler.
    """

    payload: InstanceOf[Payload]
    to: str | None = None
    kind: ResponseKind = Field(default=ResponseKind.FORWARD, kw_only=True)

    def __post_init__(self) -> None:
        if self.kind is ResponseKind.RESPOND and self.to is not None:
            raise ValueError("a response goes to the caller: it names no target")

    @classmethod
    def respond(cls, payload: Payload) -> Self:
        """A response to the caller."""
        return cls(payload, kind=ResponseKind.RESPOND)


class HandlerMetadata(Strict):
    """The metadata that a handler gets with the payload."""

    thread_id: str
    """An opaque id, from which the chain cannot be read."""
    from_id: str
    """The previous hop, as the pump knows it."""
    own_name: str | None = None
    """The listener's own name; None unless it is an agent."""
    is_self_call: bool = False
    usage_instructions: str = ""


class Text(Payload, tag="text"):
    """Plain text."""

    text: str


def _hyphened(name: str) -> str:
    return name.replace("_", "-")


class Huh(Payload, tag="huh", system_namespace=CORE_NAMESPACE):
    """The answer to what cannot be processed."""

    model_config = ConfigDict(alias_generator=_hyphened)

    error: str = INVALID_STRUCTURE
    original_attempt: str
    """Base64 of the first `MAX_ATTEMPT` bytes."""

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """The answer to these bytes."""
        return cls(original_attempt=base64.b64encode(raw[:MAX_ATTEMPT]).decode())


class SystemErrorCode(StrEnum):
    """Why a message was not delivered, as far as its sender may know."""

    ROUTING = "routing"
    VALIDATION = "validation"
    TIMEOUT = "timeout"


class SystemErrorMessage(Payload, tag="SystemError", system_namespace=""):
    """The answer to a message that may not or cannot be delivered; the thread stays alive."""

    model_config = ConfigDict(alias_generator=_hyphened)

    code: SystemErrorCode
    message: str
    retry_allowed: bool

    @classmethod
    def routing(cls) -> Self:
        """The target is unknown, or not allowed."""
        return cls(code=SystemErrorCode.ROUTING, message=UNDELIVERABLE, retry_allowed=True)

    @classmethod
    def validation(cls) -> Self:
        """What was returned is no message that may go out."""
        return cls(code=SystemErrorCode.VALIDATION, message=REJECTED, retry_allowed=True)

    @classmethod
    def timeout(cls) -> Self:
        """There was no answer in time."""
        return cls(code=SystemErrorCode.TIMEOUT, message=TIMED_OUT, retry_allowed=False)


def is_system_message(payload: Payload) -> bool:
    """Whether only the pump may send this payload (protocol §9.6)."""
    return isinstance(payload, Huh | SystemErrorMessage)
