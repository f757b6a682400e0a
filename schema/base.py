"""The base classes of models: `Strict` for input from outside, `Tolerant` between versions, `Reply`; a field type."""

import json
from collections.abc import Collection
from typing import Annotated, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import from_json

from turnstile.schema.ids import AgentId, BoxId, ConversationId, box_id, conversation_named, end_user, token
from turnstile.schema.states import ReplyStatus


class Strict(BaseModel):
    """Frozen; refuses unknown fields. For requests of clients and configuration files."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Tolerant(BaseModel):
    """Frozen; ignores unknown fields. For data that older and newer workers exchange."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Reply(Tolerant):
    """The fields of every primitive's reply (protocol §6)."""

    status: ReplyStatus
    """`accepted`: done. `steered` (of `enqueue`): an earlier turn hears it. `busy`: try again. `rejected`: refused.
    `error`: a server failed."""
    error_code: str | None = None
    """The reason as a stable code; null if accepted."""
    error: str | None = None
    """The reason, for people."""

    @property
    def is_done(self) -> bool:
        """Whether the request was done, now or before."""
        return self.status in {ReplyStatus.ACCEPTED, ReplyStatus.STEERED}


JsonObject = dict[str, JsonValue]

STORED = {"stored": True}
"""The validation context of stored rows: it skips checks that were made when the row was written."""


def known_fields(value: object, names: Collection[str]) -> object:
    """An object without the fields that have other names, as a card may have that others wrote."""
    if not isinstance(value, dict):
        return value
    fields = cast("JsonObject", value)
    return {name: field for name, field in fields.items() if name in names}


def _agent_token(value: AgentId) -> AgentId:
    return AgentId(token(value, "agent_id"))


AgentToken = Annotated[AgentId, AfterValidator(_agent_token)]
"""An agent's id from outside, which must be a token of a subject."""


ConversationToken = Annotated[ConversationId, Field(min_length=1, max_length=512), AfterValidator(conversation_named)]
"""Any text from outside names a conversation; one that is no token of subjects is known by a token derived from it."""


def _end_user(value: str) -> str:
    return end_user(value, "end_user")


EndUser = Annotated[str, AfterValidator(_end_user)]
"""A caller's name for the person it asks for: any printable text of up to 512 bytes."""


def _box_uuid(value: BoxId) -> BoxId:
    return box_id(value, "box id")


BoxUuid = Annotated[BoxId, AfterValidator(_box_uuid)]
"""A box's id from outside, in its canonical form once it is read."""

_LONGEST_ID = 256
_Id = TypeVar("_Id", bound=str)


def _printable(value: _Id) -> _Id:
    if not 0 < len(value) <= _LONGEST_ID or not value.isprintable():
        raise ValueError(f"must be 1 to {_LONGEST_ID} printable characters")
    return value


IdOf = Annotated[_Id, AfterValidator(_printable)]
"""The id, from outside, of what may be there or not: a text that the ledger can look up."""

DEEPEST = 64
"""The most levels of JSON that strangers write: arguments, schemas. What is deeper is refused where it enters."""
DEEPEST_STORED = 128
"""The most levels that are read of a row: anyone may have written it."""
_CUT = "… (nested too deeply to be shown)"


def too_deep(value: JsonValue, most: int = DEEPEST) -> bool:
    """Whether a value has more levels of lists and objects than `most`. It looks at each part once."""
    level: list[JsonValue] = [value]
    for _ in range(most + 1):
        whole = [part for part in level if isinstance(part, list | dict)]
        if not whole:
            return False
        level = [inner for part in whole for inner in (part if isinstance(part, list) else part.values())]
    return True


def read_column(value: object) -> object:
    """A column of JSON is text; in a reply it is the object."""
    return from_json(value) if isinstance(value, str) else value


def stored_json(text: str) -> JsonValue:
    """The JSON that a row holds; parts of more than `DEEPEST_STORED` levels, which nobody can send on, are cut."""
    try:
        value = cast("JsonValue", json.loads(text))
    except RecursionError:
        return _CUT
    if text.count("{") + text.count("[") <= DEEPEST_STORED or not too_deep(value, DEEPEST_STORED):
        return value
    return _cut(value, DEEPEST_STORED)


def _cut(value: JsonValue, levels: int) -> JsonValue:
    match value:
        case list() | dict() if levels == 0:
            return _CUT
        case list():
            return [_cut(part, levels - 1) for part in value]
        case dict():
            return {name: _cut(part, levels - 1) for name, part in value.items()}
        case _:
            return value
