"""Whatever is sent to the pump: nothing crashes or hangs, what is accepted is answered once, nobody is given away.

`--fuzz-cases` says how many (tests/conftest.py).
"""

import asyncio
import base64
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.paths import ROOT
from tests.support.processes.process import Processes, TurnstileProcess
from tests.support.processes.stack import Stack
from tests.support.pump.pump import Caller, assert_threads, calling_in, pump_config
from tests.support.tenants import CHANNEL
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import uuid7
from turnstile.schema.pump.primitives import CORE_NAMESPACE
from turnstile.schema.wire import headers
from turnstile.transport.connection import NATS_TROUBLE
from turnstile.transport.json_messages import decode_object

pytestmark = pytest.mark.stack(pump_config())

AT_ONCE, VOLLEY = 24, 100
GROWTH_MB = 48
NAMES = ["worker", "clerk", "manager", "shouter", "relay", "return"]
VALID = [
    "<shout><text>hi</text></shout>",
    "<order><do>say</do><what>x</what></order>",
    "<order><do>forward</do><what>nobody</what></order>",
    "<order><do>iterate</do><what>2</what></order>",
    "<order><do>ask</do><what>clerk/say/deep</what></order>",
    "<order><do>nothing</do></order>",
    "<errand><do>stray_response</do></errand>",
    "<task><do>tell</do></task>",
    "<task><do>forward</do><what>shouter</what></task>",
    "<relay><left>3</left></relay>",
]
SNIPPETS = [
    *("<", ">", "&", "&lt;", "&#0;", "&#x1F600;", "<!--", "-->", "<![CDATA[", "]]>", "<?x ?>", "<!DOCTYPE a>", "&e;"),
    *(
        "</text>",
        "<text>",
        "\x00",
        "\x01",
        "\ufffe",
        "\ud800",
        "\U0001f600",
        "```",
        "\n",
        "\t",
        "{",
        "}",
        '"',
        "%s",
        "\\",
    ),
    *(' xmlns="urn:x"', f'<huh xmlns="{CORE_NAMESPACE}"/>', "-1", "1e999", "9" * 400, "a" * 3_000),
]


ODD: list[Any] = [None, 1, [], ["<shout/>"], {}, {"text": {"text": []}}, "", "{", '{"text": 1}', "[]"]


@dataclass(frozen=True)
class Shot:
    """A message as it goes over the wire."""

    data: bytes
    headers: dict[str, str]
    is_command: bool


class Fuzz:
    """Makes messages: the same ones for the same seed."""

    def __init__(self, seed: int, threads: list[str]) -> None:
        self._random = random.Random(seed)  # noqa: S311 -- nothing secret
        self._threads = threads
        """Known ones, of which the test adds more."""

    def shot(self) -> Shot:
        """The next message."""
        kind = self._random.random()
        if kind < 0.1:
            data = self._random.randbytes(self._random.randrange(200))
        elif kind < 0.2:
            data = self._mangled(json.dumps(self._arguments())).encode("utf-8", "surrogatepass")
        else:
            data = json.dumps(self._arguments()).encode()
        return Shot(data, self._headers(), self._random.random() < 0.25)

    def _arguments(self) -> JsonObject:
        pick = self._random
        asked: JsonObject = {"to": pick.choice([*NAMES, "worker", "shouter", self._word()]), "payload": self._payload()}
        if pick.random() < 0.2:
            asked["thread_id"] = pick.choice([*self._threads[-20:], uuid7(), self._word()])
        if pick.random() < 0.1:
            asked["correlation_id"] = pick.choice(["c-1", "c-2", self._word()])
        if pick.random() < 0.05:
            asked["reply_to"] = pick.choice(["_INBOX.x.y", "cg.v1r4.p.public.evt.sys.pump.reply", self._word()])
        if pick.random() < 0.05:
            asked[self._word() or "x"] = self._word()
        if pick.random() < 0.05:
            asked.pop(pick.choice([*asked]))
        return asked

    def _payload(self) -> Any:
        pick = self._random
        kind = pick.random()
        if kind < 0.35:
            return pick.choice(VALID)
        if kind < 0.7:
            return self._mangled(pick.choice(VALID))
        if kind < 0.8:
            return {"text": self._word()}
        if kind < 0.9:
            return self._word()
        return pick.choice(ODD)

    def _headers(self) -> dict[str, str]:
        pick = self._random
        if pick.random() < 0.8:
            return {}
        name = pick.choice([headers.SENDER, headers.DEPTH, headers.PROJECT_ID, headers.TRACEPARENT, headers.THREAD_ID])
        value = pick.choice(["system", "clerk", "3", "-1", "00-x-y-01", "a b", "x" * 300, "p-other"])
        return {name: value, **({headers.SENDER: "another"} if pick.random() < 0.2 else {})}

    def _mangled(self, text: str) -> str:
        pick = self._random
        for _ in range(pick.randrange(1, 4)):
            at, length = pick.randrange(len(text) + 1), pick.choice([0, 0, 1, 5])
            text = text[:at] + pick.choice([*SNIPPETS, ""]) + text[at + length :]
        return text

    def _word(self) -> str:
        return "".join(self._random.choice([*"abc-_.*> ", *SNIPPETS]) for _ in range(self._random.randrange(4)))


@pytest.fixture
async def processes(module_processes: Processes) -> Processes:
    """Both of them running, with the organism where they find it."""
    for process in (module_processes.worker, module_processes.bridge):
        process.env = {"PYTHONPATH": str(ROOT)}
    await module_processes.ensure()
    return module_processes


@pytest.fixture
async def caller(stack: Stack, processes: Processes) -> AsyncIterator[Caller]:
    """A client of these processes."""
    assert processes.worker.pid != processes.bridge.pid
    async with calling_in(stack) as caller:
        yield caller


def megabytes(process: TurnstileProcess) -> float:
    """The resident set of a process."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def fire(caller: Caller, shot: Shot, request_id: str) -> JsonObject | None:
    """The reply to a request; a command is stored, and answered by an event."""
    conn = caller.tenant.stack.conn
    subject = f"cg.v1r4.{caller.tenant.project}.{CHANNEL}.{'cmd' if shot.is_command else 'req'}.sys.bridge.send"
    try:
        if shot.is_command:
            await conn.store(subject, shot.data, headers={**shot.headers, headers.MSG_ID: request_id}, timeout=10)
            return None
        answer = await conn.request(subject, shot.data, timeout=30, headers=shot.headers)
    except NATS_TROUBLE as error:
        raise AssertionError(f"no answer to {shot}") from error
    return decode_object(answer.data)


def check_reply(shot: Shot, reply: JsonObject) -> None:
    """What `send` answers is a closed word, and names nobody who was not named to it."""
    assert reply["status"] in {"accepted", "rejected", "busy"}, (shot, reply)
    if reply["status"] != "accepted":
        codes = {"bad_request", "text_too_large", "unknown_thread", "correlation_conflict", "busy"}
        assert reply["error_code"] in codes, (shot, reply)
        sent = shot.data.decode("utf-8", "replace") + str(shot.headers)
        assert not [name for name in NAMES if name in str(reply["error"]) and name not in sent], (shot, reply)


@pytest.mark.fuzz
async def test_messages_of_any_kind(
    caller: Caller,
    processes: Processes,
    fuzz_share: Callable[[float], int],
    fuzz_report: Callable[[str], None],
    stack: Stack,
) -> None:
    count = fuzz_share(0.04)
    threads: list[str] = []
    fuzz = Fuzz(seed=count, threads=threads)
    accepted: set[str] = set()
    slots = asyncio.Semaphore(AT_ONCE)
    commands = 0

    async def one(number: int, shot: Shot) -> None:
        async with slots:
            reply = await fire(caller, shot, f"{caller.tenant.project}-{number}")
        if reply is not None:
            check_reply(shot, reply)
            if reply["status"] == "accepted":
                accepted.add(str(reply["message_id"]))
                threads.append(str(reply["thread_id"]))

    async def volley(numbers: range) -> int:
        shots = [(number, fuzz.shot()) for number in numbers]
        await asyncio.gather(*(one(number, shot) for number, shot in shots))
        return sum(shot.is_command for _, shot in shots)

    commands += await volley(range(VOLLEY))
    await until(lambda: all_answered(caller, accepted), 60, "what was accepted is answered")
    both = (processes.worker, processes.bridge)
    before = [megabytes(process) for process in both]
    for first in range(VOLLEY, count, VOLLEY):
        commands += await volley(range(first, min(count, first + VOLLEY)))
        await until(lambda: all_answered(caller, accepted), 60, "what was accepted is answered", pause=0.1)
    acks = await until(lambda: answers(caller, commands), 60, "the commands are answered", pause=0.5)
    accepted |= {str(ack["message_id"]) for ack in acks if ack["status"] == "accepted"}
    await until(lambda: all_answered(caller, accepted), 120, "what was accepted is answered")
    after = [megabytes(process) for process in both]
    fuzz_report(
        f"pump: {count} messages, {len(accepted)} accepted; worker {before[0]:.0f} MB, then {after[0]:.0f};"
        f" bridge {before[1]:.0f} MB, then {after[1]:.0f}"
    )
    assert len(accepted) > count / 4
    assert all(now - then < GROWTH_MB for then, now in zip(before, after, strict=True))
    stored = await caller.stored()
    assert sorted(stored) == sorted(accepted)
    for heard in (each for message in caller.events.values() for each in message):
        check_payload(heard.payload)
    for process in both:
        assert "Traceback" not in process.says()
        assert "failed; see" not in process.says()
    async with stack.pool.connection() as conn:
        await assert_threads(conn)


def check_payload(payload: str | None) -> None:
    """An answer of the organism's, or one of the pump's, whose words are always the same."""
    if payload is None or payload.startswith(("<done>", "<shouted>", "<relayed>", "<stray>", "<SystemError xmlns=")):
        return
    start = f'<huh xmlns="{CORE_NAMESPACE}"><error>Invalid payload structure</error><original-attempt>'
    assert payload.startswith(start), payload
    base64.b64decode(payload.removeprefix(start).removesuffix("</original-attempt></huh>"), validate=True)


async def all_answered(caller: Caller, accepted: set[str]) -> bool:
    return accepted <= caller.events.keys()


async def answers(caller: Caller, count: int) -> list[JsonObject]:
    """The answers to all commands, or nothing yet."""
    found = [event.payload for event in await caller.tenant.events("sys.bridge.send_ack")]
    return found if len(found) >= count else []
