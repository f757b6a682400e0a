"""docs/limits.md: its table of limits is the code's."""

import re

from tests.support.paths import ROOT
from turnstile.gateway.a2a.rpc import MOST_VALUES as A2A_VALUES
from turnstile.gateway.http.guard import MOST_PARAMETERS
from turnstile.rules.answer import ANSWER_LIMIT_BYTES, TOO_LARGE
from turnstile.schema.base import DEEPEST_STORED
from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import MOST_DIGITS, MOST_VALUES
from turnstile.schema.people.steers import MOST_WAITING
from turnstile.schema.pump.documents import LIMITS as XML
from turnstile.schema.pump.documents import PayloadCode
from turnstile.schema.wire.inbox import RESULT_LIMIT_BYTES, TEXT_LIMIT_BYTES
from turnstile.schema.wire.limits import MADE_LIMITS
from turnstile.settings import Settings
from turnstile.settings.model import LimitsSettings
from turnstile.temporal.converters import PAYLOAD_LIMIT_BYTES

PAGE = ROOT / "docs" / "limits.md"


def table() -> dict[str, tuple[str, str, str]]:
    """Each limit's number, answer and code."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in lines if len(line) == 5 and line[0] != "limit"]
    return {row[0].strip("`"): (row[1].split()[0], row[3], row[4].strip("`")) for row in rows}


def test_the_sizes_are_the_codes() -> None:
    told = {name: (number, code) for name, (number, _, code) in table().items() if not name.startswith("[")}
    assert told == {
        "text of a request": (str(TEXT_LIMIT_BYTES), "text_too_large"),
        "values of a request": (str(MOST_VALUES), BadRequest.code),
        "values of an A2A request": (str(A2A_VALUES), "-32602"),
        "nesting of a request": (str(DEEPEST_STORED), BadRequest.code),
        "digits of a number": (str(MOST_DIGITS), BadRequest.code),
        "parameters of an address": (str(MOST_PARAMETERS), BadRequest.code),
        "steers that wait": (str(MOST_WAITING), "too_many_steers"),
        "inline result of a report": (str(RESULT_LIMIT_BYTES), "result_too_large"),
        "a model's answer": (str(ANSWER_LIMIT_BYTES), TOO_LARGE),
        "payload as XML": (str(XML.size), PayloadCode.TOO_LARGE.value),
        "nesting of XML": (str(XML.depth), PayloadCode.TOO_DEEP.value),
        "elements of XML": (str(XML.elements), PayloadCode.TOO_MANY_ELEMENTS.value),
        "Temporal payload": (str(PAYLOAD_LIMIT_BYTES), "PayloadTooLarge"),
    }


def test_the_settings_have_these_defaults_and_none_is_left_out() -> None:
    told = {name: number for name, (number, _, _) in table().items() if name.startswith("[")}
    settings = Settings().model_dump()
    for name, number in told.items():
        section, key = re.fullmatch(r"\[(\w+)\]\.(\w+)", name.replace("`", "")).groups()  # pyright: ignore[reportOptionalMemberAccess] -- then it fails
        assert float(number) == settings[section][key], name
    assert {name for name in told if name.startswith("[limits]")} == {
        f"[limits].{key}" for key in LimitsSettings.model_fields
    }


def test_every_code_that_is_busy_is_in_the_table() -> None:
    sources = "\n".join(
        path.read_text() for room in ("schema", "ledger", "bridge") for path in (ROOT / room).rglob("*.py")
    )
    raised = set(re.findall(r'Limited\(\s*"(\w+)"', sources)) | MADE_LIMITS
    raised |= {"queue_full", "project_full", "instances_full", "overloaded"}
    assert raised == {code for _, answer, code in table().values() if answer == "busy"}
