"""A client of AG-UI: it reads events with the package's types, holds them against the protocol's order, and folds them.

Order and folding are those of AG-UI's own client: what it would throw at fails here, and `messages` is what it holds.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from ag_ui.core import (
    BaseEvent,
    Event,
    Interrupt,
    MessagesSnapshotEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageStartEvent,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from pydantic import TypeAdapter

from tests.support.tenants import ALICE
from turnstile.schema.ids import AgentTurnId, uuid7

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_DATA = "data: "


@dataclass
class Told:
    """What a run told, and what its client holds then."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    events: list[BaseEvent] = field(default_factory=list[BaseEvent])
    _open: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    @property
    def kinds(self) -> list[str]:
        """The types of the events; of several of one type in a row once."""
        named = [event.type.value for event in self.events]
        return [each for n, each in enumerate(named) if n == 0 or named[n - 1] != each]

    @property
    def turn(self) -> AgentTurnId:
        """The turn that the run is."""
        begun = self.events[0]
        assert isinstance(begun, RunStartedEvent), begun
        assert begun.metadata is not None
        return AgentTurnId(begun.metadata["turnstile"]["agent_turn_id"])

    @property
    def last(self) -> BaseEvent:
        """The last event."""
        return self.events[-1]

    @property
    def outcome(self) -> str:
        """How the run ended: an outcome, or the code of an error."""
        match self.last:
            case RunFinishedEvent(outcome=outcome) if outcome is not None:
                return outcome.type
            case RunErrorEvent(code=code):
                return f"error: {code}"
            case other:
                raise AssertionError(f"the run did not end: {other}")

    @property
    def interrupts(self) -> list[Interrupt]:
        """What the run waits for."""
        assert isinstance(self.last, RunFinishedEvent), self.last
        assert isinstance(self.last.outcome, RunFinishedInterruptOutcome), self.last
        return self.last.outcome.interrupts

    @property
    def said(self) -> list[tuple[str, str]]:
        """Role and text of the messages that have a text."""
        return [(message["role"], message["content"]) for message in self.messages if message.get("content")]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of the calls that its messages have."""
        made = [call["function"] for message in self.messages for call in message.get("toolCalls") or ()]
        return [(call["name"], call["arguments"]) for call in made]

    def take(self, event: BaseEvent) -> None:
        """Take an event; fails where AG-UI's order does not allow it."""
        if self.events:
            assert not isinstance(self.last, RunFinishedEvent | RunErrorEvent), f"{event} after the end"
            assert not isinstance(event, RunStartedEvent)
        else:
            assert isinstance(event, RunStartedEvent | RunErrorEvent), event
        self.events.append(event)
        self._order(event)
        self._fold(event)

    def _order(self, event: BaseEvent) -> None:
        match event:
            case StepStartedEvent(step_name=name):
                self._begins("STEP", name)
            case StepFinishedEvent(step_name=name):
                self._ends("STEP", name)
            case ToolCallStartEvent(tool_call_id=call):
                self._begins("TOOL_CALL", call)
            case ToolCallArgsEvent(tool_call_id=call):
                assert ("TOOL_CALL", call) in self._open
            case ToolCallEndEvent(tool_call_id=call):
                self._ends("TOOL_CALL", call)
            case RunFinishedEvent():
                assert not self._open, f"still open: {self._open}"
            case _:
                kind, _, what = event.type.value.rpartition("_")
                named = getattr(event, "message_id", None)
                if what == "START":
                    self._begins(kind, named)
                elif what == "CONTENT":
                    assert (kind, named) in self._open, event
                elif what == "END":
                    self._ends(kind, named)

    def _begins(self, kind: str, named: Any) -> None:
        assert (kind, named) not in self._open, f"{kind} {named} is open"
        self._open.add((kind, named))

    def _ends(self, kind: str, named: Any) -> None:
        assert (kind, named) in self._open, f"{kind} {named} is not open"
        self._open.remove((kind, named))

    def _fold(self, event: BaseEvent) -> None:
        match event:
            case TextMessageStartEvent(message_id=named) | ReasoningMessageStartEvent(message_id=named):
                role = "assistant" if isinstance(event, TextMessageStartEvent) else "reasoning"
                if self._message(named) is None:
                    self.messages.append({"id": named, "role": role, "content": ""})
            case (
                TextMessageContentEvent(message_id=named, delta=text)
                | ReasoningMessageContentEvent(message_id=named, delta=text)
            ):
                message = self._message(named)
                assert message is not None
                message["content"] = (message.get("content") or "") + text
            case ToolCallStartEvent(tool_call_id=call, tool_call_name=name, parent_message_id=parent):
                if self._call(call) is None:
                    message: dict[str, Any] | None = self._message(parent)
                    if message is None:
                        message = dict[str, Any](id=parent, role="assistant")
                        self.messages.append(message)
                    function = {"name": name, "arguments": ""}
                    message.setdefault("toolCalls", []).append({"id": call, "type": "function", "function": function})
            case ToolCallArgsEvent(tool_call_id=call, delta=text):
                made = self._call(call)
                assert made is not None
                made["function"]["arguments"] += text
            case ToolCallResultEvent(message_id=named, tool_call_id=call, content=content):
                assert self._call(call) is not None, f"a result of a call that nobody knows: {call}"
                self.messages.append({"id": named, "role": "tool", "toolCallId": call, "content": content})
            case MessagesSnapshotEvent(messages=messages):
                given = [m.model_dump(mode="json", by_alias=True) for m in messages]
                assert all(each["role"] not in ("reasoning", "activity") for each in given)
                by_id = {each["id"]: each for each in given}
                own = ("reasoning", "activity")
                kept = [m for m in self.messages if m["id"] in by_id or m["role"] in own]
                self.messages[:] = [by_id.get(each["id"], each) for each in kept]
                held = {m["id"] for m in self.messages}
                self.messages += [each for each in given if each["id"] not in held]
            case _:
                pass
        assert len({m["id"] for m in self.messages}) == len(self.messages), "a message is there twice"

    def _message(self, named: str | None) -> dict[str, Any] | None:
        return next((message for message in self.messages if message["id"] == named), None)

    def _call(self, named: str) -> dict[str, Any] | None:
        made = [call for message in self.messages for call in message.get("toolCalls") or ()]
        return next((call for call in made if call["id"] == named), None)


@dataclass
class FrontEnd:
    """A front end with one thread, which keeps its messages as AG-UI's client does."""

    web: httpx.AsyncClient
    agent: str = ALICE
    thread: str = field(default_factory=uuid7)
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def says(self, text: str) -> None:
        """The user says something, which the next run is about."""
        self.messages.append({"id": uuid7(), "role": "user", "content": text})

    def input(self, **fields: Any) -> dict[str, Any]:
        """The input of a run."""
        messages = [message for message in self.messages if message["role"] != "activity"]
        made = {"threadId": self.thread, "runId": uuid7(), "messages": messages}
        empty: dict[str, Any] = {
            "tools": [],
            "context": [],
            "state": {},
            "forwardedProps": {},
            "protocolVersion": "1.0",
        }
        return {**empty, **made, **fields}

    async def run(self, text: str | None = None, *, cut_after: int | None = None, **fields: Any) -> Told:
        """Run the agent to the end of the run, or to so many events; the messages are then what its client holds."""
        if text is not None:
            self.says(text)
        told = Told(self.messages)
        body = json.loads(json.dumps(self.input(**fields)))
        async with self.web.stream("POST", f"/agui/{self.agent}", json=body) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            async for event in agui_events(response):
                told.take(event)
                if cut_after is not None and len(told.events) >= cut_after:
                    return told
        assert told.outcome
        return told

    async def resume(self, *answers: Mapping[str, Any], **fields: Any) -> Told:
        """Answer what the run before asked."""
        return await self.run(resume=list(answers), **fields)

    async def refusal(self, **fields: Any) -> tuple[int, str, str | None]:
        """Status, code and parameter of the problem that answers this input."""
        answer = await self.web.post(f"/agui/{self.agent}", json=self.input(**fields))
        problem = answer.json()
        return answer.status_code, problem["code"], problem.get("param")


async def agui_events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of a stream, which have nothing but data."""
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            assert line.startswith(_DATA), line
            yield _EVENT.validate_json(line.removeprefix(_DATA))


def answer_to(interrupt: Interrupt, payload: Any = None, **fields: Any) -> dict[str, Any]:
    """An answer that brings the interrupt's metadata back."""
    made = {"interruptId": interrupt.id, "status": "resolved", "metadata": interrupt.metadata, "payload": payload}
    return {**made, **fields}
