"""Valid, nearly valid and invalid messages: generated from the catalog's models, then mutated.

A case is identified by its number: the same number generates the same message.
"""

import functools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel

from turnstile.schema.interface.catalog import ENTRIES
from turnstile.schema.verbs import VERBS
from turnstile.schema.wire import headers

IDS = ["alice", "bob", "demo", "public", "a.b", "*", ">", "", "a b", "ä", "x" * 129, "\0", "01a20068-5f33-71eb-a3ad"]
TEXTS = [
    *(
        "",
        " ",
        "hello",
        "\0",
        "a\0b",
        "\ud800",
        "\udfff\ud800",
        "😀",
        "\u202e",
        "\ufffe",
        "\x1b[2J",
        "{agent_id}",
        "%s",
    ),
    *(
        "x" * 300,
        "ä" * 3_000,
        "0" * 400,
        "null",
        "<a>&b;</a>",
        "'; DROP TABLE cards; --",
        "../../etc/passwd",
        "\r\nX: y",
    ),
]
NUMBERS = [
    0,
    -1,
    1,
    0.5,
    2**31,
    2**63,
    -(2**63),
    2**200,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
]
BYTES = [
    b"\xff",
    b"\x00",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"]",
    b'"',
    b",",
    b":",
    b"1e999",
]
NAMES = [
    *(headers.TRACEPARENT, headers.TRACESTATE, headers.DEPTH, headers.PROJECT_ID, headers.CHANNEL_ID, headers.AGENT_ID),
    *(headers.TURN_ID, headers.TURN_EPOCH, headers.TOOL_CALL_ID, headers.PARENT_TURN_ID, headers.THREAD_ID),
    *(headers.SENDER, headers.MSG_TYPE, headers.TIMESTAMP, "X-Other"),
]
VALUES = [
    *("0", "3", "-1", "20", "9" * 30, "٣", "a b", "x" * 300, "demo", "alice", "public", "system", "é", ""),
    *("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "00-x-y-01"),
]
MODELS: dict[str, type[BaseModel]] = {
    **{verb.name: verb.request for verb in VERBS},
    **{
        entry.name: entry.payload for entry in ENTRIES if entry.payload is not None and entry.subject.startswith("cmd.")
    },
}
"""The models of messages that others send, by verb or by subject."""


@functools.cache
def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema."""
    return model.model_json_schema()


@dataclass(frozen=True)
class Dice:
    """The random choices of one case."""

    pick: random.Random

    @classmethod
    def of(cls, number: int) -> "Dice":
        """The choices of case `number`."""
        return cls(random.Random(number))  # noqa: S311 -- a case is its number

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.pick.random() < share

    def valid(self, model: type[BaseModel]) -> Any:
        """A value that the model's JSON Schema allows; checks outside of the schema may still refuse it."""
        schema = schema_of(model)
        return self._value(schema, schema.get("$defs", {}), 0)

    def _value(self, schema: dict[str, Any], defs: dict[str, Any], depth: int) -> Any:
        if "$ref" in schema:
            return self._value(defs[schema["$ref"].rpartition("/")[2]], defs, depth)
        for word in ("const", "default"):
            if word in schema and (word == "const" or self.chance(0.3)):
                return schema[word]
        if "enum" in schema:
            return self.pick.choice(schema["enum"])
        choices = [each for each in schema.get("anyOf", schema.get("oneOf", [])) if {*each} != {"required"}]
        if choices:
            return self._value(self.pick.choice(choices), defs, depth)
        match schema.get("type"):
            case "object":
                return self._object(schema, defs, depth)
            case "array":
                count = self.pick.randrange(schema.get("minItems", 0), schema.get("minItems", 0) + 3)
                return [self._value(schema.get("items", {}), defs, depth + 1) for _ in range(count)]
            case "string":
                return self._text(schema)
            case "integer":
                return max(schema.get("minimum", 0), self.pick.randrange(5))
            case "number":
                return schema.get("exclusiveMinimum", schema.get("minimum", 0)) + self.pick.random()
            case "boolean":
                return self.chance(0.5)
            case "null":
                return None
            case _:
                return self.pick.choice([None, 1, "x", [1], {"a": "b"}]) if depth < 4 else None

    def _object(self, schema: dict[str, Any], defs: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        return {
            name: self._value(each, defs, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in required or (depth < 4 and self.chance(0.15))
        }

    def _text(self, schema: dict[str, Any]) -> str:
        if "maxLength" in schema or "pattern" in schema:
            return self.pick.choice(["alice", "demo", "tool_1", "a-b", "x"])
        return self.pick.choice(["alice", "hello", "a text", *TEXTS[:3]])

    def bent(self, value: Any) -> Any:
        """The value with some parts replaced, dropped, added or nested."""
        for _ in range(self.pick.randrange(1, 4)):
            value = self._bend(value, 0)
        return value

    def _bend(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict) and value and depth < 6 and self.chance(0.8):
            known = cast("dict[str, Any]", value)
            name = self.pick.choice([*known])
            match self.pick.randrange(6):
                case 0:
                    return {key: each for key, each in known.items() if key != name}
                case 1:
                    return {**known, self.pick.choice([*TEXTS, *IDS]): self.odd()}
                case _:
                    return {**known, name: self._bend(known[name], depth + 1)}
        if isinstance(value, list) and value and self.chance(0.5):
            items = cast("list[Any]", value)
            return [*items[:-1], self._bend(items[-1], depth + 1)] * self.pick.choice([1, 1, 2])
        return self.odd()

    def odd(self) -> Any:
        """A value of any type, often an unusual one."""
        nested: list[Any] = [
            {},
            {"": {}},
            {"a": 1},
            {"$ref": "#"},
            {"type": "object"},
            [[]],
            [None] * 5_000,
            self._deep(),
        ]
        return self.pick.choice(
            [
                *(None, self.pick.choice(IDS)),
                *nested,
                *self.pick.sample(TEXTS, 4),
                *self.pick.sample(NUMBERS, 3),
            ]
        )

    def _deep(self) -> Any:
        value: Any = 1
        for _ in range(self.pick.choice([5, 100, 150])):
            value = [value] if self.chance(0.5) else {"a": value}
        return value

    def encoded(self, value: Any) -> bytes:
        """The value as bytes: mostly JSON, sometimes with a repeated key, truncated, padded, or in another encoding."""
        text = json.dumps(value, ensure_ascii=self.chance(0.5))
        data = text.encode("utf-8", "surrogatepass")
        kind = self.pick.random()
        if kind < 0.75:
            return data
        at = self.pick.randrange(len(data) + 1)
        if kind < 0.8 and data.startswith(b'{"'):
            return b'{"agent_id": "bob", "agent_id": 7, ' + data[1:]
        if kind < 0.85:
            return data[:at]
        if kind < 0.9:
            return data[:at] + self.pick.choice(BYTES) + data[at:]
        if kind < 0.93:
            return text.encode("utf-16", "surrogatepass")
        if kind < 0.96:
            return b"[" * self.pick.choice([10, 5_000, 50_000]) + data
        return self.pick.randbytes(self.pick.randrange(200))

    def payload(self, model: type[BaseModel]) -> bytes:
        """A message for a model: valid, mutated, or unrelated."""
        value = self.valid(model)
        return self.encoded(value if self.chance(0.4) else self.bent(value))

    def headers(self) -> dict[str, str]:
        """Some headers."""
        return {self.pick.choice(NAMES): self.pick.choice(VALUES) for _ in range(self.pick.choice([0, 0, 1, 1, 3]))}

    def subject(self, kind: str) -> str:
        """A subject: valid, with one token mutated, or unrelated."""
        tokens = ["cg", "v1r4", "demo", "public", *kind.split(".")]
        if self.chance(0.6):
            return ".".join(tokens)
        at = self.pick.randrange(len(tokens) + 1)
        if self.chance(0.5):
            return ".".join([*tokens[:at], self.pick.choice([*IDS, *TEXTS]), *tokens[at + 1 :]])
        return self.pick.choice([".".join(tokens[:at]), ".".join([*tokens, "x"]), self.pick.choice(TEXTS)])


@dataclass
class Tally:
    """Counts of the cases by kind and outcome."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def count(self, kind: str, came: str) -> None:
        """Count a case."""
        self.counts[kind, came] += 1

    def codes(self, kind: str) -> set[str]:
        """The outcomes of a kind."""
        return {came for each, came in self.counts if each == kind}

    def lines(self) -> list[str]:
        """One line of counts for each kind."""
        kinds = sorted({kind for kind, _ in self.counts})
        return [
            f"{kind}: {sum(self.counts[key] for key in self.counts if key[0] == kind)} cases, "
            + ", ".join(f"{self.counts[key]} {key[1]}" for key in sorted(self.counts) if key[0] == kind)
            for kind in kinds
        ]


Report = Callable[[str], None]
"""Takes a line for the end of the run."""
