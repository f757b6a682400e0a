"""Requests and replies of the verbs on boxes: `box_fork`, `box_make` and `box_replace` (protocol §6)."""

import hashlib
import json
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from turnstile.schema.base import AgentToken, BoxUuid, IdOf, Reply, Strict, Tolerant
from turnstile.schema.cards import MOST_PARTS, CardType, ResultField
from turnstile.schema.ids import ArtifactId, BoxId, CardId, ChannelId
from turnstile.schema.wire.file_requests import FileId

CARD_LIMIT = 10_000
"""Cards of a box that `box_make` makes, and parts of one request."""
BOX_PART_LIMIT = 100
"""Parts of one request that name a box: each may read `CARD_LIMIT` cards."""


class BoxForkRequest(Strict):
    """Arguments of `box_fork`."""

    box_id: BoxUuid
    """The box (uuid) whose list is copied as it is now, even if a turn writes it meanwhile."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request; a repeat for the same box returns the same new box."""


class BoxForkReply(Reply):
    """Reply to `box_fork`."""

    box_id: BoxId | None = None
    """The new box."""
    duplicate: bool = False
    """Whether the same request was made before: then this is its box, and nothing was written."""


class BoxPart(Strict):
    """The cards of a box, in their order; deleted and expired ones are left out."""

    box_id: BoxUuid
    """The box (uuid)."""
    last: int | None = Field(default=None, ge=1, le=CARD_LIMIT)
    """Only this many of its last cards; of those of `types`, if that is given."""
    types: list[CardType] | None = Field(default=None, min_length=1, max_length=len(CardType))
    """Only cards of these types."""


class CardPart(Strict):
    """One card that is in a box of the project."""

    card_id: IdOf[CardId] = Field(min_length=1, max_length=256)
    """The card."""


class TextPart(Strict):
    """A new card with a text."""

    text: str = Field(min_length=1)
    """The text."""
    type: Literal["task.instruction", "task.deliverable"] = "task.instruction"
    """`task.instruction` is read as the user's text, `task.deliverable` as the assistant's."""
    files: list[FileId] = Field(default_factory=list[ArtifactId], max_length=MOST_PARTS)
    """Files of the channel that belong to it."""


class FieldsPart(Strict):
    """A new `task.result_fields` card."""

    fields: list[ResultField] = Field(min_length=1, max_length=256)
    """The fields that a deliverable must have."""


class PastCall(Strict):
    """A call in a history: one that a model made elsewhere, or in a turn before."""

    tool_call_id: str = Field(min_length=1, max_length=128)
    """Its id, by which its result is known."""
    tool_name: str = Field(min_length=1, max_length=128)
    """The tool."""
    arguments: str = ""
    """Its arguments, as JSON."""


class CallsPart(Strict):
    """A new card with what a model said and called, read as the assistant's."""

    calls: list[PastCall] = Field(min_length=1, max_length=1024)
    """The calls, in their order."""
    text: str = ""
    """What the model said with them."""


class PastResult(Strict):
    """What a call in a history came to."""

    tool_call_id: str = Field(min_length=1, max_length=128)
    """The call, which stands before it."""
    output: JsonValue = None
    """Its result."""


class ResultPart(Strict):
    """A new card with the result of a call. It stands in a history, and answers no call that a turn waits for."""

    result: PastResult
    """The result."""


_KINDS = ("box_id", "card_id", "calls", "result", "text", "fields")


def _kind_of(part: object) -> str | None:
    """The key that names the kind of the part."""
    if isinstance(part, dict):
        return next((kind for kind in _KINDS if kind in part), None)
    return next((kind for kind in _KINDS if hasattr(part, kind)), None)


Part = Annotated[
    Annotated[BoxPart, Tag("box_id")]
    | Annotated[CardPart, Tag("card_id")]
    | Annotated[CallsPart, Tag("calls")]
    | Annotated[ResultPart, Tag("result")]
    | Annotated[TextPart, Tag("text")]
    | Annotated[FieldsPart, Tag("fields")],
    Discriminator(
        _kind_of,
        custom_error_type="part_kind",
        custom_error_message="a part has one of box_id, card_id, calls, result, text and fields",
    ),
]
"""A part of a box that `box_make` makes."""


class BoxMakeRequest(Strict):
    """Arguments of `box_make`."""

    parts: list[Part] = Field(min_length=1, max_length=CARD_LIMIT)
    """What the box is made of, in this order; a card that several parts name is taken once, at its first place."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request; a repeat with the same parts returns the same new box."""

    @field_validator("parts")
    @classmethod
    def _few_boxes(cls, value: list[Part]) -> list[Part]:
        if sum(isinstance(part, BoxPart) for part in value) > BOX_PART_LIMIT:
            raise ValueError(f"at most {BOX_PART_LIMIT} parts name a box")
        return value

    def digest(self, channel: ChannelId) -> str:
        """A fingerprint of channel and parts; the same correlation with a different one is a conflict."""
        text = self.model_dump_json(exclude={"correlation_id"}, exclude_defaults=True)
        return hashlib.sha256(f"{channel}\0{text}".encode()).hexdigest()

    @property
    def files(self) -> list[ArtifactId]:
        """The files that its new cards name."""
        return [file for part in self.parts if isinstance(part, TextPart) for file in part.files]

    def text_bytes(self) -> int:
        """The bytes of UTF-8 text in the request, limited by `TEXT_LIMIT_BYTES`."""
        texts = [part.text for part in self.parts if isinstance(part, TextPart)]
        fields = [field for part in self.parts if isinstance(part, FieldsPart) for field in part.fields]
        texts += [field.name + field.description for field in fields]
        for part in self.parts:
            if isinstance(part, CallsPart):
                texts += [part.text, *(call.tool_name + call.arguments for call in part.calls)]
            elif isinstance(part, ResultPart):
                texts.append(json.dumps(part.result.output, ensure_ascii=False))
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


class BoxMakeReply(Reply):
    """Reply to `box_make`."""

    box_id: BoxId | None = None
    """The new box."""
    cards: int | None = None
    """The number of its cards."""
    duplicate: bool = False
    """Whether the same request was made before: then this is its box, and nothing was written."""


class BoxReplaceRequest(Strict):
    """Arguments of `box_replace`. At least one box is given; a pointer that is left out is not changed."""

    agent_id: AgentToken
    """The agent of the project whose pointers are set."""
    memory_context_box_id: BoxUuid | None = None
    """The box (uuid) that a turn enqueued without instruction and context box reads; null removes it."""
    last_output_box_id: BoxUuid | None = None
    """The box (uuid) that counts as the agent's last output until its next turn ends."""

    @model_validator(mode="after")
    def _names_a_box(self) -> Self:
        if "memory_context_box_id" not in self.model_fields_set and self.last_output_box_id is None:
            raise ValueError("one of memory_context_box_id and last_output_box_id is needed")
        return self


class AgentBoxes(Tolerant):
    """The boxes that an agent's pointers name."""

    memory_context_box_id: BoxId | None = None
    """The agent's memory."""
    last_output_box_id: BoxId | None = None
    """The output box of its last turn, or the box that `box_replace` set instead."""


class BoxReplaceReply(Reply, AgentBoxes):
    """Reply to `box_replace`: both boxes as they are now."""
