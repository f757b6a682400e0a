"""Cards → messages: the rules of protocol §7.3, by example, and by Hypothesis for any boxes at all."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from turnstile.rules.messages import CONTINUE, EMPTY, IMAGE, OPENING, build_messages
from turnstile.rules.turn_config import PinnedConfig, TurnConfig
from turnstile.runtime.ports import ModelMessage
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    Card,
    CardContent,
    CardMetadata,
    CardType,
    CardUnreadable,
    FieldsSchemaContent,
    JsonContent,
    ResultField,
    Role,
    TextContent,
    ThoughtCall,
    ToolError,
    ToolResultContent,
    make_card,
)
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import AgentTurnId, CardId, ToolCallId
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import TurnStatus


def card(
    card_id: str,
    card_type: CardType,
    content: CardContent | str,
    *,
    turn: str | None = "t1",
    calls: list[ThoughtCall] | None = None,
    answers: str | None = None,
) -> Card:
    return make_card(
        CardId(card_id),
        card_type,
        Role.ASSISTANT,
        TextContent(text=content) if isinstance(content, str) else content,
        author="a",
        turn=None if turn is None else AgentTurnId(turn),
        tool_calls=calls,
        tool_call=None if answers is None else ToolCallId(answers),
    )


def call(call_id: str, name: str = "search", arguments: str = "{}") -> ThoughtCall:
    return ThoughtCall(tool_call_id=ToolCallId(call_id), tool_name=name, arguments=arguments)


def thought(card_id: str, text: str, *calls: ThoughtCall, turn: str = "t1") -> Card:
    return card(card_id, CardType.THOUGHT, text, calls=list(calls), turn=turn)


def result(card_id: str, call_id: str, value: str) -> Card:
    content = ToolResultContent(status=TurnStatus.SUCCESS, result=value)
    return card(card_id, CardType.TOOL_RESULT, content, answers=call_id)


ASK = card("i", CardType.INSTRUCTION, "do it", turn=None)


def brief(messages: tuple[ModelMessage, ...]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def test_order_of_sources() -> None:
    messages = build_messages("be good", [thought("a", "before")], [ASK], [thought("b", "now", call("c1"))])
    assert brief(messages) == [
        ("system", "be good"),
        ("user", OPENING),
        ("assistant", "before"),
        ("user", "do it"),
        ("assistant", "now"),
        ("tool", '{"status":"canceled"}'),
    ]


def test_a_call_of_the_turn_that_asks_is_pending_and_one_of_another_turn_was_canceled() -> None:
    pointer = card("p", CardType.PARENT_POINTER, JsonContent(data={"parent_agent_turn_id": "asker"}))
    odd = card("o", CardType.PARENT_POINTER, JsonContent(data=["asker"]))
    inherited = [thought("a", "hm", call("c1"), turn="asker"), thought("b", "", call("c2"), turn="earlier")]
    messages = build_messages("", [], [*inherited, ASK, pointer, odd], [])
    assert [(m.tool_call_id, m.content) for m in messages if m.role == "tool"] == [
        ("c1", '{"status":"pending"}'),
        ("c2", '{"status":"canceled"}'),
    ]


def test_results_follow_their_calls_in_call_order() -> None:
    cards = [
        thought("a", "", call("c1"), call("c2", "other tool")),
        card("n", CardType.MUST_END_WITH_REQUIRED, "end with x"),
        result("r2", "c2", "two"),
        result("r1", "c1", "one"),
        result("r1b", "c1", "again"),
        result("r9", "c9", "nobody asked"),
    ]
    messages = build_messages("", [], [ASK], cards)
    assert [(m.role, m.tool_call_id, m.name) for m in messages] == [
        ("user", None, None),
        ("assistant", None, None),
        ("tool", "c1", "search"),
        ("tool", "c2", "other_tool"),
        ("user", None, None),
    ]
    assert [json.loads(m.content)["result"] for m in messages[2:4]] == ["one", "two"]
    assert messages[1].content == ""


def test_a_repeated_provider_id_is_made_unique_and_answered_by_the_nearest_result() -> None:
    cards = [thought("a", "", call("call_0")), thought("b", "", call("call_0")), result("r", "call_0", "late")]
    messages = build_messages("", [], [ASK], cards)
    assert [(m.tool_call_id, json.loads(m.content)["status"]) for m in messages if m.role == "tool"] == [
        ("call_0", "canceled"),
        ("call_0-2", "success"),
    ]


def test_a_card_in_two_boxes_is_rendered_once_with_its_result() -> None:
    asked, answered = thought("a", "hm", call("c1")), result("r", "c1", "one")
    messages = build_messages("", [asked, answered], [ASK, asked], [])
    assert [m.role for m in messages] == ["user", "assistant", "tool"]
    assert json.loads(messages[2].content) == {"status": "success", "result": "one"}


def test_error_results_and_control_fields() -> None:
    failed = ToolResultContent(status=TurnStatus.FAILED, error=ToolError(code="tool_timeout", message="too late"))
    steered = ToolResultContent(
        status=TurnStatus.SUCCESS,
        result={"x": 1, "__cg_control": {"after_execution": "terminate"}, "__cg_data": {"0": "iVBO"}},
    )
    cards = [
        thought("a", "", call("c1"), call("c2")),
        card("r1", CardType.TOOL_RESULT, failed, answers="c1"),
        card("r2", CardType.TOOL_RESULT, steered, answers="c2"),
    ]
    contents = [json.loads(m.content) for m in build_messages("", [], [ASK], cards) if m.role == "tool"]
    assert contents == [
        {"status": "failed", "error": {"code": "tool_timeout", "message": "too late"}},
        {"status": "success", "result": {"x": 1}},
    ]


@pytest.mark.parametrize(
    ("arguments", "sent"), [("", {}), ('{"q": 1}', {"q": 1}), ("{q", {"malformed_arguments": "{q"})]
)
def test_arguments_are_always_an_object(arguments: str, sent: object) -> None:
    messages = build_messages("", [], [ASK], [thought("a", "", call("c1", arguments=arguments))])
    assert json.loads(messages[1].tool_calls[0].arguments) == sent


def test_deliverables() -> None:
    memory = [
        thought("a", "Paris."),
        card("d1", CardType.DELIVERABLE, "Paris.\n"),
        card("d2", CardType.DELIVERABLE, "Paris.", turn="t2"),
        card("d3", CardType.DELIVERABLE, JsonContent(data={"fields": []})),
        card("d4", CardType.DELIVERABLE, "no turn", turn=None),
    ]
    messages = build_messages("", memory, [ASK], [])
    assert brief(messages)[1] == ("assistant", 'Paris.\n\nParis.\n\n{"fields":[]}\n\nno turn')


@pytest.mark.parametrize(
    ("made", "turn", "left_out"),
    [
        (call("c1", "send_b", '{"n": 1,\n "t": "x"}'), "t1", True),
        (call("c1", "send_b", '{"n": 2, "t": "x"}'), "t1", False),
        (call("c1", "send_b", "{"), "t1", False),
        (call("c1", "send_c", '{"n": 1, "t": "x"}'), "t1", False),
        (call("c1", "send_b", '{"n": 1, "t": "x"}'), "t2", False),
    ],
    ids=["its call", "other arguments", "no arguments", "another choice", "another turn"],
)
def test_the_deliverable_of_a_choice_is_left_out_where_its_call_is_there(
    made: ThoughtCall, turn: str, *, left_out: bool
) -> None:
    data: JsonValue = {"choice": "send_b", "arguments": {"t": "x", "n": 1}}
    memory = [
        thought("a", "", made, turn=turn),
        result("r", "c1", "accepted"),
        card("d", CardType.DELIVERABLE, JsonContent(data=data)),
    ]
    messages = build_messages("", memory, [ASK], [])
    roles = [message.role for message in messages]
    assert roles == ["user", "assistant", "tool", *([] if left_out else ["assistant"]), "user"]
    alone = build_messages("", memory[2:], [ASK], [])
    assert json.loads(alone[1].content) == data


def test_result_fields_are_listed_for_the_model_and_skipped_if_unreadable() -> None:
    fields = FieldsSchemaContent(fields=[ResultField(name="title", description="short"), ResultField(name="body")])
    readable = card("f", CardType.RESULT_FIELDS, fields)
    unreadable = card("g", CardType.RESULT_FIELDS, "title, body")
    (message,) = build_messages(" ", [], [readable, unreadable, ASK], [])
    assert message.role == "user"
    assert "- title: short\n- body\n\ndo it" in message.content


def test_nothing_to_ask() -> None:
    with pytest.raises(ModelError) as raised:
        build_messages("prompt", [thought("a", "mine")], [], [])
    assert (raised.value.code, raised.value.retryable) == ("model_request_invalid", False)


def test_blank_texts_and_a_last_word_of_the_agent() -> None:
    messages = build_messages("", [], [card("i", CardType.INSTRUCTION, " \n")], [thought("a", "")])
    assert brief(messages) == [("user", EMPTY), ("assistant", EMPTY), ("user", CONTINUE)]


def test_images_are_left_out_with_a_note() -> None:
    uri = "data:image/png;base64,iVBORw0KGgo="
    parts: list[JsonValue] = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": uri}}]
    stranger = Card(
        card_id=CardId("s"),
        content={"__type__": "ImageContent", "data": "iVBORw0KGgo="},
        metadata=CardMetadata(type=CardType.INSTRUCTION),
    )
    cards = [
        card("a", CardType.INSTRUCTION, f"see ![it]({uri}) here"),
        card("b", CardType.INSTRUCTION, JsonContent(data=parts)),
        card("c", CardType.INSTRUCTION, JsonContent(data=[{"type": "text", "text": "x"}, 1])),
        stranger,
        thought("t", "", call("c1")),
        result("r", "c1", f"shot: {uri}"),
    ]
    user, _, tool = build_messages("", [], cards, [])
    assert user.content == "\n\n".join(
        (f"see ![it]({IMAGE}) here", f"look\n{IMAGE}", '[{"type":"text","text":"x"},1]', IMAGE)
    )
    assert json.loads(tool.content)["result"] == f"shot: {IMAGE}"


def test_a_card_of_a_strangers_type_is_rendered_by_its_role_if_it_can_be_read() -> None:
    contents: list[tuple[str, JsonValue]] = [
        ("user", {"__type__": "TextContent", "text": "known"}),
        ("assistant", {"__type__": "JsonContent", "data": {"a": 1}}),
        ("system", {"__type__": "TextContent", "text": "besides"}),
        ("tool", {"__type__": "TextContent", "text": "of a tool"}),
        ("", {"__type__": "TextContent", "text": "of nobody"}),
        ("user", {"__type__": "Theirs", "x": 1}),
        ("user", None),
    ]
    cards = [
        Card(card_id=CardId(f"c{n}"), content=content, metadata=CardMetadata(type="task.context", role=role))
        for n, (role, content) in enumerate(contents)
    ]
    messages = [("user", "known"), ("assistant", '{"a":1}'), ("user", "besides")]
    assert brief(build_messages("", [], cards, [])) == messages


@pytest.mark.parametrize(
    ("name", "sent"), [("search", "search"), ("9lives", "_9lives"), ("-x", "_-x"), ("ä b", "__b"), ("", "unnamed")]
)
def test_names_of_functions(name: str, sent: str) -> None:
    messages = build_messages("", [], [ASK], [thought("a", "", call("c1", name))])
    assert [tool_call.name for tool_call in messages[1].tool_calls] == [sent]


@pytest.mark.parametrize("card_type", [CardType.INSTRUCTION, CardType.THOUGHT, CardType.DELIVERABLE])
def test_unreadable_cards(card_type: CardType) -> None:
    broken = Card(card_id=CardId("x"), content={"text": "secret"}, metadata=CardMetadata(type=card_type))
    with pytest.raises(CardUnreadable) as raised:
        build_messages("", [], [ASK, broken], [])
    assert "secret" not in str(raised.value)


def test_an_unreadable_result_counts_only_where_it_is_rendered() -> None:
    broken = card("r", CardType.TOOL_RESULT, "text", answers="c1")
    assert len(build_messages("", [], [ASK, broken], [])) == 1
    with pytest.raises(CardUnreadable):
        build_messages("", [], [ASK], [thought("a", "", call("c1")), broken])


_IDS = st.sampled_from(["c1", "c2", "c3", "call 0", "call_0", "", "ä" * 50])
_TEXTS = st.sampled_from(["", " ", "hello", "Paris."])
_CALLS = st.builds(
    call, _IDS, st.sampled_from(["search", "a.b", "", "n" * 80]), st.sampled_from(["", "{}", "{", "[1]"])
)
_TURNS = st.sampled_from(["t1", "t2", None])
_FIELDS = FieldsSchemaContent(fields=[ResultField(name="title")])
_KINDS = st.sampled_from([kind for kind in CardType if kind not in (CardType.THOUGHT, CardType.TOOL_RESULT)])


@st.composite
def any_card(draw: st.DrawFn) -> Card:
    """A thought, a result, or any other card, under an id that may repeat."""
    shape, number, text = draw(st.sampled_from("tro")), draw(st.integers(0, 30)), draw(_TEXTS)
    if shape == "t":
        return thought(
            f"t{number}", text, *draw(st.lists(_CALLS, max_size=3)), turn=draw(st.sampled_from(["t1", "t2"]))
        )
    if shape == "r":
        return result(f"r{number}", draw(_IDS), text)
    kind = draw(_KINDS)
    choice: JsonValue = {"choice": "search", "arguments": {}}
    contents: list[CardContent] = [TextContent(text=text), JsonContent(data={"a": text}), JsonContent(data=choice)]
    if kind == CardType.RESULT_FIELDS:
        contents.append(_FIELDS)
    return card(f"o{number}", kind, draw(st.sampled_from(contents)), turn=draw(_TURNS))


_BOXES = st.lists(any_card(), max_size=12)


@given(st.sampled_from(["", "be good"]), _BOXES, _BOXES, _BOXES)
def test_any_boxes_become_a_valid_request(
    prompt: str, memory: list[Card], context: list[Card], current: list[Card]
) -> None:
    messages = build_messages(prompt, memory, [ASK, *context], current)
    assert messages == build_messages(prompt, memory, [ASK, *context], current)
    body = messages[1:] if prompt else messages
    assert all(m.role != "system" for m in body)
    assert (body[0].role, body[-1].role in ("user", "tool")) == ("user", True)
    assert all(m.content.strip() or m.tool_calls for m in messages)
    _assert_calls_are_answered_at_once(body)
    _assert_neighbours_are_merged(body)


def _assert_calls_are_answered_at_once(body: tuple[ModelMessage, ...]) -> None:
    ids = [made.id for m in body for made in m.tool_calls]
    assert len(ids) == len(set(ids))
    assert sum(m.role == "tool" for m in body) == len(ids)
    for position, message in enumerate(body):
        results = body[position + 1 : position + 1 + len(message.tool_calls)]
        assert [(m.role, m.tool_call_id, m.name) for m in results] == [
            ("tool", made.id, made.name) for made in message.tool_calls
        ]
        for made in message.tool_calls:
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", made.id)
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made.name)
            assert isinstance(json.loads(made.arguments), dict)
        assert message.role != "tool" or isinstance(json.loads(message.content), dict)


def _assert_neighbours_are_merged(body: tuple[ModelMessage, ...]) -> None:
    for before, after in pairwise(body):
        assert before.role == "tool" or before.tool_calls or before.role != after.role


@given(_BOXES)
def test_no_text_of_a_rendered_card_is_lost(cards: list[Card]) -> None:
    named = {c.card_id: c for c in cards}
    everything = "\n".join(message.content for message in build_messages("", [], [ASK, *cards], []))
    for each in named.values():
        if each.type in (CardType.INSTRUCTION, CardType.THOUGHT, CardType.MUST_END_WITH_REQUIRED):
            assert isinstance(each.content, dict)
            assert str(each.content.get("text", "")).strip() in everything


TWO_LEFT = "(2 of 4 steps are left, this one included. Bring your results together now."


def test_a_note_ends_the_request_also_behind_an_assistant() -> None:
    asks, answers = card("i", CardType.INSTRUCTION, "Go."), card("a", CardType.THOUGHT, "I went.")
    assert [message.content for message in build_messages("", [], [], [asks, answers], note="1 left")] == [
        "Go.",
        "I went.",
        "1 left",
    ]
    [both] = build_messages("", [], [], [asks], note="1 left")
    assert both.content == "Go.\n\n1 left"


@pytest.mark.parametrize(
    ("step", "most", "names", "note"),
    [
        (1, 1, ["submit_result"], ""),
        (1, 2, ["submit_result"], ""),
        (2, 4, ["submit_result"], ""),
        (3, 4, [], TWO_LEFT + ")"),
        (
            3,
            4,
            ["search", "submit_result"],
            TWO_LEFT + " Plan to call submit_result in the next step.)",
        ),
        (
            4,
            4,
            ["search"],
            "(This is the last of 4 steps. Give your final answer now: no tool can be called any more.)",
        ),
        (
            2,
            2,
            ["submit_result"],
            "(This is the last of 2 steps. Give your final answer now, by calling submit_result and no other tool.)",
        ),
    ],
)
def test_the_last_two_steps_say_what_is_left(step: int, most: int, names: list[str], note: str) -> None:
    specs: tuple[JsonObject, ...] = tuple({"type": "function", "function": {"name": name}} for name in names)
    llm = LlmConfig(model="m")
    config = TurnConfig(profile_name="x", llm_config=llm, max_steps=most, must_end_with=[], tools={})
    assert PinnedConfig(config, "", specs, ()).steps_note(step) == note
