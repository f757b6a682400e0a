"""Scripted models for the agents of `turnstile demo-pump`; each answers according to the sender of its last message."""

import html
import re

from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.base import JsonObject

_TEXT = re.compile(r"<text>([^<]*)</text>")


def waiter(request: ModelRequest) -> ScriptLine:
    """Asks the taster, thinks, orders, and answers the guest: each in a turn, which remembers the turns before."""
    received = [message.content for message in request.messages if message.role == "user"]
    match received[-1].partition(":\n")[0].removeprefix("Message from "):
        case "taster":
            return _call("think", {"reasoning": f"{_text_of(received[-1])} Two loaves of rye, then."}, "That helps.")
        case "waiter":
            return _call("send_counter", {"bread": "rye", "loaves": 2}, "I order.")
        case "counter":
            advice = next((_text_of(text) for text in received if text.startswith("Message from taster")), "")
            return ScriptLine(
                text=f"{advice} I ordered for you: {_text_of(received[-1])}", chunks=4, delay_seconds=0.05
            )
        case "system":
            return ScriptLine(text="Please ask me once more.")
        case _:
            return _call("send_taster", {"name": "soup"}, "A guest, and soup. The taster will know.")


def taster(_: ModelRequest) -> ScriptLine:
    """Answers with text, which counts as a response."""
    return ScriptLine(text="Rye goes with soup, for its crust stays firm.", chunks=3, delay_seconds=0.05)


def _call(name: str, arguments: JsonObject, text: str) -> ScriptLine:
    return ScriptLine(text=text, tool_calls=(ScriptCall(name=name, arguments=arguments),), delay_seconds=0.1)


def _text_of(message: str) -> str:
    match = _TEXT.search(message)
    return html.unescape(match[1]) if match else ""


SCRIPTS: dict[str, Script] = {"waiter": waiter, "taster": taster}
