"""A conversation of five steps with tools against each stub, which refuses what the real provider refuses."""

import json
from collections.abc import Callable

import pytest

from tests.activities.models.asking import question
from tests.activities.models.provider_stub import Call, ProviderStub, Said
from turnstile.activities.models import LitellmModel
from turnstile.rules.answer import AnsweredCall
from turnstile.rules.messages import IMAGE, build_messages
from turnstile.rules.tool_specs import SUBMIT_RESULT_SPEC, function_spec
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    Card,
    CardContent,
    CardType,
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
from turnstile.schema.ids import AgentTurnId, CardId, ToolCallId
from turnstile.schema.states import TurnStatus

ModelOf = Callable[[ProviderStub], LitellmModel]
TURN = AgentTurnId("t1")
TOOLS: tuple[JsonObject, ...] = (
    function_spec(
        "search",
        "Search for something.",
        {
            "type": "object",
            "properties": {
                "q": {"type": "string"},
                "filters": {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
                "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "anything": True,
                "tags": {"type": "array"},
            },
            "required": ["q"],
            "additionalProperties": False,
        },
    ),
    function_spec("now", "", {"type": "object", "properties": {}}),
    SUBMIT_RESULT_SPEC,
)
STEPS = (
    Said(text=("Let me look.",), calls=(Call("search", ('{"q": "x"}',)), Call("now", ("{}",), id="call_0"))),
    Said(calls=(Call("nosuch", ('{"a": 1}',)),)),
    Said(text=("Hm.",)),
    Said(calls=(Call("submit_result", ('{"fields": [{"name": "title", "value": 1}]}',)), Call("now"))),
    Said(text=("Done.",)),
)


def card(name: str, card_type: CardType, content: CardContent | str, **fields: object) -> Card:
    """A card of the turn."""
    body = TextContent(text=content) if isinstance(content, str) else content
    return make_card(CardId(name), card_type, Role.ASSISTANT, body, author="x", turn=TURN, **fields)  # pyright: ignore[reportArgumentType] -- fields of the test


class Conversation:
    """The cards of a turn, as steps write them."""

    def __init__(self, *, called_before: bool = True) -> None:
        calls = [_call("old-1", "gone", "not json")] if called_before else None
        memory = card("m1", CardType.THOUGHT, "From before.", tool_calls=calls)
        self.memory = [memory, card("m2", CardType.DELIVERABLE, JsonContent(data={"fields": []}))]
        self.context = [
            card("i", CardType.INSTRUCTION, "Do it. data:image/png;base64,AAAA"),
            card("f", CardType.RESULT_FIELDS, FieldsSchemaContent(fields=[ResultField(name="title")])),
        ]
        self.current: list[Card] = []

    def add(self, step: int, text: str, calls: tuple[AnsweredCall, ...]) -> None:
        """A step's thought with the kernel's own ids, and a result for each call."""
        made = [_call(f"{TURN}-s{step}-c{place}", each.name, each.arguments_text) for place, each in enumerate(calls)]
        self.current.append(card(f"s{step}", CardType.THOUGHT, text, tool_calls=made or None))
        for place, each in enumerate(reversed(made)):
            result = ToolResultContent(status=TurnStatus.SUCCESS, result={"n": place})
            if each.tool_name == "nosuch":
                error = ToolError(code="unknown_tool", message="no such tool")
                result = ToolResultContent(status=TurnStatus.FAILED, error=error)
            self.current.append(card(f"s{step}r{place}", CardType.TOOL_RESULT, result, tool_call=each.tool_call_id))
        if not made:
            self.current.append(card(f"s{step}m", CardType.MUST_END_WITH_REQUIRED, "End with submit_result."))


def _call(call_id: str, name: str, arguments: str) -> ThoughtCall:
    return ThoughtCall(tool_call_id=ToolCallId(call_id), tool_name=name, arguments=arguments)


@pytest.mark.parametrize("thinking", [False, True])
async def test_five_steps(provider: type[ProviderStub], model_of: ModelOf, *, thinking: bool) -> None:
    config: JsonObject = {"max_tokens": 4096}
    if thinking:
        config |= {"reasoning_effort": "low", "max_tokens": 8192}
    else:
        config |= {"temperature": 0.5, "top_p": 0.9, "stop": ["END"]}
    model_id = {"openai": "openai/o3", "gemini": "gemini/gemini-3-pro-preview"}.get(provider.prefix, provider.model)
    talk = Conversation(called_before=not thinking)
    async with provider(*STEPS) as stub:
        model = model_of(stub)
        for step in range(1, len(STEPS) + 1):
            messages = build_messages("You are {agent}.", talk.memory, talk.context, talk.current)
            asked = await question(
                model,
                model_id if thinking else stub.model,
                messages=messages,
                tools=TOOLS,
                config=config,
            )
            assert stub.refusals == []
            talk.add(step, asked.said().text, asked.said().calls)
            assert len(asked.attempts.records) == 1
        assert len(stub.bodies) == len(STEPS)
        if provider.prefix == "anthropic":
            # the thoughts before its calls are not signed, so thinking is off right after these
            assert ["thinking" in body for body in stub.bodies] == [
                thinking and number in {0, 3} for number in range(5)
            ]
        last = json.dumps(stub.bodies[-1])
    assert IMAGE in last
    assert "base64" not in last
    assert "data:image" not in last
    assert talk.current[-2].content == {"__type__": "TextContent", "text": "Done."}


async def test_tools_of_ours_are_not_changed(model_of: ModelOf, provider: type[ProviderStub]) -> None:
    """litellm rewrites schemas in place."""
    before = json.dumps(TOOLS)
    async with provider(Said(text=("x",))) as stub:
        await question(model_of(stub), stub.model, tools=TOOLS)
        assert stub.refusals == []
    assert json.dumps(TOOLS) == before


async def test_a_history_with_calls_and_no_tools(provider: type[ProviderStub], model_of: ModelOf) -> None:
    talk = Conversation()
    talk.add(1, "", (AnsweredCall("x", "9lives", "{}"),))
    messages = build_messages("", talk.memory, talk.context, talk.current)
    async with provider(Said(text=("x",))) as stub:
        asked = await question(model_of(stub), stub.model, messages=messages)
        assert (asked.said().text, stub.refusals) == ("x", [])
