"""What handlers return and are told, and the pump's two messages as protocol §9 writes them."""

import base64

import pytest
from pydantic import ValidationError

from turnstile.schema.pump.documents import BadPayload, read_root
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import (
    CORE_NAMESPACE,
    HandlerMetadata,
    HandlerResponse,
    Huh,
    ResponseKind,
    SystemErrorCode,
    SystemErrorMessage,
    Text,
    is_system_message,
)


def test_a_response_says_where_it_goes() -> None:
    text = Text(text="x")
    assert HandlerResponse(text, to="a") == HandlerResponse(payload=text, to="a")
    assert (HandlerResponse(text).kind, HandlerResponse(text).to) == (ResponseKind.FORWARD, None)
    response = HandlerResponse.respond(payload=text)
    assert (response.kind, response.to, response.payload) == (ResponseKind.RESPOND, None, text)
    assert response.payload is text
    assert response != HandlerResponse(text)
    with pytest.raises(ValidationError, match="names no target"):
        HandlerResponse(text, to="a", kind=ResponseKind.RESPOND)
    with pytest.raises(ValidationError):
        HandlerResponse("secret")  # pyright: ignore[reportArgumentType]  # what a handler without types may do


def test_metadata() -> None:
    metadata = HandlerMetadata(thread_id="t", from_id="caller")
    assert (metadata.own_name, metadata.is_self_call, metadata.usage_instructions) == (None, False, "")
    with pytest.raises(ValidationError):
        metadata.from_id = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_huh() -> None:
    huh = Huh.of(b"Hello World")
    assert huh.to_xml() == (
        b'<huh xmlns="https://xml-pipeline.org/ns/core/v1"><error>Invalid payload structure</error>'
        b"<original-attempt>SGVsbG8gV29ybGQ=</original-attempt></huh>"
    )
    assert Huh.root_tag() == f"{{{CORE_NAMESPACE}}}huh" == read_root(huh.to_xml()).tag
    assert Huh.from_xml(huh.to_xml()) == huh
    assert Huh.from_json(huh.to_json()) == huh
    with pytest.raises(BadPayload):
        Huh.from_xml(huh.to_xml().replace(CORE_NAMESPACE.encode(), b"urn:other"))
    with pytest.raises(BadPayload):
        Huh.from_xml(b"<huh><error>x</error><original-attempt></original-attempt></huh>")


def test_huh_gives_back_any_bytes_cut_off() -> None:
    raw = bytes(range(256)) * 100
    huh = Huh.from_xml(Huh.of(raw).to_xml())
    assert base64.b64decode(huh.original_attempt) == raw[:4_096]


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (SystemErrorMessage.routing(), SystemErrorCode.ROUTING, True),
        (SystemErrorMessage.validation(), SystemErrorCode.VALIDATION, True),
        (SystemErrorMessage.timeout(), SystemErrorCode.TIMEOUT, False),
    ],
)
def test_system_errors(error: SystemErrorMessage, code: SystemErrorCode, retry: bool) -> None:
    assert (error.code, error.retry_allowed) == (code, retry)
    assert SystemErrorMessage.from_xml(error.to_xml()) == error
    assert SystemErrorMessage.from_json(error.to_json()) == error


def test_a_routing_error_as_it_travels() -> None:
    assert SystemErrorMessage.routing().to_xml() == (
        b'<SystemError xmlns=""><code>routing</code><message>Message could not be delivered. Please verify your target '
        b"and try again.</message><retry-allowed>true</retry-allowed></SystemError>"
    )
    assert SystemErrorMessage.root_tag() == "SystemError"


def test_only_the_pump_has_them() -> None:
    class Mine(Payload):
        pass

    assert is_system_message(Huh.of(b""))
    assert is_system_message(SystemErrorMessage.timeout())
    assert not is_system_message(Mine())


def test_plain_text() -> None:
    assert Text.from_text("hello").to_xml() == b"<text><text>hello</text></text>"
