"""`/openai/v1/responses` with OpenAI's own client: plain, streamed, in the background, stopped and gone on from."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from tests.support.conditions import until
from tests.support.gateway import serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant, new_tenant
from tests.support.tools import calling, hand_of
from turnstile.schema.ids import AgentId, AgentTurnId

pytestmark = pytest.mark.shared_stack

WORDS = "".join(f"word-{number} " for number in range(120))
LONG = json.dumps({"steps": [{"text": WORDS, "chunks": 60, "delay_seconds": 0.02}]})
SLOW = json.dumps({"steps": [{"text": "All of this takes long. " * 5, "chunks": 100, "delay_seconds": 0.5}]})
TEN_WORDS = "one two three four five six seven eight nine ten"
CUT_MEMORY = {"keep": "conversation", "max_context_tokens": 60, "keep_last_turns": 1}
FALTERING = json.dumps(
    {
        "steps": [
            {
                "attempts": [
                    {"text": "this is void", "chunks": 4, "error": {"code": "model_unavailable", "after_chunks": 3}},
                    {"text": "this holds", "chunks": 4},
                ]
            }
        ]
    }
)


def asking(url: str, token: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0, timeout=30)


@pytest.fixture
async def token(tenant: Tenant) -> str:
    return await token_of(tenant.stack, tenant.project)


@pytest.fixture
async def ai(url: str, token: str) -> AsyncIterator[AsyncOpenAI]:
    async with asking(url, token) as made:
        yield made


async def response_to(ai: AsyncOpenAI, **fields: Any) -> Response:
    """A response to a request that has whatever fields."""
    create: Any = ai.responses.create
    return await create(**{"model": ALICE, "input": "hello", **fields})


def turn_in(response: Response) -> AgentTurnId:
    return AgentTurnId(response.id.removeprefix("resp_"))


class Folded:
    """What a client that folds events as OpenAI's does holds of a response."""

    def __init__(self) -> None:
        self.events: list[ResponseStreamEvent] = []
        self.items: list[dict[str, Any]] = []
        self.final: Response | None = None

    @property
    def last(self) -> int:
        return self.events[-1].sequence_number

    @property
    def id(self) -> str:
        created = self.events[0]
        assert created.type == "response.created"
        return created.response.id

    def take(self, event: ResponseStreamEvent) -> None:
        if self.events:
            assert event.sequence_number > self.last
        self.events.append(event)
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(self.items)
                self.items.append({"text": "", **event.item.model_dump()})
            case "response.output_text.delta":
                assert self.items[event.output_index]["id"] == event.item_id
                self.items[event.output_index]["text"] += event.delta
            case "response.output_text.done":
                assert self.items[event.output_index]["text"] == event.text
            case "response.output_item.done":
                assert self.items[event.output_index]["status"] != "done"
                self.items[event.output_index] |= event.item.model_dump()
            case "response.completed" | "response.failed" | "response.incomplete":
                self.final = event.response
            case _:
                pass

    async def read(self, stream: Any, most: int = 1 << 30, *, closes: bool = True) -> None:
        async for event in cast("AsyncIterator[ResponseStreamEvent]", stream):
            self.take(event)
            most -= 1
            if not most:
                break
        if closes:
            await stream.close()

    def held(self) -> list[tuple[str, str | None]]:
        """The items that are not void."""
        return [(item["type"], item["text"] or None) for item in self.items if item["status"] != "incomplete"]


async def test_a_response_is_a_turn(ai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    script = json.dumps({"steps": [{"text": "so it is"}]})
    made = await ai.responses.create(
        model=ALICE,
        input=script,
        metadata={"order": "4711"},
        user="ada",
        top_p=0.5,
        reasoning={"effort": "low"},
        text={"verbosity": "low"},
        parallel_tool_calls=False,
    )
    assert (made.status, made.output_text, made.error) == ("completed", "so it is", None)
    assert (made.model, made.metadata, made.user) == (ALICE, {"order": "4711"}, "ada")
    assert (made.top_p, made.parallel_tool_calls) == (0.5, False)
    assert made.reasoning is not None
    assert made.text is not None
    assert (made.reasoning.effort, made.text.verbosity) == ("low", "low")
    assert made.usage is not None
    assert made.usage.total_tokens > 0
    assert await ai.responses.retrieve(made.id) == made
    assert (await tenant.ended(turn_in(made))).view.status == "success"


async def test_a_stream_folds_to_the_response(ai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    async with ai.responses.stream(model=ALICE, input=LONG) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == WORDS
    assert len(deltas) > 10
    folded = Folded()
    await folded.read(await ai.responses.retrieve(final.id, stream=True))
    assert folded.final is not None
    assert folded.final.model_dump() == (await ai.responses.retrieve(final.id)).model_dump()
    assert folded.held() == [("message", WORDS)]


PICKED_UP = """
import sys
from openai import OpenAI
url, token, response, after = sys.argv[1:]
with OpenAI(base_url=url + "/openai/v1", api_key=token) as ai:
    assert ai.responses.retrieve(response).status in ("in_progress", "completed")
    for event in ai.responses.retrieve(response, stream=True, starting_after=int(after)):
        if event.type == "response.output_text.delta":
            print(end=event.delta)
        elif event.type == "response.output_item.done" and event.item.status == "incomplete":
            print(end="VOID")
"""


@pytest.mark.long
async def test_a_response_in_the_background_is_picked_up_by_another_process(
    ai: AsyncOpenAI, url: str, token: str, tenant: Tenant
) -> None:
    await tenant.agent("player")
    made = await ai.responses.create(model=ALICE, input=LONG, background=True)
    assert made.status in ("queued", "in_progress")
    assert made.background is True
    folded = Folded()
    await folded.read(await ai.responses.retrieve(made.id, stream=True), most=12)
    command = [sys.executable, "-c", PICKED_UP, url, token, made.id, str(folded.last)]
    rest = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    text = folded.items[0]["text"] + rest.stdout
    assert text.rpartition("VOID")[2] == WORDS  # void if the turn was over before the process was there
    assert (await ai.responses.retrieve(made.id)).output_text == WORDS


async def test_a_stream_goes_on_after_any_event_at_any_gateway(
    here: Stack, ai: AsyncOpenAI, token: str, tenant: Tenant
) -> None:
    """Nothing is lost and nothing comes twice, while the turn runs and afterwards, also where text became void."""
    await tenant.agent("player")
    async with serving(here) as url, asking(url, token) as other:
        for script, text in ((FALTERING, "this holds"), (LONG, WORDS)):
            live = Folded()
            made = await ai.responses.create(model=ALICE, input=script, background=True)
            for number in range(1000):
                gateway = (ai, other)[number % 2]
                after: dict[str, Any] = {"starting_after": live.last} if live.events else {}
                await live.read(await gateway.responses.retrieve(made.id, stream=True, **after), most=1 + number % 5)
                if live.final is not None:
                    break
            assert live.held() == [("message", text)]
            assert live.final is not None
            assert live.final.output_text == text
            over = await ai.responses.retrieve(made.id, stream=True, starting_after=live.last)
            assert [event async for event in over] == []
            for event in live.events[:: 1 + len(live.events) // 10]:
                again = Folded()
                for before in live.events[: live.events.index(event) + 1]:
                    again.take(before)
                await again.read(await other.responses.retrieve(made.id, stream=True, starting_after=again.last))
                assert again.held() == [("message", text)]
                assert again.final == live.final


async def test_a_gateway_that_stops_ends_its_streams_and_another_goes_on(
    here: Stack, ai: AsyncOpenAI, token: str, tenant: Tenant
) -> None:
    await tenant.agent("player")
    folded, first = Folded(), serving(here)
    async with asking(await first.__aenter__(), token) as stopping:
        stream = await stopping.responses.create(model=ALICE, input=LONG, stream=True)
        await folded.read(stream, most=5, closes=False)
        ending = asyncio.create_task(first.__aexit__(None, None, None))
        await folded.read(stream)
        await ending
    assert folded.final is None
    await folded.read(await ai.responses.retrieve(folded.id, stream=True, starting_after=folded.last))
    assert folded.held() == [("message", WORDS)]


async def test_what_the_agent_did_are_items(ai: AsyncOpenAI, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        steps = [calling("search", "nothing", text="I look."), {"text": "It is there."}]
        folded = Folded()
        reading = asyncio.create_task(
            folded.read(
                await ai.responses.create(model=hand.agent, input=json.dumps({"steps": steps}), stream=True),
            )
        )
        [command] = await hand.heard()
        await hand.report(command.call, {"found": 1})
        await reading
    kinds = [item["type"] for item in folded.items]
    assert kinds == ["message", "mcp_call", "mcp_call", "message"]
    assert folded.final is not None
    assert [item.type for item in folded.final.output] == kinds
    assert [item.id for item in folded.final.output] == [item["id"] for item in folded.items]
    found, failed = folded.items[1:3]
    assert (found["server_label"], found["name"], json.loads(found["arguments"])) == (
        *("turnstile", "search"),
        {"q": "search it"},
    )
    assert (found["status"], json.loads(found["output"]), found["error"]) == ("completed", {"found": 1}, None)
    assert (failed["status"], failed["output"], failed["error"].partition(":")[0]) == ("failed", None, "unknown_tool")
    kinds = [event.type for event in folded.events]
    assert (kinds.count("response.mcp_call.completed"), kinds.count("response.mcp_call.failed")) == (1, 1)
    assert folded.final.output_text == "I look.\n\nIt is there."


async def test_what_was_answered_is_taken_back_as_input(ai: AsyncOpenAI, tenant: Tenant) -> None:
    """Whole, by reference, or texts without ids: the next turn reads texts, calls and results as the one before."""
    async with hand_of(tenant) as hand:
        steps = [calling("search", text="I look."), {"text": "It is there."}]
        asked = asyncio.create_task(
            ai.responses.create(model=hand.agent, input=json.dumps({"steps": steps}), store=False),
        )
        [command] = await hand.heard()
        await hand.report(command.call, {"found": 1})
        first = await asked
        assert first.model_dump()["store"] is False
        question: Any = {"role": "user", "content": json.dumps({"steps": steps[:0]})}
        whole: Any = [question, *first.output, {"role": "user", "content": "and?"}]
        named: Any = [{"type": "item_reference", "id": item.id} for item in first.output]
        others: Any = [{"type": "reasoning", "id": "rs_1", "summary": []}, *named]
        read: list[list[Any]] = []
        by_name: Any = [question, *others, {"role": "user", "content": "and?"}]
        bare: Any = [item.model_dump(exclude={"id"} if item.type == "message" else None) for item in first.output]
        by_text: Any = [
            question,
            *bare,
            {"role": "user", "content": "and?"},
        ]  # as a session of openai-agents keeps them
        for given in (whole, by_name, by_text):
            answer = await ai.responses.create(model=hand.agent, input=given)
            messages = json.loads(answer.output_text)["messages"]
            read.append([message for message in messages if message[0] != "system"])
            listed = await ai.responses.input_items.list(answer.id, order="asc", limit=3)
            kinds = [item.type async for item in listed]
            assert kinds == ["message", "message", "mcp_call", "message", "message"]
        assert read[0] == read[1] == read[2]
        assert [role for role, _ in read[0]] == ["user", "assistant", "tool", "assistant", "user"]
        assert "found" in read[0][2][1]
        edited: Any = [question, {**first.output[-1].model_dump(), "id": "msg_of_another"}, question]
        edited[1]["content"][0]["text"] = "It is elsewhere."
        changed = json.loads((await ai.responses.create(model=hand.agent, input=edited)).output_text)["messages"]
        assert ["assistant", "It is elsewhere."] in changed
    with pytest.raises(openai.BadRequestError) as refused:
        await response_to(ai, input=[question, {"type": "item_reference", "id": "msg_nothing"}])
    assert (refused.value.code, refused.value.param) == ("item_not_found", "input.1.id")


async def test_a_previous_response_is_what_was_said_until_its_end(ai: AsyncOpenAI, tenant: Tenant) -> None:
    agent = await tenant.agent("chat")
    one = await ai.responses.create(model=agent, input="one", conversation="c1")
    two = await ai.responses.create(model=agent, input="two", conversation={"id": "c1"})
    assert two.conversation is not None
    assert (two.conversation.id, two.output_text) == ("c1", "You said: two (before that: one)")
    fork = await ai.responses.create(model=agent, input="other", previous_response_id=one.id)
    assert (fork.output_text, fork.previous_response_id) == ("You said: other (before that: one)", one.id)
    further = await ai.responses.create(model=agent, input="more", previous_response_id=fork.id)
    assert further.output_text == "You said: more (before that: one; other)"
    later = await ai.responses.create(model=agent, input="late", previous_response_id=two.id)
    assert later.output_text == "You said: late (before that: one; two)"
    forgetful = await tenant.agent("chat", AgentId("forgetful"), memory=CUT_MEMORY)
    made = [await ai.responses.create(model=forgetful, input=f"{n} {TEN_WORDS}", conversation="long") for n in range(5)]
    assert f"0 {TEN_WORDS}" not in made[4].output_text  # it is cut off
    for number, response in enumerate(made):  # each as of its end, with what it had read, before the cut and after
        known = response.output_text.rpartition("(before that: ")[2].removesuffix(")")
        before = "; ".join([known] * (known != "nothing") + [f"{number} {TEN_WORDS}"])
        fork = await ai.responses.create(model=agent, input="on", previous_response_id=response.id)
        assert fork.output_text == f"You said: on (before that: {before})"
    given: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "first"}]},
        {"role": "assistant", "content": "I see"},
        {"role": "user", "content": "second"},
    ]
    told = await ai.responses.create(model=agent, input=given)
    assert (told.output_text, told.instructions) == ("You said: second (before that: first)", "Be brief.")


async def test_a_response_is_cancelled(ai: AsyncOpenAI, web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    made = await ai.responses.create(model=ALICE, input=SLOW, background=True)
    with pytest.raises(openai.BadRequestError, match="still running") as refused:
        await ai.responses.create(model=ALICE, input="and?", previous_response_id=made.id)
    assert refused.value.code == "previous_response_in_progress"
    stopped = await ai.responses.cancel(made.id)
    assert stopped.status == "cancelled"
    assert await ai.responses.cancel(made.id) == stopped

    async def running() -> AgentTurnId | None:
        listed = (await web.get("/v1/turns")).json()["turns"]
        return next((each["agent_turn_id"] for each in listed if not each["ended_at"]), None)

    asked = asyncio.create_task(ai.responses.create(model=ALICE, input=SLOW))
    turn = await until(running, 25, "the turn is there")
    asked.cancel()
    assert (await tenant.ended(turn)).view.status == "canceled"
    for background, status in ((False, "canceled"), (True, "success")):
        left = Folded()
        await left.read(await ai.responses.create(model=ALICE, input=LONG, stream=True, background=background), most=6)
        assert (await tenant.ended(AgentTurnId(left.id.removeprefix("resp_")))).view.status == status


async def test_a_key_finds_the_response_again(ai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    script, key = json.dumps({"steps": [{"text": "once"}]}), {"Idempotency-Key": "k1"}
    first, second = [await ai.responses.create(model=ALICE, input=script, extra_headers=key) for _ in range(2)]
    assert first == second
    with pytest.raises(openai.UnprocessableEntityError) as refused:  # not a status that clients ask again at
        await ai.responses.create(model=ALICE, input="something else", extra_headers=key)
    assert refused.value.code == "correlation_conflict"


async def test_a_turn_that_fails_is_a_response_that_failed(ai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    script = json.dumps({"steps": [{"text": "a b c", "error": {"code": "model_refused", "retryable": False}}]})
    folded = Folded()
    await folded.read(await ai.responses.create(model=ALICE, input=script, stream=True))
    assert folded.final is not None
    assert folded.events[-1].type == "response.failed"
    assert folded.final.error is not None
    assert (folded.final.status, folded.final.error.code) == ("failed", "model_refused")
    assert folded.final.output == []


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("tools.0.type", {"tools": [{"type": "web_search"}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("text.format.type", {"text": {"format": {"type": "grammar"}}}),
    ("reasoning.summary", {"reasoning": {"effort": "low", "summary": "auto"}}),
    ("include", {"include": ["message.output_text.logprobs"]}),
    ("truncation", {"truncation": "auto"}),
    ("prompt", {"prompt": {"id": "p"}}),
    ("max_tool_calls", {"max_tool_calls": 3}),
    ("made_up", {"extra_body": {"made_up": 1}}),
    ("input.0.type", {"input": [{"type": "computer_call_output", "call_id": "c", "output": {}}]}),
    ("input.0.content.0.type", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
]


async def test_what_is_not_supported_is_refused_by_name(ai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    for param, given in UNSUPPORTED:
        with pytest.raises(openai.BadRequestError) as refused:
            await response_to(ai, **given)
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param), refused.value
    assert await tenant.count("state.agent_inbox") == 0


async def test_bad_requests_are_errors_of_openai(ai: AsyncOpenAI, url: str, tenant: Tenant, here: Stack) -> None:
    await tenant.agent("player")
    script = json.dumps({"steps": [{"text": "mine"}]})
    made = await ai.responses.create(model=ALICE, input=script)
    bad: list[tuple[type[openai.APIStatusError], str | None, dict[str, Any]]] = [
        (openai.NotFoundError, "model_not_found", {"model": "nobody"}),
        (openai.BadRequestError, "bad_request", {"input": ""}),
        (openai.BadRequestError, "bad_request", {"input": 3}),
        (openai.BadRequestError, "bad_request", {"temperature": 7}),
        (openai.BadRequestError, "bad_request", {"conversation": "a\0b"}),
        (openai.BadRequestError, "bad_request", {"metadata": {"k" * 65: "v"}}),
        (openai.BadRequestError, "previous_response_not_found", {"previous_response_id": "resp_none"}),
        (openai.BadRequestError, "previous_response_not_found", {"previous_response_id": "x" * 9000}),
        (
            openai.BadRequestError,
            "mutually_exclusive_parameters",
            {"conversation": "c", "previous_response_id": made.id},
        ),
        (openai.APIStatusError, "body_too_large", {"input": "x" * (2 << 20)}),
        (openai.APIStatusError, "text_too_large", {"input": "x" * (600 << 10)}),
    ]
    for kind, code, given in bad:
        with pytest.raises(kind) as refused:
            await response_to(ai, **given)
        assert (refused.value.code, refused.value.status_code < 500) == (code, True), given
    for after in ("-1", "x", str(1 << 53), "9" * 40):
        with pytest.raises(openai.BadRequestError):
            await ai.responses.retrieve(made.id, stream=True, extra_query={"starting_after": after})
    for number in (0, 1, 77, (1 << 53) - 1, (1 << 52) + 12345, 1 << 40):  # numbers that no event had end well, too
        events = [event async for event in await ai.responses.retrieve(made.id, stream=True, starting_after=number)]
        assert all(event.sequence_number > number for event in events)
    stranger = new_tenant(here)
    async with (
        asking(url, await token_of(here, tenant.project, channel="u_eve")) as elsewhere,
        asking(url, await token_of(here, stranger.project)) as other,
    ):
        for asker in (elsewhere, other):
            with pytest.raises(openai.NotFoundError):
                await asker.responses.retrieve(made.id, stream=True)
            with pytest.raises(openai.NotFoundError):
                await asker.responses.cancel(made.id)
            with pytest.raises(openai.APIStatusError) as refused:
                await asker.responses.create(model=ALICE, input="hello", previous_response_id=made.id)
            assert refused.value.code in ("previous_response_not_found", "model_not_found")
    for response in ("resp_none", "nonsense", "resp_" + "x" * 300):
        for asked in (ai.responses.retrieve(response), ai.responses.cancel(response)):
            with pytest.raises(openai.NotFoundError) as refused:
                await asked
            assert refused.value.code == "unknown_response"
    with pytest.raises(openai.APIStatusError) as refused:
        await ai.responses.delete(made.id)
    assert refused.value.code == "method_not_allowed"
    async with asking(url, "sk-none") as nobody:
        with pytest.raises(openai.AuthenticationError):
            await nobody.responses.retrieve(made.id)
