"""Requests that are within the limits of size and cost as much as they can: for each door, of any shape.

A case is its number: the same number makes the same request.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlencode

from tests.support.fuzz import IDS, TEXTS, VALUES, Dice
from turnstile.gateway.app import Gateway
from turnstile.gateway.console.page import Page
from turnstile.gateway.console.sessions import CSRF
from turnstile.gateway.http.endpoints import Endpoint
from turnstile.schema.verbs import VERBS, Verb

BODY_BYTES = 1 << 20
_PLACE = "\x00here"
_ODD_NUMBERS = (
    *("-1", "0", "1.5", "-0.0", "1e999", "-1e999", "1e308", "1e-999", "2147483648", "9223372036854775808", "NaN"),
    *("Infinity", "1" + "0" * 400, "1" * 5000, "0." + "1" * 100_000, "1" * 300_000, "1e" + "9" * 1000, "00", "+1"),
)
_ODD_STRINGS = (
    *(r"\ud800", r"\udc00\ud800", r"\ud83d\ude00", r"\u0000", r"a\u0000b", r"\n", "x", "ä", "😀", "a b ", "&lt;", "<"),
    *("*", "_", "`", "[](", "![", "> ", "- ", "|", "#", "<!--", "a.", "/", "../", "{", "}", "$", "%s", "&", "=", r"\""),
)
_ITEMS = (
    *("[]", "{}", '""', "null", "0", "1e308", "true", '{"a":1}', '["x"]', '{"type":"text","text":""}', '"\\u0000"'),
    *('{"role":"user","content":""}', '{"kind":"x"}', '{"name":"n"}', '{"":{"":{}}}', '{"text":"x"}', '"x"'),
)
_QUERY_BYTES = 12_000
"""Of one address: a longer head is refused by the HTTP parser, which closes the connection."""
_SIZES = (*(10,) * 4, *(300,) * 4, *(3_000,) * 4, *(30_000,) * 3, 300_000, BODY_BYTES)
_SCHEMAS = (
    '{"type":"object","allOf":[%s]}',
    '{"type":"object","properties":{%s}}',
    '{"anyOf":[%s]}',
    '{"enum":[%s]}',
    '{"type":"object","required":[%s]}',
    '{"type":"string","pattern":"%s"}',
)


def fragment(dice: Dice, most: int) -> str:
    """JSON text of at most so many characters, or nearly JSON: anything that may stand where a value is expected."""
    size = min(most, dice.pick.choice(_SIZES))
    match dice.pick.randrange(8):
        case 0:
            return dice.pick.choice(_ODD_NUMBERS)[:most]
        case 1:
            return _deep(dice, size)
        case 2:
            return _wide(dice, size)
        case 3 | 4:
            return _list(dice.pick.choice(_ITEMS), size)
        case 5:
            text = dice.pick.choice(_ODD_STRINGS)
            return f'"{text * max(1, size // len(text.encode()))}"'
        case 6:
            return _schema(dice, size)
        case _:
            return json.dumps(dice.odd())


def _deep(dice: Dice, size: int) -> str:
    opened, closed = dice.pick.choice([("[", "]"), ('{"a":', "}"), ('[{"":', "}]"), ('{"a":[', "]}")])
    levels = min(dice.pick.choice([10, 60, 63, 65, 120, 198, 300, 100_000]), size // len(opened + closed) or 1)
    return opened * levels + "1" + closed * levels


def _wide(dice: Dice, size: int) -> str:
    value = dice.pick.choice(["1", "[]", "{}", '"x"', "null"])
    prefix = dice.pick.choice(["k", "", "agent_", "ä"])
    return _object(prefix, value, max(1, size // (len(prefix.encode()) + len(value) + 9)))


@functools.lru_cache(maxsize=200)
def _object(prefix: str, value: str, count: int) -> str:
    return "{" + ",".join(f'"{prefix}{number}":{value}' for number in range(count)) + "}"


def _list(item: str, size: int) -> str:
    return "[" + ",".join([item] * max(1, size // (len(item) + 1))) + "]"


def _schema(dice: Dice, size: int) -> str:
    form = dice.pick.choice(_SCHEMAS)
    if "properties" in form:
        inner = _wide(dice, size)[1:-1]
    elif "pattern" in form:
        inner = dice.pick.choice([r"(a+)+$", r"\\w{400}", "a{1,1000}", "(" * 100 + ")" * 100, "[" + "a-z" * 1000 + "]"])
    else:
        inner = _list(dice.pick.choice(["{}", '{"type":"string"}', '"x"', "1", '{"$ref":"#"}']), size)[1:-1]
    return form.replace("%s", inner)


def places(value: Any) -> list[Any]:
    """The value with each of its parts replaced by the place, one at a time."""
    found: list[Any] = [_PLACE]
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        found += [{**known, name: other} for name, inner in known.items() for other in places(inner)]
        found.append({**known, "unknown": _PLACE})
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        found += [[*items[:at], other, *items[at + 1 :]] for at, inner in enumerate(items) for other in places(inner)]
    return found


def bent_json(dice: Dice, value: Any, most: int = BODY_BYTES) -> bytes:
    """The value as JSON with one of its parts replaced, repeated or joined by others; now and then as it is."""
    if dice.chance(0.1):
        return dice.encoded(value)
    given = dice.pick.choice(places(value))
    text = json.dumps(given)
    room = most - len(text) - 100 if dice.chance(0.98) else most * 2
    if dice.chance(0.2) and isinstance(value, dict):  # fields that nobody knows, beside those that are known
        odd = _wide(dice, min(room // 2, dice.pick.choice(_SIZES)))[:-1]
        return (odd + "," + json.dumps(value)[1:]).encode("utf-8", "surrogatepass")
    filled = text.replace(json.dumps(_PLACE), fragment(dice, room))
    return filled.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Ask:
    """One request over HTTP."""

    name: str
    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Doors:
    """Every address of a gateway, with a valid request of each, and the ids of what is there."""

    endpoints: Sequence[Endpoint]
    pages: Sequence[Page]
    bodies: Mapping[str, Sequence[Any]]
    """Valid bodies of addresses that read theirs themselves, by path."""
    token: str
    cookie: str
    csrf: str
    origin: str
    ids: list[str]
    """What addresses may name: agents, and turns as they come."""

    @classmethod
    def of(
        cls, gateway: Gateway, raw: Sequence[tuple[str, Any]], token: str, cookie: str, csrf: str, origin: str
    ) -> "Doors":
        """Those of this one."""
        bodies: dict[str, list[Any]] = {}
        for path, body in raw:
            bodies.setdefault(path, []).append(body)
        endpoints = [*gateway.endpoints, *gateway.openai, *gateway.agui, *gateway.a2a]
        return cls(endpoints, gateway.pages, bodies, token, cookie, csrf, origin, [])

    def ask(self, number: int) -> Ask:
        """The request of this number: each door in turn."""
        dice = Dice.of(number)
        kinds: list[Callable[[Dice], Ask]] = [self._endpoint, self._endpoint, self._raw, self._raw, self._page]
        return kinds[number % len(kinds)](dice)

    def _endpoint(self, dice: Dice) -> Ask:
        endpoint = dice.pick.choice(self.endpoints)
        body = None
        if endpoint.method != "GET":
            body = bent_json(dice, {} if endpoint.body is None else dice.valid(endpoint.body))
        return self._made(dice, endpoint.name, endpoint.method, endpoint.path, tuple(endpoint.query.model_fields), body)

    def _raw(self, dice: Dice) -> Ask:
        path = dice.pick.choice([*self.bodies])
        body = bent_json(dice, dice.pick.choice(self.bodies[path]))
        return self._made(dice, path, "POST", path, (), body)

    def _page(self, dice: Dice) -> Ask:
        page = dice.pick.choice(self.pages)
        headers = {"cookie": self.cookie, "origin": self.origin, "sec-fetch-site": "same-origin"}
        body = None
        if page.method == "POST":
            fields = [*page.form.model_fields, "unknown"]
            sent = {
                name: self._text(dice, 200_000 if dice.chance(0.05) else 300) for name in fields if dice.chance(0.8)
            }
            body = urlencode({CSRF: self.csrf, **sent}).encode()
            headers["content-type"] = "application/x-www-form-urlencoded"
        names = tuple(page.query.model_fields)
        made = self._made(dice, f"console_{page.name}", page.method, page.path, names, body)
        return Ask(made.name, made.method, made.path, body, {**made.headers, **headers})

    def _made(self, dice: Dice, name: str, method: str, path: str, query: Sequence[str], body: bytes | None) -> Ask:
        filled = re.sub(r"\{\w+(:path)?\}", lambda _: quote(self._name(dice), safe=""), path)
        asked = self._query(dice, query)
        return Ask(name, method, filled + (f"?{asked}" if asked else ""), body, self._headers(dice))

    def _name(self, dice: Dice) -> str:
        if self.ids and dice.chance(0.7):
            return dice.pick.choice(self.ids[-500:])
        return self._text(dice, 300) or "x"

    def _query(self, dice: Dice, names: Sequence[str]) -> str:
        """Parameters that it knows and that it does not, once, twice and a thousand times, with values of any kind."""
        if dice.chance(0.5):
            return ""
        known = [*names] or ["limit"]
        pairs = [(dice.pick.choice(known), self._value(dice)) for _ in range(dice.pick.choice([1, 1, 2, 3]))]
        match dice.pick.randrange(12):
            case 0:
                pairs *= 2
            case 1:
                return "&".join(f"p{number}=1" for number in range(1_500))[:_QUERY_BYTES]
            case 2:
                return "&".join([f"{dice.pick.choice(known)}=1"] * 1_500)[:_QUERY_BYTES]
            case 3:
                pairs = [(f"p{number}", "1") for number in range(50)]
            case 4:
                pairs.append((self._text(dice, 100), "1"))
            case _:
                pairs = [*dict(pairs).items()]
        return urlencode(pairs, errors="replace")[:_QUERY_BYTES]

    def _value(self, dice: Dice) -> str:
        if self.ids and dice.chance(0.2):
            return dice.pick.choice(self.ids[-500:])
        return dice.pick.choice([self._text(dice, 4_000), dice.pick.choice(_ODD_NUMBERS)[:4_000], "true", "2026-01-01"])

    def _text(self, dice: Dice, most: int) -> str:
        text = dice.pick.choice([*IDS, *TEXTS, *_ODD_STRINGS, *VALUES])
        repeated = text * (dice.pick.choice([1, 1, 100, most]) // (len(text) or 1) or 1)
        return repeated[:most].encode("utf-8", "replace").decode()

    def _headers(self, dice: Dice) -> dict[str, str]:
        headers = {
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "a2a-version": "1.0",
        }
        if dice.chance(0.2):
            name = dice.pick.choice(["idempotency-key", "prefer", "last-event-id", "traceparent", "tracestate"])
            said = self._text(dice, 2_000).encode("ascii", "replace").decode()
            headers[name] = re.sub(r"[^ -~]", "?", said)
        return headers


def verb_ask(number: int, most: int) -> tuple[Verb[Any, Any], bytes]:
    """The request of this number over NATS: a verb, and a payload of at most so many bytes."""
    dice = Dice.of(number)
    verb = VERBS[number % len(VERBS)]
    return verb, bent_json(dice, dice.valid(verb.request), most)[:most]
