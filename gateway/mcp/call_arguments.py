"""What the tools of `/mcp` take and answer: models that read it, and JSON schemas that clients show to models. Pure.

The schemas are written out: clients of 2025 get `type`, `properties` and `required` alone, so no part is elsewhere.
"""

from typing import Final, cast

from pydantic import Field

from turnstile.rules.tool_specs import as_value
from turnstile.schema.api import TOKEN
from turnstile.schema.base import ConversationToken, JsonObject, Strict
from turnstile.schema.cards import ResultField
from turnstile.schema.profiles import OutputSchema
from turnstile.schema.verbs import LONGEST_WAIT

USUAL_WAIT: Final = 50.0
"""Seconds that a call waits for its turn: less than the minute after which many clients give up."""


class Ask(Strict):
    """Arguments of a tool that asks an agent."""

    instruction: str = Field(min_length=1)
    result_fields: list[ResultField] | None = Field(default=None, min_length=1, max_length=256)
    output_schema: OutputSchema | None = None
    conversation_id: ConversationToken | None = None
    wait_seconds: float = Field(default=USUAL_WAIT, ge=0, le=LONGEST_WAIT)


class TurnGet(Strict):
    """Arguments of `turn_get`."""

    turn_id: str = Field(pattern=TOKEN)
    wait_seconds: float = Field(default=0.0, ge=0, le=LONGEST_WAIT)


class TurnStopArguments(Strict):
    """Arguments of `turn_stop`."""

    turn_id: str = Field(pattern=TOKEN)
    reason: str = Field(default="", max_length=900)


def _object(required: list[str], properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*required], "additionalProperties": False}


def _wait(words: str, usual: float) -> JsonObject:
    return {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": usual, "description": words}


_TURN_ID: JsonObject = {"type": "string", "description": "The turn's id, from an earlier answer."}
_FIELD = _object(
    ["name"],
    {
        "name": {"type": "string", "minLength": 1, "maxLength": 128},
        "description": {"type": "string", "description": "What the field should contain."},
    },
)
_ASK: Final[JsonObject] = {
    "instruction": {
        "type": "string",
        "minLength": 1,
        "description": "The task, with everything that the agent must know.",
    },
    "conversation_id": {
        "type": "string",
        "minLength": 1,
        "maxLength": 512,
        "description": "A conversation with the agent: its turns run one after the other and remember earlier ones.",
    },
    "wait_seconds": _wait(
        "How long to wait for the answer; after that the answer is a handle for turn_get.", USUAL_WAIT
    ),
}
_FORMS: Final[JsonObject] = {
    "result_fields": {
        "type": "array",
        "items": _FIELD,
        "minItems": 1,
        "maxItems": 256,
        "description": "Fields that the answer must have; without this the answer is a text.",
    },
    "output_schema": {
        "type": "object",
        "description": "A JSON schema: the answer's value matches it. Not together with result_fields.",
    },
}
ASK_SCHEMA: Final = _object(["instruction"], _ASK | _FORMS)
TYPED_ASK_SCHEMA: Final = _object(["instruction"], _ASK)
"""A question to an agent whose profile says what its answers match."""
TURN_GET_SCHEMA: Final = _object(
    ["turn_id"], {"turn_id": _TURN_ID, "wait_seconds": _wait("How long to wait for the turn's end.", 0.0)}
)
TURN_STOP_SCHEMA: Final = _object(
    ["turn_id"],
    {"turn_id": _TURN_ID, "reason": {"type": "string", "maxLength": 900, "description": "Why, for people."}},
)
STATUSES: Final = ("success", "partial", "failed", "timeout", "canceled", "running", "waiting_for_person", "refused")
ANSWER_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "turn_id": {"type": "string", "description": "The turn: a handle for turn_get and turn_stop."},
        "status": {
            "type": "string",
            "enum": [*STATUSES],
            "description": "running: it continues; waiting_for_person: a person must decide; refused: nothing ran.",
        },
        "value": {"description": "The agent's answer: a text, or JSON."},
        "fields": {"type": "object", "description": "The requested fields, by name."},
        "partial": {
            "type": "boolean",
            "description": "Whether the answer is incomplete: what was available when the turn ended.",
        },
        "error_code": {"type": "string", "description": "What went wrong, as a stable code."},
        "error": {"type": "string", "description": "What went wrong, for people."},
        "interrupt_ids": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The open interrupts that the turn waits for.",
        },
    },
    "required": ["status"],
}


def answer_schema(output_schema: JsonObject | None) -> JsonObject:
    """What a tool answers whose agent answers a value of this schema, if any: an answer with another is an error."""
    if not output_schema:
        return ANSWER_SCHEMA
    properties = cast("JsonObject", ANSWER_SCHEMA["properties"])
    return {**ANSWER_SCHEMA, "properties": {**properties, "value": as_value(output_schema)}}
