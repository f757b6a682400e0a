"""Scripts that YAML cannot say: one that shows what it was asked, one that waits for the test, one that has a bug."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall
from turnstile.runtime.ports import ContentDelta, ModelDone, ModelEvent, ModelRequest, ToolCallDelta
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import uuid7

BUG = "the words of a bug, which quote a card"


def mirror(request: ModelRequest) -> ScriptLine:
    """Answers with the request."""
    return ScriptLine(text=json.dumps(_shown(request)))


def mirror_at_last(request: ModelRequest) -> ScriptLine:
    """Calls an unknown tool once, then answers with the request."""
    if request.step == 1:
        return ScriptLine(text=json.dumps(_shown(request)), tool_calls=(ScriptCall(name="search"),))
    return mirror(request)


async def gated(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    """Two steps; each waits for a file `1` or `2` in the directory that the instruction names. Then the request."""
    directory = next(Path(message.content) for message in request.messages if message.role == "user")
    directory.joinpath(f"asked-{request.step}-{request.attempt}").touch()
    while not directory.joinpath(str(request.step)).exists():  # noqa: ASYNC110 -- the test is another process
        await asyncio.sleep(0.01)
    directory.joinpath(f"answered-{request.step}-{request.attempt}").touch()
    if request.step == 1:
        yield ToolCallDelta(0, "call_0", "search", "{}")
        yield ModelDone("tool_calls")
    else:
        yield ContentDelta(json.dumps(_shown(request)))
        yield ModelDone("stop")


def buggy(request: ModelRequest) -> ScriptLine:
    """Raises what no adapter should, once."""
    if request.attempt == 1:
        raise RuntimeError(BUG)
    return ScriptLine(text="Recovered.")


def three_steps(request: ModelRequest) -> ScriptLine:
    """Two steps with a call, then a text; repeats what it was told in each, so that all its cards are as large."""
    told = next(message.content for message in request.messages if message.role == "user")
    calls = (ScriptCall(name="search", arguments={"query": told}),) if request.step < 3 else ()
    return ScriptLine(text=f"step {request.step} of {told}", reasoning=told, tool_calls=calls)


def player(request: ModelRequest) -> ScriptLine:
    """Says the lines of its instruction, `{"steps": [line, …]}`, one a step (or one an attempt, where a step is
    `{"attempts": [line, …]}`); then answers with the request.
    """
    return _played(request, next(message.content for message in request.messages if message.role == "user"))


def talks(request: ModelRequest) -> ScriptLine:
    """As `player`, by the last instruction: a turn of a conversation reads those of earlier turns, too."""
    return _played(
        request, [message.content for message in request.messages if message.content.startswith('{"steps"')][-1]
    )


def _played(request: ModelRequest, told: str) -> ScriptLine:
    lines = json.JSONDecoder().raw_decode(told)[0]["steps"]  # the fields that are wanted may follow
    if request.step > len(lines):
        return mirror(request)
    tried = lines[request.step - 1].get("attempts", [lines[request.step - 1]])
    return ScriptLine.model_validate(tried[min(request.attempt, len(tried)) - 1])


async def paced(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    """Says `words`, no more of them than the file `pace` says by then; its instruction names both."""
    told = json.loads(next(message.content for message in request.messages if message.role == "user"))
    words, pace = str(told["words"]).split(), Path(told["pace"])
    for number, word in enumerate(words):
        while number >= _number(pace):  # noqa: ASYNC110 -- the test is another process
            await asyncio.sleep(0.01)
        yield ContentDelta(f"{word} ")
    yield ModelDone("stop")


def _number(file: Path) -> int:
    return int(file.read_text() or 0)


async def noting(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    """As `player`, with a pause, and before that it notes the request in the directory `notes` of its instruction."""
    told = json.JSONDecoder().raw_decode(
        next(message.content for message in request.messages if message.role == "user")
    )[0]
    note = Path(told["notes"]) / f"{request.step}-{uuid7()}"
    note.write_text(json.dumps(_shown(request)["messages"]))
    await asyncio.sleep(0.2)
    line = player(request)
    yield ContentDelta(line.text or "")
    for index, call in enumerate(line.tool_calls):
        yield ToolCallDelta(index, f"call_{index}", call.name, "{}")
    yield ModelDone("tool_calls" if line.tool_calls else "stop")


def _shown(request: ModelRequest) -> dict[str, object]:
    return {
        "messages": [[message.role, message.content] for message in request.messages],
        "tools": [dict(tool)["function"] for tool in request.tools],
        "config": request.config.model_dump(exclude_none=True),
        "timeout_seconds": request.timeout_seconds,
        "step": request.step,
    }


def asks_itself(request: ModelRequest) -> ScriptLine:
    """Told to begin, asks the agent `mate` to go on; else says what it was told last."""
    told = [message.content for message in request.messages if message.role == "user"][-1]
    asked: JsonObject = {"target_strategy": "reuse", "target_ref": "mate", "instruction": "go on"}
    begins = told == "begin" and request.step == 1
    return ScriptLine(text=told, tool_calls=(ScriptCall(name="delegate_async", arguments=asked),) if begins else ())


def unending(_: ModelRequest) -> ScriptLine:
    """Begins a text, and does not end it within an hour."""
    return ScriptLine(text="It began thus, and", chunks=2, delay_seconds=3600)


def verbose(_: ModelRequest) -> ScriptLine:
    """Says 5 MB."""
    return ScriptLine(text="word\n" * 1_000_000, chunks=200)


SCRIPTS: dict[str, Script] = {
    "verbose": verbose,
    "mirror": mirror,
    "mirror_at_last": mirror_at_last,
    "gated": gated,
    "paced": paced,
    "buggy": buggy,
    "three_steps": three_steps,
    "player": player,
    "noting": noting,
    "talks": talks,
    "asks_itself": asks_itself,
    "unending": unending,
}
