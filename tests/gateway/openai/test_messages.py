"""Messages as a box, and what no turn can read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnstile.gateway.http.problems import BadField, Unsupported
from turnstile.gateway.openai.chat_request import ChatCreate, said_in
from turnstile.gateway.openai.fields import PASSED, is_empty, notes_of
from turnstile.gateway.openai.messages import CallOutput, MadeCalls, SpokenText, composed
from turnstile.schema.errors import Refused, TurnstileError
from turnstile.schema.wire.box_requests import TextPart

USER: dict[str, Any] = {"role": "user", "content": "hello"}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*ChatCreate.model_fields, *ChatCreate.harmless, "role", "content", "type", "text", "other"])


def test_texts_become_parts_and_instructions() -> None:
    made = composed(
        [
            SpokenText("instructions", "a"),
            SpokenText("user", "b"),
            SpokenText("assistant", "c"),
            SpokenText("instructions", "d"),
            SpokenText("user", ""),
        ]
    )
    assert made.instructions == "a\n\nd"
    parts = [TextPart(text="b", type="task.instruction"), TextPart(text="c", type="task.deliverable")]
    assert made.parts == parts
    with pytest.raises(Refused) as raised:
        composed([SpokenText("user", "\u20ac" * 175_000)])
    assert raised.value.code == "text_too_large"


@given(st.dictionaries(NAMES, ANYTHING, max_size=6), st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=3))
def test_whatever_is_sent_is_taken_or_refused(fields: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    """Nothing else is raised, and what is refused is a field that was given or is missing."""
    given_fields = {"model": "m", "messages": [USER, *messages], **fields}
    refused: TurnstileError | ValidationError | None = None
    said: list[SpokenText | MadeCalls | CallOutput] = []
    try:
        said = said_in(ChatCreate.model_validate(given_fields).messages)
    except (TurnstileError, ValidationError) as error:
        refused = error
    if refused is not None:
        named = refused.param.split(".")[0] if isinstance(refused, BadField) else "model"
        assert named in given_fields or named == "a field"  # the name of a stranger's field may be anything
        return
    assert all(isinstance(entry[1 if isinstance(entry, SpokenText | CallOutput) else 0], str) for entry in said)
    for name, value in given_fields.items():
        defaults = ChatCreate.harmless.get(name, ())
        empty = is_empty(value) and any(isinstance(default, dict) for default in defaults)
        assert value is None or name in {*ChatCreate.model_fields, *PASSED} or value in defaults or empty


def test_a_value_of_another_type_is_not_the_default() -> None:
    for name, value in (("n", True), ("n", 1.0), ("store", 0), ("functions", ""), ("logprobs", 0)):
        with pytest.raises(Unsupported) as raised:
            ChatCreate.model_validate({"model": "m", "messages": [USER], name: value})
        assert raised.value.param == name
    for name in ("x" * 1000, "a\nb"):  # what a stranger calls a field is not told on if it is no name
        with pytest.raises(Unsupported) as unnamed:
            ChatCreate.model_validate({"model": "m", "messages": [USER], name: 1})
        assert unnamed.value.param == "a field"


def test_notes_are_bounded() -> None:
    assert notes_of(None, user=None) == {}
    assert notes_of({}, user="ada") == {"openai": {"user": "ada", "metadata": {}}}
    for metadata in ({str(n): "" for n in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}):
        with pytest.raises(BadField):
            notes_of(metadata)
