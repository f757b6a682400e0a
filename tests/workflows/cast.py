"""Listeners for the recorded conversations: as few as their shapes need."""

import asyncio
from pathlib import Path

from turnstile.schema.ids import AgentId
from turnstile.schema.pump.listeners import Listener, listener
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse, SystemErrorMessage, Text


class Count(Payload):
    """How often to think again before the answer."""

    left: int


class Question(Payload):
    """To be passed on to the agent `sage`."""

    text: str


class Riddle(Payload):
    """What `mute` never answers."""

    text: str


class Hold(Payload):
    """To be held until a file is there."""

    file: str


class Done(Payload):
    """The answer of all."""

    text: str


@listener("counter", payload=Count, description="Counts down.", answers=[Done])
async def counter(payload: Count, metadata: HandlerMetadata) -> HandlerResponse:
    """To itself, until nothing is left."""
    if payload.left:
        return HandlerResponse(Count(left=payload.left - 1))
    return HandlerResponse.respond(Done(text="counted"))


@listener("asker", payload=Question, description="Asks those who know.", answers=[Done])
async def asker(payload: Question | Done | Text | SystemErrorMessage, metadata: HandlerMetadata) -> HandlerResponse:
    """Asks whoever the question names; responds with what comes back."""
    match payload:
        case Question(text="riddle"):
            return HandlerResponse(Riddle(text="who?"))
        case Question(text=text):
            return HandlerResponse(Text(text=text), to="sage")
        case SystemErrorMessage():
            return HandlerResponse.respond(Done(text=payload.code.value))
        case _:
            return HandlerResponse.respond(Done(text="answered"))


@listener("holder", payload=Hold, description="Waits.", answers=[Done], retries=3)
async def holder(payload: Hold, metadata: HandlerMetadata) -> HandlerResponse:
    """For a file of this name; it leaves one that says that it waits."""
    file = Path(payload.file)
    await asyncio.to_thread(file.with_suffix(".held").touch)
    while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 -- another process makes it
        await asyncio.sleep(0.02)
    return HandlerResponse.respond(Done(text="let go"))


sage = Listener("sage", Text, "Knows.", agent_id=AgentId("sage"), agent=True)
mute = Listener("mute", Riddle, "Is silent.", agent_id=AgentId("mute"), agent=True, deadline_seconds=1)
