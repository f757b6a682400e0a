"""Whatever bytes come in: a payload or one error, soon, and no memory left behind (`--fuzz-cases N` for more)."""

import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Literal

import pytest

from tests.support.cpu import cheap
from tests.support.fuzz import Report, Tally
from tests.support.memory import resident_bytes
from turnstile.schema.pump.documents import BadPayload, PayloadCode, repaired
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import Huh, SystemErrorMessage, Text


class Row(Payload):
    key: str
    value: Decimal | None = None


class Sheet(Payload, tag="sheet"):
    title: str
    rows: tuple[Row, ...] = ()
    at: datetime | None = None
    state: Literal["open", "done"] = "open"
    ratio: float = 0.5
    sure: bool = False


ROWS = (Row(key="a", value=Decimal("1.50")), Row(key=""))
SEEDS: list[Payload] = [
    Sheet(title="one\r\n <&> 😀", rows=ROWS, at=datetime(2026, 1, 2, tzinfo=UTC)),
    Sheet(title="", rows=tuple(Row(key=str(n)) for n in range(40))),
    Text(text="plain"),
    Huh.of(b"attempt"),
    SystemErrorMessage.timeout(),
]
MARKUP = [b"<", b">", b"/>", b"</", b"<a>" * 70, b"<rows>", b"</rows>", b"<key></key>", b" a='b'", b" xmlns='urn:x'"]
SECTIONS = [
    b"<![CDATA[",
    b"]]>",
    b"<!--",
    b"-->",
    b"<?p ",
    b"?>",
    b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
    b"```xml\n",
    b"\n```",
]
REFERENCES = [b"&", b"&amp;", b"&#13;", b"&#0;", b"&#x110000;", b"&x;"]
BYTES = [b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\r", b" " * 5_000, "\u0085\ufffe".encode()]
VALUES = [b"", b" ", b"1", b"1e999", b"9" * 1_500, b"9" * 3_000, b"NaN", b"2026-02-30", b"true", b"open", b"x\r\ny"]
HEADS = [b"<?xml version='1.0' encoding='utf-16'?>", b"<?xml version='1.0'?>", b"<!DOCTYPE sheet>", b"<!-- -->", b"\n"]
JSON = [b'"', b"{", b"]", b"\\u0000", b"\\ud800", b"null", b"1e999", b","]
TOKENS = [*MARKUP, *SECTIONS, *REFERENCES, *BYTES, *VALUES, *HEADS]


def with_value(data: bytes, dice: random.Random) -> bytes:
    """The document with another text in one of its leaves."""
    leaves = list(re.finditer(rb"(?<=>)[^<>]*(?=</)", data))
    if not leaves:
        return data
    leaf = dice.choice(leaves)
    return data[: leaf.start()] + dice.choice(VALUES) + data[leaf.end() :]


def mutated(dice: random.Random) -> bytes:
    """Bytes that are a document, nearly one, or nothing like it."""
    if dice.random() < 0.05:
        return dice.randbytes(dice.randrange(200))
    data = dice.choice(SEEDS).to_xml()
    for _ in range(dice.randrange(5)):
        at, to = sorted(dice.randrange(len(data) + 1) for _ in range(2))
        match dice.randrange(9):
            case 0:
                data = data[:at] + dice.choice(TOKENS) + data[at:]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:to] + data[at:to] * dice.randrange(1, 4) + data[to:]
            case 3:
                data = data[:at] + dice.randbytes(1) + data[at + 1 :]
            case 4:
                data = data[:at] + dice.choice(SEEDS).to_xml()[at:]
            case 5:
                data = data.decode("utf-8", "replace").encode(dice.choice(["utf-16", "utf-8-sig", "utf-32"]))
            case 6:
                data = dice.choice(HEADS) + data
            case 7:
                data = with_value(data, dice)
            case _:
                data = b"```xml\n" + data + b"\n```"
    return data


def attempt(payload: type[Payload], data: bytes) -> str:
    """The code of the refusal, or `ok` after what was read came back equal."""
    try:
        found = payload.from_xml(repaired(data))
    except BadPayload as error:
        return error.code
    assert payload.from_xml(found.to_xml()) == found
    return "ok"


@pytest.mark.fuzz
def test_any_bytes_are_a_payload_or_one_error(fuzz_share: Callable[[float], int], fuzz_report: Report) -> None:
    fuzz_cases, tally = fuzz_share(1.0), Tally()
    seen: set[str] = set()
    before = 0
    for number in range(fuzz_cases):
        dice = random.Random(number)  # noqa: S311 a case is its number
        data = mutated(dice)
        payload = type(dice.choice(SEEDS)) if dice.random() < 0.2 else Sheet
        seen.add(came := cheap(0.5, partial(attempt, payload, data), f"case {number}"))
        tally.count("XML payload", came)
        if number == fuzz_cases // 2:
            before = resident_bytes()
    for line in tally.lines():
        fuzz_report(line)
    assert resident_bytes() - before < 8_000_000
    if fuzz_cases >= 2_000:
        rare = {PayloadCode.TOO_LARGE, PayloadCode.TOO_MANY_ELEMENTS, PayloadCode.TOO_DEEP, PayloadCode.INVALID}
        assert seen >= {"ok", *PayloadCode} - rare


@pytest.mark.fuzz
def test_any_json_is_a_payload_or_one_error(fuzz_share: Callable[[float], int], fuzz_report: Report) -> None:
    seen: set[str] = set()
    tally = Tally()
    for number in range(fuzz_share(0.1)):
        dice = random.Random(number)  # noqa: S311 a case is its number
        data = SEEDS[0].to_json()
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(data))
            inserted = dice.choice(
                [b'"', b"{", b"]", b"\\u0000", b"\\ud800", b"null", b"1e999", b",", dice.randbytes(1)]
            )
            data = data[:at] + inserted + data[at + dice.randrange(3) :]
        try:
            found = Sheet.from_json(data)
        except BadPayload as error:
            seen.add(error.code)
            tally.count("JSON payload", error.code)
            continue
        assert Sheet.from_xml(found.to_xml()) == found
        seen.add("ok")
        tally.count("JSON payload", "ok")
    for line in tally.lines():
        fuzz_report(line)
    assert seen == {"ok", PayloadCode.INVALID}
