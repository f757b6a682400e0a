"""Reasoning goes back to the provider that gave it, and to no other: against stubs that refuse a history without it."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.anthropic_stub import AnthropicStub
from tests.activities.models.asking import question
from tests.activities.models.gemini_stub import GeminiStub
from tests.activities.models.http_stub import HttpRequest
from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import Call, ProviderStub, Said, listed, require, sse
from tests.activities.models.test_conversations import TOOLS, card
from tests.rules.test_choices import TURN
from turnstile.activities.models import LitellmModel, ModelAccess
from turnstile.activities.models.reasoning import (
    REASONING_LIMIT_BYTES,
    ReasoningDraft,
    ReasoningPiece,
    TaggedReasoning,
)
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import StepRequest, decide
from turnstile.rules.messages import build_messages
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.api import CardAnswer
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, Reasoning, seen_card
from turnstile.schema.profiles import InText, LlmConfig
from turnstile.schema.states import ChunkType

ModelOf = Callable[[ProviderStub], LitellmModel]


def number_of(arguments: Any) -> int:
    """The number by which a call's arguments name the step that made it."""
    return json.loads(arguments)["n"] if isinstance(arguments, str) else arguments["n"]


class StrictOpenAI(OpenAIStub):
    """DeepSeek or Kimi: each message with calls must have the reasoning that came before them."""

    def check(self, request: HttpRequest, body: Any) -> None:
        super().check(request, body)
        for message in body["messages"]:
            for call in message.get("tool_calls") or ():
                number = number_of(call["function"]["arguments"])
                wanted = message.get("reasoning_content") == f"thought {number}, whole"
                require(wanted, "The reasoning_content in the thinking mode must be passed back to the API.")


class StrictOpenRouter(OpenAIStub):
    """OpenRouter: each message with calls must have its reasoning details, joined and in their order."""

    prefix = "openrouter"
    model = "openrouter/anthropic/claude-sonnet-4.5"

    def check(self, request: HttpRequest, body: Any) -> None:
        details: list[tuple[Any, int]] = []
        for message in body["messages"]:
            given = message.pop("reasoning_details", None)
            details += [(given, number_of(call["function"]["arguments"])) for call in message.get("tool_calls") or ()]
        body.pop("usage", None)
        super().check(request, body)
        for given, number in details:
            text = {"type": "reasoning.text", "index": 0, "text": f"thought {number}, whole"}
            sealed = {"type": "reasoning.encrypted", "index": 1, "data": f"c2ln{number}", "id": "r1"}
            require(given == [text, sealed], f"the reasoning_details are {given}")

    def render(self, said: Said) -> Iterable[bytes]:
        pieces = [{"type": "reasoning.text", "index": 0, "text": text} for text in said.reasoning]
        for call in said.calls:
            number = number_of("".join(call.arguments))
            pieces.append({"type": "reasoning.encrypted", "index": 1, "data": f"c2ln{number}", "id": "r1"})
        for piece in pieces if said.reasoning else []:
            delta = {"reasoning": piece.get("text"), "reasoning_details": [piece]}
            yield sse(
                {
                    "id": "gen-1",
                    "object": "chat.completion.chunk",
                    "created": 1,
                    "model": "m",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
                }
            )
        yield from super().render(replace(said, reasoning=()))


class StrictAnthropic(AnthropicStub):
    """Each message with calls must begin with the signed thought that came before them, unchanged."""

    def check(self, request: HttpRequest, body: Any) -> None:
        super().check(request, body)
        require("thinking" in body, "thinking is off")
        for message in body["messages"]:
            blocks = listed(message["content"])
            for call in (block for block in blocks if block["type"] == "tool_use"):
                thought = {"type": "thinking", "thinking": f"thought {number_of(call['input'])}, whole"}
                require(blocks[0] == {**thought, "signature": "c2ln"}, f"Expected `thinking`, but found {blocks[0]}")


class StrictGemini(GeminiStub):
    """Gemini 3: each call must have its own signature."""

    def check(self, request: HttpRequest, body: Any) -> None:
        super().check(request, body)
        for part in (part for content in body["contents"] for part in content["parts"]):
            if call := part.get("functionCall", part.get("function_call")):
                wanted = f"c2ln{number_of(call['args'])}0AA"
                signature = part.get("thoughtSignature", part.get("thought_signature"))
                require(signature == wanted, f"Function call has the signature {signature}, not {wanted}.")


STRICT: dict[type[ProviderStub], tuple[str, JsonObject]] = {
    StrictOpenAI: ("openai/deepseek-reasoner", {}),
    StrictOpenRouter: ("openrouter/anthropic/claude-sonnet-4.5", {}),
    StrictAnthropic: ("anthropic/claude-sonnet-4-5", {"reasoning_effort": "low", "max_tokens": 8192}),
    StrictGemini: ("gemini/gemini-3-pro-preview", {}),
}


def said(number: int) -> Said:
    """A thought in pieces, then a call that names the step."""
    call = Call("search", (json.dumps({"q": "x", "n": number}),), signature=f"c2ln{number}0AA")
    return Said(reasoning=(f"thought {number}", ", whole"), calls=(call,))


class Turn:
    """The cards of a turn, as the steps make them of real answers."""

    def __init__(self) -> None:
        self.cards: list[Card] = []
        config = TurnConfig(
            profile_name="x", llm_config=LlmConfig(model="x/y"), max_steps=9, must_end_with=[], tools={}
        )
        self.asked = StepRequest(TURN, 0, config, (), "", Patience())

    def add(self, answer: ModelAnswer) -> None:
        """The thought of the answer and, since there is no such tool, a failed result."""
        self.asked = replace(self.asked, step=self.asked.step + 1)
        self.cards += decide(self.asked, answer).cards


@pytest.fixture(params=STRICT, ids=lambda stub: stub.prefix)
def strict(request: pytest.FixtureRequest) -> type[ProviderStub]:
    """Each strict provider in turn."""
    return request.param


async def test_reasoning_goes_back_in_the_turn_and_in_the_next_one(
    strict: type[ProviderStub], model_of: ModelOf
) -> None:
    model_id, config = STRICT[strict]
    turn, instruction = Turn(), card("i", CardType.INSTRUCTION, "Do it.")
    async with strict(*(said(number) for number in range(4)), Said(text=("Done.",))) as stub:
        model = model_of(stub)
        for _ in range(5):
            messages = build_messages("Be good.", (), [instruction], turn.cards)
            asked = await question(model, model_id, messages=messages, tools=TOOLS, config=config)
            assert stub.refusals == []
            turn.add(asked.said())
        later = card("j", CardType.INSTRUCTION, "And now?")
        messages = build_messages("Be good.", (instruction, *turn.cards), [later], ())
        await question(model, model_id, messages=messages, tools=TOOLS, config=config)
        assert (len(stub.bodies), stub.refusals) == (6, [])


async def test_reasoning_goes_to_no_other_provider(strict: type[ProviderStub], model_of: ModelOf) -> None:
    model_id, config = STRICT[strict]
    turn, instruction = Turn(), card("i", CardType.INSTRUCTION, "Do it.")
    async with strict(said(1)) as stub:
        first = await question(
            model_of(stub), model_id, messages=build_messages("", (), [instruction], ()), tools=TOOLS, config=config
        )
        turn.add(first.said())
        assert stub.refusals == []
    messages = build_messages("", (), [instruction], turn.cards)
    for other in (OpenAIStub, AnthropicStub, GeminiStub):
        if issubclass(strict, other):
            continue
        async with other(Said(text=("x",))) as stub:
            await question(model_of(stub), stub.model, messages=messages, tools=TOOLS)
            assert stub.refusals == []
            sent = json.dumps(stub.bodies)
            assert "thought 1" not in sent
            assert "c2ln" not in sent


async def test_another_server_of_the_same_provider_is_another(model_of: ModelOf, key_file: Path) -> None:
    async with OpenAIStub(said(1)) as stub:
        access = ModelAccess({"openai": key_file}, {"openai/kimi": stub.api_base, "openai": stub.api_base})
        model = LitellmModel(access)
        turn, instruction = Turn(), card("i", CardType.INSTRUCTION, "Do it.")
        messages = build_messages("", (), [instruction], ())
        turn.add((await question(model, "openai/kimi-k2", messages=messages, tools=TOOLS)).said())
        messages = build_messages("", (), [instruction], turn.cards)
        for asked in ("openai/kimi-k2", "openai/gpt-4o"):
            await question(model, asked, messages=messages, tools=TOOLS)
        await model.close()
        assert ["thought 1" in json.dumps(body) for body in stub.bodies] == [False, True, False]


async def test_readers_of_a_turn_see_no_reasoning(model_of: ModelOf) -> None:
    turn = Turn()
    async with OpenAIStub(said(1)) as stub:
        turn.add((await question(model_of(stub), stub.model, tools=TOOLS)).said())
    [thought, *_] = turn.cards
    assert "thought 1" in thought.model_dump_json()
    shown = [CardAnswer.of(thought), seen_card(thought, lambda _: True), seen_card(thought, lambda _: False)]
    assert not [each for each in shown if each is None or "thought 1" in each.model_dump_json()]


def kept(provider: str, pieces: Iterator[ReasoningPiece], text: str = "") -> Reasoning | None:
    """What is kept of these pieces."""
    draft = ReasoningDraft(provider, provider)
    for piece in pieces:
        draft.add(text, piece)
    return draft.kept()


def test_blocks_and_details_are_joined_and_kept_in_order() -> None:
    blocks: list[JsonObject] = [
        {"type": "thinking", "thinking": "a", "signature": None},
        {"type": "thinking", "thinking": "b"},
        {"type": "thinking", "thinking": "", "signature": "s1"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "thinking", "thinking": "c"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
    ]
    made = kept("anthropic", (ReasoningPiece(thinking_blocks=[block]) for block in blocks))
    assert made is not None
    assert made.message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "ab", "signature": "s1"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "thinking", "thinking": "c", "signature": "s2"},
    ]
    details: list[JsonObject] = [
        {"type": "reasoning.text", "index": 0, "text": "a"},
        {"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x", "id": "r1"},
        {"type": "reasoning.encrypted", "index": 1, "data": "y", "id": "r1"},
    ]
    made = kept("openrouter", (ReasoningPiece(reasoning_details=[detail]) for detail in details), "a")
    assert made is not None
    assert made.message["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xy", "id": "r1"},
    ]


def test_what_is_too_large_or_taken_by_nobody_is_not_kept() -> None:
    sizes = (10, REASONING_LIMIT_BYTES // 2, REASONING_LIMIT_BYTES, 2 * REASONING_LIMIT_BYTES)
    whole = [kept("deepseek", iter([ReasoningPiece()]), "x" * size) is not None for size in sizes]
    assert whole == [True, True, False, False]
    assert kept("groq", iter([ReasoningPiece()]), "x") is None
    assert kept("anthropic", iter([ReasoningPiece(thinking_blocks=[{"type": "thinking", "thinking": "x"}])])) is None


@pytest.mark.parametrize(
    ("in_text", "text", "thought", "answer"),
    [
        ("tagged", "<think>a</think>b", "a", "b"),
        ("tagged", "\n <think>\na\n</think>\n\n b ", "\na\n", "b "),
        ("tagged", "<think></think>b", "", "b"),
        ("tagged", "<think>a</think>\n<think>b</think>c", "ab", "c"),
        ("tagged", "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
        ("tagged", "Write <think>a</think>.", "", "Write <think>a</think>."),
        ("tagged", "<think>a", "a", ""),
        ("tagged", "<think>a</thin", "a</thin", ""),
        ("tagged", "<think>a</think>", "a", ""),
        ("tagged", "<think>a</think> \n", "a", ""),
        ("tagged", "<think>a < b </ c</think>d", "a < b </ c", "d"),
        ("tagged", "<thinker>", "", "<thinker>"),
        ("tagged", "  <thin", "", "  <thin"),
        ("tagged", "a</think>b", "", "a</think>b"),
        ("tagged", " " * 1_200 + "a", "", " " * 1_200 + "a"),
        ("tagged", "", "", ""),
        ("opened", "a</think>\n\nb", "a", "b"),
        ("opened", "<think>a</think>b", "<think>a", "b"),
        ("opened", "a", "a", ""),
        ("never", "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_reasoning_in_a_text_is_separated_however_it_is_cut(
    in_text: InText, text: str, thought: str, answer: str
) -> None:
    cuts = {n for n in range(len(text) + 1) if n < 40 or n > len(text) - 40}
    pieces_of = [[text[:n], text[n:]] for n in sorted(cuts)] + [[*text], [text]]
    for pieces in pieces_of:
        tags = TaggedReasoning(in_text)
        read = [*map(tags.read, pieces), tags.end()]
        assert ("".join(r for r, _ in read), "".join(a for _, a in read)) == (thought, answer), pieces
        assert tags.found == (thought != "" or (text.startswith("<think>") and in_text == "tagged"))


async def test_reasoning_in_a_text_is_streamed_as_such_and_goes_back_as_it_came(model_of: ModelOf) -> None:
    turn, instruction = Turn(), card("i", CardType.INSTRUCTION, "Do it.")
    call = Call("search", ('{"q": "x"}',))
    thinks = Said(text=("<th", "ink>hm", "m</thi", "nk>", "\n\nI lo", "ok."), calls=(call,))
    async with OpenAIStub(thinks, Said(text=("Done.",))) as stub:
        model, messages = model_of(stub), build_messages("", (), [instruction], ())
        first = await question(model, stub.model, messages=messages, tools=TOOLS)
        sent = first.chunks.brief()
        for kind, text in ((ChunkType.REASONING, "hmm"), (ChunkType.CONTENT, "I look.")):
            assert "".join(piece for _, of, piece in sent if of == kind) == text
        assert first.said().text == "I look."
        turn.add(first.said())
        assert "hmm" not in "".join(str(CardAnswer.of(made)) for made in turn.cards)
        messages = build_messages("", (), [instruction], turn.cards)
        await question(model, stub.model, messages=messages, tools=TOOLS)
        body: Any = stub.bodies[1]
        back = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        assert back == ["<think>hmm</think>\n\nI look."]
        assert stub.refusals == []
    async with AnthropicStub(Said(text=("x",))) as other:
        await question(model_of(other), other.model, messages=messages, tools=TOOLS)
        assert "hmm" not in json.dumps(other.bodies)


async def test_a_thought_without_an_end_is_no_answer(model_of: ModelOf) -> None:
    never = Said(text=("<think>I wonder", " whether"))
    async with OpenAIStub(never, never, never) as stub:
        asked = await question(model_of(stub), stub.model)
        assert asked.failed().code == "empty_answer"
        assert (await question(model_of(stub), stub.model, config={"reasoning_in_text": "never"})).said().text == (
            "<think>I wonder whether"
        )
