"""What an agent is told of its peers."""

from decimal import Decimal
from enum import StrEnum
from typing import Literal

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from pydantic import Field, JsonValue, TypeAdapter

from tests.schema.pump.strategies import drawn_payloads
from turnstile.schema.base import JsonObject
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.peers import RESPONSE_WARNING, tool_instructions, tool_parameters, usage_instructions


class Unit(StrEnum):
    KG = "kg"
    G = "g"


class Item(Payload):
    """One thing."""

    title: str = Field(description="what -- it is")
    unit: Unit = Unit.KG


class Order(Payload, tag="order"):
    """An order
    of things."""

    items: list[Item] = Field(description="all of them")
    first: Item = Field(description="the first one")
    price: Decimal | None = None
    kind: Literal["small"] = "small"


ITEM: JsonObject = {
    "type": "object",
    "description": "One thing.",
    "properties": {
        "title": {"type": "string", "description": "what -- it is"},
        "unit": {"type": "string", "enum": ["kg", "g"], "default": "kg"},
    },
    "required": ["title"],
    "additionalProperties": False,
}


def test_the_schema_of_a_tool() -> None:
    assert tool_parameters(Order) == {
        "type": "object",
        "description": "An order\nof things.",
        "properties": {
            "items": {"type": "array", "items": ITEM, "description": "all of them"},
            "first": {**ITEM, "description": "the first one"},
            "price": {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}], "default": None},
            "kind": {"type": "string", "enum": ["small"], "default": "small"},
        },
        "required": ["items", "first"],
        "additionalProperties": False,
    }


def test_a_payload_without_fields_and_one_with_a_field_called_title() -> None:
    class Ping(Payload):
        pass

    class Book(Payload):
        title: str

    assert tool_parameters(Ping) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert tool_parameters(Book)["properties"] == {"title": {"type": "string"}}


@given(drawn_payloads())
def test_the_json_of_any_payload_fits_its_schema_and_comes_back(payload: Payload) -> None:
    schema = tool_parameters(type(payload))
    Draft202012Validator.check_schema(schema)
    assert "$ref" not in str(schema)
    value = TypeAdapter[JsonValue](JsonValue).validate_json(payload.to_json())
    Draft202012Validator(schema).validate(value)  # pyright: ignore[reportUnknownMemberType] -- the stubs leave it open
    assert type(payload).from_value(value) == payload


INSTRUCTIONS = f"""\
You can send a message to each of these peers. Each takes one payload, as XML:

# clerk
Takes orders.
An order of things.
Its payload is <order>:

<order>
  <items> <!-- any number; all of them -->
    <title>text</title> <!-- what - - it is -->
    <unit>kg | g</unit> <!-- optional -->
  </items>
  <first> <!-- the first one -->
    <title>text</title> <!-- what - - it is -->
    <unit>kg | g</unit> <!-- optional -->
  </first>
  <price>decimal</price> <!-- optional -->
  <kind>small</kind> <!-- optional -->
</order>

# store
Keeps things.
One thing.
Its payload is <item>:

<item>
  <title>text</title> <!-- what - - it is -->
  <unit>kg | g</unit> <!-- optional -->
</item>

{RESPONSE_WARNING}"""


def test_usage_instructions() -> None:
    peers = {"store": ("Keeps things.", Item), "clerk": ("Takes orders.", Order)}
    assert usage_instructions(peers) == INSTRUCTIONS
    assert usage_instructions(dict(reversed(peers.items()))) == INSTRUCTIONS
    assert usage_instructions({}) == RESPONSE_WARNING


def test_a_model_is_told_its_tools_and_no_xml() -> None:
    peers = {"store": "Keeps\n things.", "clerk": "Takes orders."}
    told = tool_instructions(peers, send="send_", respond="respond", think="think")
    assert told == tool_instructions(dict(reversed(peers.items())), send="send_", respond="respond", think="think")
    clerk = "# clerk\nTakes orders.\nCall the tool send_clerk."
    store = "# store\nKeeps things.\nCall the tool send_store."
    assert f"{clerk}\n\n{store}" in told
    assert "calling the tool respond" in told
    assert "call the tool think" in told
    assert "<" not in told
    assert told.endswith(RESPONSE_WARNING)
    assert "peers" not in tool_instructions({}, send="send_", respond="respond", think="think").partition("\n")[0]


@pytest.mark.parametrize("word", ["ALL sub-tasks", "terminated", "state and context are lost", "wait for it first"])
def test_the_warning_says_what_is_lost(word: str) -> None:
    assert word in RESPONSE_WARNING
