"""What `turnstile schema export` writes of the verbs into other files, between its marks: NATS permissions and a table.

A mark is a line `… made by turnstile schema export: NAME`; the part ends at the next line `… end of NAME`.
"""

import re
from collections.abc import Iterator
from typing import Any

from turnstile.schema.interface.entries import PREFIX
from turnstile.schema.verbs import VERBS, Party, Verb

_LEFT_TO_OPERATORS = {"decide"}
"""What the turns of a client ask people, others decide."""
_REQUESTS_ONLY = {"describe"}
"""Durable verbs that no role needs as a command: whoever looks wants the answer now."""
_PROJECT = "demo"
"""The project of tool, client and operator in `deploy/nats/nats.conf`."""


def _subjects(verb: Verb[Any, Any], caller: str) -> Iterator[str]:
    prefix = PREFIX.format(project_id=_PROJECT, channel_id="*")
    request = f"{prefix}.req.sys.bridge.{verb.name}"
    if verb.caller != "must":
        yield request
    if verb.caller != "none" and caller:
        yield f"{request}.{caller}"
    if verb.durable and verb.name not in _REQUESTS_ONLY:
        yield f"{prefix}.cmd.sys.bridge.{verb.name}"


def _publishable(user: str, verb: Verb[Any, Any]) -> list[str]:
    """The subjects on which a user of `deploy/nats/nats.conf` may ask the verb."""
    by_client = Party.CLIENT in verb.callers
    match user:
        case "client" if by_client and verb.name not in _LEFT_TO_OPERATORS:
            return list(_subjects(verb, "client"))
        case "operator" if by_client or Party.OPERATOR in verb.callers:
            return list(_subjects(verb, "operator.*"))
        case "tool" if Party.TOOL in verb.callers:
            return list(_subjects(verb, ""))
        case "gateway" if verb.by_gateway or (verb.route is not None and verb.route.method != "GET"):
            request = f"{PREFIX.format(project_id='*', channel_id='*')}.req.sys.bridge.{verb.name}"
            return [request if verb.caller == "none" else f"{request}.>"]
        case _:
            return []


def _permissions(user: str) -> list[str]:
    lines = (", ".join(f'"{subject}"' for subject in _publishable(user, verb)) for verb in VERBS)
    return [line for line in lines if line]


def _table() -> list[str]:
    """The verbs for docs/protocol.md."""
    lines = ["| verb | callers | the caller's name | durable | over HTTP |", "|---|---|---|---|---|"]
    for verb in VERBS:
        route = f"`{verb.route.method} {verb.route.path}`" if verb.route else ""
        name = {"none": "", "may": "may end the subject", "must": "must end the subject"}[verb.caller]
        durable = "yes" if verb.durable else ""
        lines.append(f"| `{verb.name}` | {', '.join(verb.callers)} | {name} | {durable} | {route} |")
    return lines


def with_verbs(text: str) -> str:
    """The text of a file with its marked parts made anew."""

    def made(match: re.Match[str]) -> str:
        name = match["name"]
        lines = _table() if name == "verbs" else _permissions(name.removeprefix("verbs of "))
        return match["begin"] + "".join(f"{match['indent']}{line}\n" for line in lines) + match["end"]

    return _PART.sub(made, text)


_PART = re.compile(
    r"(?P<begin>^(?P<indent> *)\S+ made by `turnstile schema export`: (?P<name>[a-z ]+?)(?: -->)?\n)"
    r"(?:.*\n)*?(?P<end> *\S+ end of (?P=name)(?: -->)?$)",
    re.MULTILINE,
)
