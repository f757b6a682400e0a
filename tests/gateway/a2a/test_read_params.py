"""Requests of A2A within the limits of a request: none holds a loop, and data of any size is read as it was sent."""

import contextlib
import json
from functools import partial
from typing import Any, cast

import pytest
from a2a.types import SendMessageRequest
from a2a.utils.errors import A2AError
from pydantic import JsonValue

from tests.support.cpu import cheap
from turnstile.gateway.a2a.delivery import NOTES, read_message
from turnstile.gateway.a2a.rpc import MOST_VALUES, read_params
from turnstile.schema.base import JsonObject
from turnstile.schema.json_reading import MOST_VALUES as MOST_OF_A_REQUEST

SECONDS = 0.05
"""Of CPU, for one request."""
MOST = MOST_OF_A_REQUEST - 100
ITEMS: list[Any] = [
    json.loads(text)
    for text in (
        *('{"text": "x"}', "{}", '{"metadata": {}}', '{"data": [[], [], [], []]}', "[]", "null", "1"),
        *('{"data": {}, "metadata": {"a": [1, 1, 1]}}', '{"text": "x", "mediaType": "text/plain"}', '{"a": [{}, {}]}'),
    )
]


def sent(**fields: Any) -> JsonObject:
    return {"message": {"messageId": "m", "role": "ROLE_USER", **fields}}


def _read(params: JsonObject) -> None:
    with contextlib.suppress(A2AError):
        read_params(SendMessageRequest, params)


@pytest.mark.parametrize("item", ITEMS, ids=str)
@pytest.mark.parametrize("count", [MOST_VALUES // 3, MOST_VALUES, MOST])
def test_no_message_holds_a_loop(item: Any, count: int) -> None:
    for params in (sent(parts=[item] * count), sent(parts=[{"text": "x"}], extensions=[item] * count)):
        cheap(SECONDS, partial(_read, params))


def test_json_of_a_client_is_not_counted() -> None:
    rows: list[JsonValue] = [{"n": number} for number in range(MOST // 2)]
    noted: JsonObject = {"rows": rows}
    params = sent(parts=[{"data": rows, "metadata": noted}], metadata=noted)
    params["metadata"] = {"a": rows}
    request = cast("SendMessageRequest", read_params(SendMessageRequest, params))
    said = read_message(request, params)
    assert said.data == [rows]
    assert said.notes == {NOTES: {"metadata": noted, "requestMetadata": {"a": rows}}}


def test_other_values_are_counted() -> None:
    with pytest.raises(A2AError, match="2000 values besides data parts"):
        read_params(SendMessageRequest, sent(parts=[{"text": "x"}] * MOST_VALUES))
