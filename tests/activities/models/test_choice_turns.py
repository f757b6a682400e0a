"""Three turns with choices on one output box against each stub, which refuses what the real provider refuses."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from pydantic import BaseModel, Field

from tests.activities.models.asking import question
from tests.activities.models.provider_stub import Call, ProviderStub, Said
from turnstile.activities.models import LitellmModel
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Deliver, StepRequest, decide
from turnstile.rules.messages import OPENING, build_messages
from turnstile.rules.tool_specs import build_tool_specs
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, Role, TextContent, content_of, make_card
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, InboxId, ProjectId
from turnstile.schema.profiles import Choice, LlmConfig
from turnstile.schema.states import TurnStatus
from turnstile.schema.turns import TurnRef

ModelOf = Callable[[ProviderStub], LitellmModel]


class Line(BaseModel):
    """A line of an order."""

    name: str
    count: int = Field(ge=1)


class Order(BaseModel):
    """An order for b."""

    title: str = Field(min_length=1)
    note: str | None = None
    lines: list[Line]
    tags: dict[str, str] = Field(default_factory=dict)


ORDER = cast("JsonObject", {**Order.model_json_schema(), "additionalProperties": False})
TEXT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
CHOICES = (
    Choice(name="send_b", description="Send an order to b.", parameters=ORDER),
    Choice(name="respond", description="Answer whoever asked.", parameters=TEXT),
    Choice(name="think", description="Think on.", parameters={"type": "object"}),
)
SPECS = build_tool_specs([], [], CHOICES).specs
CONFIG = TurnConfig(
    profile_name="x",
    llm_config=LlmConfig(model="m"),
    max_steps=16,
    must_end_with=[],
    tools={},
    choices={choice.name: choice.parameters for choice in CHOICES},
)
GOOD = '{"title": "now", "lines": [{"name": "nut", "count": 2}]}'
TURNS: tuple[tuple[Said, ...], ...] = (
    (
        Said(text=("I order.",), calls=(Call("send_b", ('{"title": "", "lines"', ": []}")),)),
        Said(calls=(Call("send_b", (GOOD,)), Call("think", id="call_1"))),
        Said(text=("Alone then.",), calls=(Call("send_b", (GOOD[:9], GOOD[9:])),)),
    ),
    (Said(calls=(Call("think"),)),),
    (Said(calls=(Call("respond", ('{"text": "done"}',)),)),),
    (Said(text=("Good bye.",)),),
)
"""The last one asks what the third has left."""


class Agent:
    """An agent with one output box, whose turns end as its model says."""

    def __init__(self, model: LitellmModel, model_id: str, config: JsonObject) -> None:
        self._model = model
        self._id = model_id
        self._config = config
        self.memory: list[Card] = []

    async def turn(self, number: int) -> Deliver:
        """The end of the turn with this number."""
        told = f"instruction {number}"
        name, content = CardId(f"i{number}"), TextContent(text=told)
        context = [make_card(name, CardType.INSTRUCTION, Role.USER, content, author="x")]
        own: list[Card] = []
        for step in range(1, 6):
            messages = build_messages("You order.", self.memory, context, own)
            asked = await question(self._model, self._id, messages=messages, tools=SPECS, config=self._config)
            decision = decide(StepRequest(_turn(number), step, CONFIG, (), "", Patience()), asked.said())
            own += decision.cards
            if isinstance(decision, Deliver):
                self.memory += own
                return decision
            assert isinstance(decision, Continue)
        raise AssertionError("the turn does not end")


def _turn(number: int) -> TurnRef:
    return TurnRef(
        project_id=ProjectId("p"),
        channel_id=ChannelId("public"),
        agent_id=AgentId("a"),
        agent_turn_id=AgentTurnId(f"t{number}"),
        turn_epoch=number,
        inbox_id=InboxId("i"),
        worker_target="w",
        profile_box_id=BoxId("b1"),
        context_box_id=BoxId("b2"),
        output_box_id=BoxId("b3"),
        trace_id="trace",
    )


def delivered(end: Deliver) -> Any:
    """What the turn delivered."""
    assert end.status is TurnStatus.SUCCESS
    content = content_of(end.cards[-1])
    return content.text if isinstance(content, TextContent) else getattr(content, "data", None)


@pytest.mark.parametrize("thinking", [False, True])
async def test_three_turns_on_one_box(provider: type[ProviderStub], model_of: ModelOf, *, thinking: bool) -> None:
    config: JsonObject = {"max_tokens": 8192, **({"reasoning_effort": "low"} if thinking else {})}
    reasoning = {"openai": "openai/o3", "gemini": "gemini/gemini-3-pro-preview"}
    async with provider(*(said for turn in TURNS for said in turn)) as stub:
        model_id = reasoning.get(provider.prefix, provider.model) if thinking else provider.model
        agent = Agent(model_of(stub), model_id, config)
        ends = [await agent.turn(number) for number in range(1, len(TURNS) + 1)]
        assert stub.refusals == []
        bodies = [json.dumps(body) for body in stub.bodies]
    assert [delivered(end) for end in ends] == [
        {"choice": "send_b", "arguments": json.loads(GOOD)},
        {"choice": "think", "arguments": {}},
        {"choice": "respond", "arguments": {"text": "done"}},
        "Good bye.",
    ]
    assert len(bodies) == 6
    last = bodies[-1]
    parts = [OPENING, "I order.", "should be non-empty", "must be the only call", "Alone then.", "accepted"]
    places = [last.index(part) for part in [*parts, "instruction 4"]]
    assert places == sorted(places)  # its calls and their results, then the next instruction
    assert last.count("accepted") == 3
    assert '\\"choice\\"' not in last  # what a call says is not said again
    assert '"choice"' not in last
    assert "instruction 3" not in last  # a turn's instructions are in its own context box
