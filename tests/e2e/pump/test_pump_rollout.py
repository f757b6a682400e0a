"""Two workers of one target with different listeners, as at a rolling deploy: each takes what it has (protocol §9)."""

import asyncio
import dataclasses
import logging
import re

import pytest

from tests.support.conditions import until
from tests.support.processes.stack import Stack, running_here
from tests.support.pump.pump import Caller, pump_config
from turnstile.doctor.examine import examine
from turnstile.processes.run import run_worker
from turnstile.schema.pump.threads import LISTENER_SILENT_SECONDS

BEFORE, AFTER = "tests.support.pump.rollout_before", "tests.support.pump.rollout_after"
MESSAGES = 20


# A stack with the listeners of before the change.
pytestmark = pytest.mark.stack(pump_config(listeners=[BEFORE]))


def after_the_change(stack: Stack) -> Stack:
    """The same stack as a worker of the program after the change sees it."""
    settings = stack.settings
    pump = settings.pump.model_copy(update={"listeners": [AFTER]})
    return dataclasses.replace(stack, settings=settings.model_copy(update={"pump": pump}))


async def test_a_message_is_handled_by_a_worker_that_has_its_listener(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where its answer is a payload that the other worker does not know."""
    caplog.set_level(logging.INFO)
    stack = caller.tenant.stack
    async with running_here(after_the_change(stack), run_worker):
        found = [await caller.send("guest", "<query><text>x</text></query>") for _ in range(MESSAGES)]
        hosted = [await caller.send("host", "<ask><text>x</text></ask>") for _ in range(MESSAGES)]
        answers = [await caller.heard(each) for each in found]
        assert {answer.payload for answer in answers} == {"<found><text>found by guest</text></found>"}
        said = {each.payload for each in await asyncio.gather(*(caller.heard(each) for each in hosted))}
        assert said <= {"<told><text>by itself</text></told>", "<told><text>found by guest</text></told>"}
    lines = [record.getMessage() for record in caplog.records]
    target = stack.settings.pump.worker_target
    assert f"this worker of {target} has the listeners guest, host" in lines
    assert not [line for line in lines if "failed" in line]


async def test_a_message_waits_for_a_listener_that_was_served_until_now(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that starts again is no reason to answer that there is no such listener; one that is gone is.

    Meanwhile the safety net and `doctor` tell of it.
    """
    stack = caller.tenant.stack
    async with stack.pool.connection() as conn:
        served = await conn.fetch("SELECT instance FROM state.workers WHERE 'guest' = ANY (listeners)")
        assert len(served) == 1, "the worker of the other test"
    async with stack.pool.connection() as conn:
        await conn.execute(
            "UPDATE state.workers SET last_seen_at = last_seen_at - interval '31 s' WHERE 'guest' = ANY (listeners)"
        )
    sent = await caller.send("guest", "<query><text>x</text></query>")
    target = stack.settings.pump.worker_target
    told = rf"listener 'guest': 1 messages wait, for up to \d+ s: none of 1 workers of '{target}' has it"

    async def is_told() -> bool:
        return any(re.fullmatch(told, record.getMessage()) for record in caplog.records)

    await until(is_told, 25, "the safety net tells of it")
    assert [message.status for message in await caller.messages(sent)] == ["pending"]
    checks = [each for each in await examine(after_the_change(stack).settings, None, ()) if each.name == "listeners"]
    assert [check.status for check in checks] == ["fail", "warn"]
    assert re.fullmatch(told, checks[0].says)
    assert checks[1].says == f"no worker of '{target}' has guest"
    [healthy] = [each for each in await examine(stack.settings, None, ()) if each.says.startswith(f"'{target}'")]
    assert (healthy.status, healthy.says) == ("ok", f"'{target}' has host")
    async with stack.pool.connection() as conn:
        await conn.execute(
            "UPDATE state.workers SET last_seen_at = last_seen_at - make_interval(secs => $1)"
            " WHERE 'guest' = ANY (listeners)",
            LISTENER_SILENT_SECONDS,
        )
    heard = await caller.heard(sent)
    assert (heard.reason, heard.payload is not None and heard.payload.startswith("<huh")) == ("undelivered", True)
