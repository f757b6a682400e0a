"""The scripted model of the tools' tests: it makes the calls it is told to make, then says that it is done."""

import json

from turnstile.activities.models.script import ScriptCall, ScriptLine
from turnstile.runtime.ports import ModelRequest


def caller(request: ModelRequest) -> ScriptLine:
    """The calls of the instruction in the first step."""
    if request.step > 1:
        return ScriptLine(text="done")
    instruction = next(message.content for message in reversed(request.messages) if message.role == "user")
    calls = tuple(ScriptCall.model_validate(load) for load in json.loads(instruction))
    return ScriptLine(text="calling", tool_calls=calls)


SCRIPTS = {"caller": caller}
