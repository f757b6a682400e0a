"""A model for agents of the message pump: what it says, turn by turn, is in the first message of its segment.

A message's `<play>` is a list of turns, each a list of the lines of its steps. So the model must remember how its
segment began to know what to say next; beyond the last turn it responds with all that it was asked.
"""

import html
import json
import re
from typing import Any

from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall
from turnstile.runtime.ports import ModelRequest

_PLAY = re.compile(r"<play>(.*?)</play>", re.DOTALL)
_MESSAGE = re.compile(r"^Message from ", re.MULTILINE)


def actor(request: ModelRequest) -> ScriptLine:
    """The line of this step of this turn; beyond its lines, and beyond its play, all that it was asked."""
    told = "\n".join(message.content for message in request.messages if message.role == "user")
    found = _PLAY.search(told)
    turns: list[Any] = json.loads(html.unescape(found[1])) if found else []
    number = len(_MESSAGE.findall(told))
    lines: list[Any] = turns[number - 1] if number <= len(turns) else []
    if request.step <= len(lines):
        return ScriptLine.model_validate(lines[request.step - 1])
    return ScriptLine(tool_calls=(ScriptCall(name="respond", arguments=json.dumps(_answer(request))),))


def stubborn(request: ModelRequest) -> ScriptLine:
    """Says one line for ever: that of its last message."""
    told = [message.content for message in request.messages if message.role == "user"]
    found = _PLAY.search("\n".join(told))
    return ScriptLine.model_validate(json.loads(html.unescape(found[1]))[0][0] if found else {"text": "?"})


def _answer(request: ModelRequest) -> dict[str, object]:
    shown = {
        "messages": [[message.role, message.content] for message in request.messages],
        "tools": [dict(tool)["function"] for tool in request.tools],
    }
    functions = [json.loads(json.dumps(tool))["function"] for tool in request.tools]
    [respond] = [function for function in functions if function["name"] == "respond"]
    told = json.dumps(shown)
    return {"text": told} if "text" in respond["parameters"]["properties"] else {"said": told, "score": 0}


SCRIPTS: dict[str, Script] = {"actor": actor, "stubborn": stubborn}
