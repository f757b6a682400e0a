"""What of a request is read, and what is refused by its name."""

from typing import Any

import pytest
from pydantic import ValidationError

from turnstile.gateway.http.problems import BadField, Unsupported
from turnstile.gateway.openai.messages import SpokenText
from turnstile.gateway.openai.responses.request import ItemRef, MutuallyExclusive, ResponseCreate
from turnstile.gateway.openai.responses.response_reading import place_in
from turnstile.schema.errors import Refused
from turnstile.schema.ids import conversation_named


def request(**fields: Any) -> ResponseCreate:
    return ResponseCreate.model_validate({"model": "a", "input": "hello", **fields})


def test_texts_are_read_in_their_order() -> None:
    items: list[Any] = [
        {"role": "system", "content": "be kind"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}],
        },
        {"role": "user", "content": "and?"},
    ]
    assert request(input=items, instructions="be brief").entries() == [
        SpokenText("instructions", "be brief"),
        SpokenText("instructions", "be kind"),
        SpokenText("user", "hi"),
        ItemRef("msg_1", "input.2.id", "hello", is_needed=False),
        SpokenText("user", "and?"),
    ]


NOTHING_SAID: list[Any] = [None, 3, "", [], {}, [{"role": "system", "content": "only"}]]
BAD_INPUTS: list[tuple[str, Any]] = [
    *(("input", value) for value in NOTHING_SAID),
    ("input.0", ["text"]),
    ("input.0.role", [{"role": "tool", "content": "x"}]),
    ("input.0.role", [{"role": ["user"], "content": "x"}]),
    ("input.0.content", [{"role": "user"}]),
    ("input.0.content.0.type", [{"role": "user", "content": [{"type": 3}]}]),
    ("input.0.content.0.text", [{"role": "user", "content": [{"type": "input_text", "text": None}]}]),
]


@pytest.mark.parametrize(("param", "value"), BAD_INPUTS)
def test_a_bad_input_is_named(param: str, value: object) -> None:
    with pytest.raises(BadField) as refused:
        request(input=value).entries()
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("param", "item"),
    [
        ("input.0.type", {"type": "computer_call_output", "call_id": "c", "output": {}}),
        ("input.0.mood", {"role": "user", "content": "x", "mood": "good"}),
        ("input.0.content.0.type", {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
        ("input.0.content.0.type", {"role": "user", "content": [{"type": "output_text", "text": "x"}]}),
    ],
)
def test_other_items_are_unsupported_by_name(param: str, item: object) -> None:
    with pytest.raises(Unsupported) as refused:
        request(input=[item]).entries()
    assert refused.value.param == param


def test_items_that_were_answered_are_read_by_their_ids() -> None:
    items: list[Any] = [
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_2"},
        {"type": "mcp_call", "id": "mcp_1", "name": "n", "server_label": "s", "arguments": "{}", "output": "o"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ]
    assert request(input=items).entries() == [
        ItemRef("msg_1", "input.0.id"),
        ItemRef("msg_2", "input.1.id"),
        ItemRef("mcp_1", "input.2.id", is_needed=False),
    ]


def test_what_only_changes_costs_passes() -> None:
    hints: list[dict[str, Any]] = [
        {"prompt_cache_retention": "24h"},
        {"parallel_tool_calls": True},
        {"reasoning": {"effort": None, "summary": None}},
        {"text": {"format": None, "verbosity": None}},
        {"include": ["reasoning.encrypted_content"]},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hello", "role": "user"}], "name": "a"}
            ]
        },
    ]
    for fields in hints:
        assert request(**fields).entries() == [SpokenText("user", "hello")]


def test_a_refusal_says_what_was_sent_and_what_to_do() -> None:
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    with pytest.raises(Unsupported, match="an image was sent, but agents accept only input_text"):
        request(input=[image]).entries()
    with pytest.raises(Unsupported, match=r'tool_choice.*\("required" was sent\); send "none" or "auto"'):
        request(tool_choice="required")
    with pytest.raises(Unsupported, match=r'tools.0.type.*\("web_search" was sent\); send "function"'):
        request(tools=[{"type": "web_search"}])


def test_one_past_at_a_time() -> None:
    with pytest.raises(MutuallyExclusive):
        request(conversation="c", previous_response_id="resp_1")
    assert request(conversation={"id": "c"}).conversation_id() == "c"
    assert request(conversation="thread:19:a/b").conversation_id() == conversation_named("thread:19:a/b")
    ids: list[Any] = ["", "a\0b", "x" * 513, 3, {"id": 3}, {"id": "c", "more": 1}, []]
    for bad in ids:
        with pytest.raises(BadField):
            request(conversation=bad).conversation_id()


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "true"},
        {"background": 1},
        {"temperature": 3},
        {"max_output_tokens": 0},
        {"user": "x" * 600},
        {"model": 3},
    ],
)
def test_values_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        request(**fields)


def test_notes_have_what_is_given_back() -> None:
    notes = request(background=True, user="ada", metadata={"a": "b"}, previous_response_id="resp_1").notes()
    assert notes == {
        "openai": {
            "model": "a",
            "user": "ada",
            "metadata": {"a": "b"},
            "previous_response_id": "resp_1",
            "background": True,
        }
    }


@pytest.mark.parametrize("name", ["", "resp_", "resp_a.b", "msg_1", "resp_" + "x" * 129, "resp_\n"])
def test_an_id_that_is_none_is_unknown(name: str) -> None:
    with pytest.raises(Refused) as refused:
        place_in(name)
    assert refused.value.code == "unknown_response"
