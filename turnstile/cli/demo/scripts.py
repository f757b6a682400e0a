"""Scripts of the models that play the agents of `turnstile demo-pump`: what they say follows from whom they hear."""

import html
import re

from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.base import JsonObject

_TEXT = re.compile(r"<text>([^<]*)</text>")


def waiter(request: ModelRequest) -> ScriptLine:
    """Asks the taster, thinks, orders, and tells the guest: each is a turn, which remembers the ones before."""
    heard = [each.content for each in request.messages if each.role == "user"]
    match heard[-1].partition(":\n")[0].removeprefix("Message from "):
        case "taster":
            return _calling("think", {"reasoning": f"{_said(heard[-1])} Two loaves of rye, then."}, "That helps.")
        case "waiter":
            return _calling("send_counter", {"bread": "rye", "loaves": 2}, "I order.")
        case "counter":
            advice = next((_said(each) for each in heard if each.startswith("Message from taster")), "")
            return ScriptLine(text=f"{advice} I ordered for you: {_said(heard[-1])}", chunks=4, delay_seconds=0.05)
        case "system":
            return ScriptLine(text="Please ask me once more.")
        case _:
            return _calling("send_taster", {"name": "soup"}, "A guest, and soup. The taster will know.")


def taster(_: ModelRequest) -> ScriptLine:
    """Answers in words, which count as a response."""
    return ScriptLine(text="Rye goes with soup, for its crust stays firm.", chunks=3, delay_seconds=0.05)


def _calling(name: str, arguments: JsonObject, text: str) -> ScriptLine:
    return ScriptLine(text=text, tool_calls=(ScriptCall(name=name, arguments=arguments),), delay_seconds=0.1)


def _said(message: str) -> str:
    found = _TEXT.search(message)
    return html.unescape(found[1]) if found else ""


SCRIPTS: dict[str, Script] = {"waiter": waiter, "taster": taster}
