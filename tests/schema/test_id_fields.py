"""Every id in the request of every verb is checked by its type, before anything asks the ledger about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from tests.support.fuzz import Dice
from turnstile.schema import ids
from turnstile.schema.budgets.views import BudgetId
from turnstile.schema.errors import BadRequest
from turnstile.schema.pump.threads import ThreadId
from turnstile.schema.verbs import VERBS
from turnstile.schema.wire.inbox import ReportRequest

NEVER = ("", "\0", "a\0", "x" * 300, "a\n", "\ud800")
"""What no id is."""
TOKENS = ("ä", "a b", "a.b", "*", ">", "x" * 129)
"""What may be an id, but no token of a subject."""
REFUSED: dict[object, tuple[str, ...]] = {
    ids.BoxId: (*NEVER, *TOKENS, "01a20068-5f33-71eb-a3ad", "null"),
    ids.AgentId: (*NEVER, *TOKENS),
    ids.ConversationId: ("", "\0", "a\0", "x" * 513, "ä" * 257, "a\n", "\ud800"),
    **dict.fromkeys([ids.AgentTurnId, ids.CardId, ids.ToolCallId, ids.InterruptId], NEVER),
    **dict.fromkeys([ids.ReceiverId, ids.ArtifactId, BudgetId, ThreadId], NEVER),
}
"""By the kind of an id."""


def parts(annotation: Any) -> Iterator[Any]:
    """The annotation and all that it is made of."""
    yield annotation
    for inner in get_args(annotation):
        yield from parts(inner)


def models() -> dict[str, type[BaseModel]]:
    """The requests of all verbs and the models within them, by how they are reached."""
    known: dict[type[BaseModel], str] = {}
    waiting: list[tuple[str, type[BaseModel]]] = [(verb.name, verb.request) for verb in VERBS]
    while waiting:
        name, model = waiting.pop()
        if model in known:
            continue
        known[model] = name
        for field, info in model.model_fields.items():
            inner = [part for part in parts(info.annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
            waiting += [(f"{name}.{field}", each) for each in inner]
    return {f"{name} {model.__name__}": model for model, name in known.items()}


@dataclass(frozen=True)
class IdField:
    """A field that holds an id, or several."""

    model: type[BaseModel]
    name: str
    kind: object
    several: bool


def id_fields() -> Iterator[tuple[str, IdField]]:
    """Each field of an id, by where it is."""
    for name, model in models().items():
        for field, info in model.model_fields.items():
            for part in parts(info.annotation):
                if hasattr(part, "__supertype__") and part.__supertype__ is str:
                    several = any(p is list or getattr(p, "__origin__", None) is list for p in parts(info.annotation))
                    yield f"{name}.{field}", IdField(model, field, part, several)


FIELDS = dict(id_fields())


def test_the_table_has_every_kind_of_id_that_a_request_has() -> None:
    assert {field.kind for field in FIELDS.values()} <= REFUSED.keys()
    assert len(FIELDS) > 35


@pytest.mark.parametrize("name", FIELDS)
def test_no_id_of_a_request_can_be_what_none_is(name: str) -> None:
    field = FIELDS[name]
    named = {part for part in parts(field.model.model_fields[field.name].annotation) if isinstance(part, str)}
    for value in set(REFUSED[field.kind]) - named:
        given = Dice.of(1).valid(field.model) | {field.name: [value] if field.several else value}
        with pytest.raises((ValidationError, BadRequest)) as refused:
            field.model.model_validate(given)
        if isinstance(refused.value, ValidationError):
            places = {error["loc"][0] for error in refused.value.errors() if error["loc"]}
            assert field.name in places or field.model is ReportRequest, (value, places)


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.kind is ids.ConversationId])
def test_any_text_names_a_conversation(name: str) -> None:
    """A Slack thread, a Teams thread, a Message-ID: each is always known by the same token, and no other."""
    field = FIELDS[name]
    texts = (*TOKENS, "C0B-1784622590.251599", "thread:19:abc@thread.tacv2", "<CAF=1+a@mail.example.org>", "ä" * 256)
    tokens: dict[str, str] = {}
    needed = {key for key, info in field.model.model_fields.items() if info.is_required()}
    given = {key: value for key, value in Dice.of(1).valid(field.model).items() if key in needed}
    given |= {
        key: value for key, value in (("agent_id", "a"), ("every_seconds", 3600)) if key in field.model.model_fields
    }
    for text in (*texts, "a-token_1"):
        known = field.model.model_validate(given | {field.name: text})
        tokens[text] = getattr(known, field.name)
        assert field.model.model_validate(known.model_dump(exclude_none=True)) == known
    assert tokens.pop("a-token_1") == "a-token_1"
    assert len(set(tokens.values())) == len(texts)
    assert all(ids.token(token, "conversation_id").startswith("c-") for token in tokens.values())
