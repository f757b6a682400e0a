"""Whatever bytes, files and rows come in: what reads them makes a model of them or one error of ours, and soon.

Nothing here needs a server; tests/e2e/projects/test_wire_fuzz.py sends the same to a running bridge.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from nats.aio.msg import Msg
from pydantic import ValidationError

from tests.support.cpu import cheap
from tests.support.fuzz import MODELS, Dice, Report, Tally
from tests.support.memory import resident_bytes
from turnstile.bridge.inbox.doorbells import _agent
from turnstile.bridge.serving.durable_commands import read_command
from turnstile.bridge.serving.micro_service import RequestPayload, VerbRequest, read_request
from turnstile.bridge.verbs.ui_actions import read_action
from turnstile.ledger.turns.cards import card_of
from turnstile.schema.cards import (
    Card,
    FieldsSchemaContent,
    JsonContent,
    TextContent,
    ToolCallContent,
    ToolContent,
    ToolResultContent,
    content_of,
)
from turnstile.schema.errors import Refused, TurnstileError
from turnstile.schema.profiles import Profile
from turnstile.schema.pump.listeners import ListenerFile
from turnstile.schema.tools import ToolDefinition, ToolRow, options_of
from turnstile.schema.verbs import VERBS
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Wakeup
from turnstile.schema.wire.inbox import ReportPayload, TurnPayload
from turnstile.schema.wire.ui_actions import UiAction
from turnstile.settings import Settings, load_settings
from turnstile.settings.yaml_files import read_listeners, read_profile, read_tool

CONTENTS = [TextContent, JsonContent, ToolCallContent, ToolResultContent, FieldsSchemaContent, ToolContent]
ACK = "$JS.ACK.cg_cmd_v1r4.consumer.1.7.7.1795328637551839220.0"
SECONDS, FILE_SECONDS = 0.5, 5.0
"""Of CPU, for what anybody may send; and for a file of the operator's own."""
GROWTH_BYTES = 12_000_000


def message(dice: Dice, kind: str, data: bytes) -> Msg:
    """As the client library hands it over."""
    return Msg(_client=cast("Any", None), subject=dice.subject(kind), reply=ACK, data=data, headers=dice.headers())


def read_verb(dice: Dice, _: Path) -> None:
    verb = dice.pick.choice(VERBS)
    found = read_request(message(dice, f"req.sys.bridge.{verb.name}", dice.payload(verb.request)), "request", b"")
    headers.context_headers(found.headers)
    asked = VerbRequest(
        *(
            verb.name,
            found.project_id,
            found.channel_id,
            RequestPayload(dice.payload(verb.request)),
            found.headers,
            "request",
        )
    ).parse(verb.request)
    asked.model_dump_json()


def read_durable(dice: Dice, _: Path) -> None:
    verb = dice.pick.choice(VERBS)
    command = read_command(message(dice, f"cmd.sys.bridge.{verb.name}", dice.payload(MODELS[verb.name])))
    if command.fault:
        raise command.fault
    command.request.parse(verb.request)


def read_doorbell(dice: Dice, _: Path) -> None:
    (project, agent), _row = _agent(message(dice, "cmd.agent.worker_generic.wakeup", dice.payload(Wakeup)))
    subjects.agent_events_filter(project, subjects.parse("cg.v1r4.p.c.evt.x").channel_id, agent)


def read_pressed(dice: Dice, _: Path) -> None:
    pressed = read_action(message(dice, "cmd.sys.ui.action", dice.payload(UiAction)))
    if pressed.fault:
        raise pressed.fault
    action = pressed.request.parse(UiAction)
    action.digest()
    action.text_bytes()


def read_card(dice: Dice, _: Path) -> None:
    """A row as a stranger may have written it, which the ledger hands over as JSON text."""
    value: Any = dice.valid(Card) if dice.chance(0.3) else dice.bent(dice.valid(Card))
    row = {**cast("dict[str, Any]", value)} if isinstance(value, dict) else {}
    if dice.chance(0.5):
        row["content"] = dice.valid(dice.pick.choice(CONTENTS))
    columns = {name: stored(row.get(name)) for name in ("content", "metadata", "tool_calls")}
    try:
        card = card_of(cast("Any", {"card_id": stored(row.get("card_id")), "tool_call_id": None, **columns}))
    except ValidationError:
        raise Refused("protocol_violation", "a stranger's row") from None
    content_of(card)


def stored(value: object) -> str:
    """JSON as PostgreSQL can have it: without half characters."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def read_row(dice: Dice, _: Path) -> None:
    """The payload of an inbox row that a v1r4 tool has written; what does not fit is for the reader to end."""
    model = dice.pick.choice([TurnPayload, ReportPayload])
    try:
        model.model_validate_json(dice.payload(model))
    except ValidationError:
        raise Refused("protocol_violation", "a stranger's row") from None


def read_options(dice: Dice, _: Path) -> None:
    row = dice.valid(ToolRow)
    try:
        read = ToolRow.model_validate(row if dice.chance(0.3) else dice.bent(row))
    except ValidationError:
        raise Refused("protocol_violation", "a stranger's row") from None
    options_of(read)


def read_file(dice: Dice, directory: Path) -> None:
    """A tool, a profile or a list of listeners, as YAML."""
    reader, model = dice.pick.choice(
        [(read_tool, ToolDefinition), (read_profile, Profile), (read_listeners, ListenerFile)]
    )
    value = dice.valid(model) if dice.chance(0.3) else dice.bent(dice.valid(model))
    path = directory / "file.yaml"
    if dice.chance(0.7):
        path.write_text(yaml.safe_dump(value, allow_unicode=dice.chance(0.5)), encoding="utf-8", errors="replace")
    else:
        path.write_bytes(dice.encoded(value))
    reader(path)


def read_settings(dice: Dice, directory: Path) -> None:
    """A `config.toml`, the listeners of the pump among its keys."""
    section = dice.pick.choice([*Settings.model_fields])
    form = cast("Any", Settings.model_fields[section].annotation)
    given = {name: each for name, each in form().model_dump(mode="json").items() if dice.chance(0.3)}
    if dice.chance(0.7):
        given[dice.pick.choice([*form.model_fields, "nonsense"])] = dice.odd()
    lines = [f"[{section}]", *(f"{name} = {json.dumps(each, ensure_ascii=False)}" for name, each in given.items())]
    path = directory / "config.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    load_settings(path)


READERS: dict[str, tuple[int, Callable[[Dice, Path], None]]] = {
    "verb": (30, read_verb),
    "durable command": (20, read_durable),
    "doorbell": (10, read_doorbell),
    "UI action": (10, read_pressed),
    "card": (10, read_card),
    "inbox row": (8, read_row),
    "tool row": (6, read_options),
    "YAML file": (4, read_file),
    "settings": (2, read_settings),
}
"""How many of a hundred cases each reader has."""


def outcome(read: Callable[[Dice, Path], None], number: int, directory: Path) -> str:
    """`read`, or the code of the error of ours; what else is raised is a failure of the test."""
    try:
        read(Dice.of(number), directory)
    except TurnstileError as error:
        str(error).encode()  # it can be told: no half characters of what was sent
        return error.code
    return "read"


@pytest.mark.fuzz
def test_any_input_is_read_or_one_error(
    fuzz_share: Callable[[float], int], fuzz_report: Report, tmp_path: Path
) -> None:
    tally, cases = Tally(), fuzz_share(0.4)
    kinds = [kind for kind, (share, _) in READERS.items() for _ in range(share)]
    before = 0
    started = time.monotonic()
    for number in range(cases):
        kind = kinds[number % len(kinds)]
        limit = FILE_SECONDS if kind in {"YAML file", "settings"} else SECONDS
        try:
            tally.count(kind, cheap(limit, partial(outcome, READERS[kind][1], number, tmp_path)))
        except Exception as error:
            raise AssertionError(f"case {number} of {kind}") from error
        if number == cases // 2:
            before = resident_bytes()
    grown = resident_bytes() - before
    for line in [
        *tally.lines(),
        f"readers: {time.monotonic() - started:.1f} s, {grown / 1e6:+.1f} MB in the second half",
    ]:
        fuzz_report(line)
    assert grown < GROWTH_BYTES
    for kind in READERS:
        assert len(tally.codes(kind)) > 1, kind  # some are read and some refused
