"""The scripted model of chaos runs: answers with the lines of its instruction, and logs the begin and end of each call.

The notes show afterwards whether a worker that woke late was running a step that another worker had continued. The
variable `CHAOS_ASKED` names the file; each note is one append.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from turnstile.activities.models import Script
from turnstile.runtime.ports import ContentDelta, ModelDone, ModelEvent, ModelRequest, ToolCallDelta
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError

ASKED = "CHAOS_ASKED"


def _note(key: str, request: ModelRequest, what: str) -> None:
    note = {"key": key, "step": request.step, "attempt": request.attempt, "what": what}
    line = json.dumps({**note, "pid": os.getpid(), "at": time.time()}).encode() + b"\n"
    file = os.open(os.environ[ASKED], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def instruction(request: ModelRequest) -> dict[str, Any]:
    """The last instruction: `{"key": …, "steps": [line, …]}`."""
    contents = [message.content for message in request.messages if message.role == "user"]
    return json.loads(contents[-1])


async def player(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    """Answer with the line of this step: text in chunks, then calls; after the last line, a short text."""
    plan = instruction(request)
    steps: list[dict[str, Any]] = plan["steps"]
    line: dict[str, Any] = steps[request.step - 1] if request.step <= len(steps) else {"text": "All is done."}
    _note(plan["key"], request, "asked")
    usage = used(plan["key"], request)
    try:
        if request.attempt <= line.get("fails", 0):
            raise ModelError("rate_limited", "the script says so", retryable=True)
        for word in str(line.get("text", "")).split(" "):
            await asyncio.sleep(line.get("delay", 0.0))
            yield ContentDelta(f"{word} ")
        if "error" in line:
            raise ModelError(str(line["error"]), "the script says so", retryable=False)
        for index, call in enumerate(line.get("calls", [])):
            yield ToolCallDelta(index, f"call_{index}", call[0], json.dumps(call[1]))
    finally:  # after an answer, an error, or a cancellation
        _note(plan["key"], request, "over")
    yield ModelDone("tool_calls" if line.get("calls") else "stop", usage, usage_kind="exact" if usage else "unknown")


def used(key: str, request: ModelRequest) -> JsonObject:
    """What the request used: mostly what it could, sometimes unknown, sometimes more than it was allowed."""
    draw = random.Random(f"{key}/{request.step}/{request.attempt}")  # noqa: S311 -- a load, not a secret
    read, written = draw.randint(50, 3_000), draw.randint(1, 2_000)
    match draw.randrange(8):
        case 0:
            return {}
        case 1:
            written *= 10
        case _:
            pass
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


SCRIPTS: dict[str, Script] = {"chaos": player}
