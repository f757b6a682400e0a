"""What conversations leave where content has no place: histories, logs, events; and what agents cannot find out."""

import json
import logging
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from tests.support.pump.organism import SECRET, Errand, Order, Shout, Task
from tests.support.pump.pump import (
    Caller,
    noting_messages,
    noting_statements,
    pump_config,
)
from tests.workflows.recordings import replay
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.threads import ThreadId

pytestmark = pytest.mark.stack(pump_config(max_hops=20))

MARKER = "xyzzy-marker"


CONVERSATIONS: list[tuple[str, str | Payload]] = [
    ("shouter", Shout(text=MARKER)),
    ("worker", Order(do="ask", what=f"clerk/ask/manager/say/{MARKER}")),
    ("worker", Order(do="crash", what=MARKER)),
    ("worker", Order(do="ask", what=f"clerk/crash/{MARKER}")),
    ("worker", Order(do="exit", what=MARKER)),
    ("worker", Order(do="cancel", what=MARKER)),
    ("worker", Order(do=MARKER, what="a KeyError that quotes it")),
    ("worker", Order(do="iterate", what=f"50/{MARKER}")),
    ("manager", Task(do="forward", what="shouter")),
    ("manager", Task(do="ask", what=f"nobody/say/{MARKER}")),
    ("clerk", Errand(do="garbage", what=MARKER)),
    ("clerk", f"<errand><do>{MARKER}"),
    ("nobody", f"<{MARKER}/>"),
    ("shouter", f'{{"{MARKER}": 1}}'),
]


async def histories_of(caller: Caller, threads: list[ThreadId]) -> list[WorkflowHistory]:
    """What the engine keeps of these threads, once they are over."""
    found: list[WorkflowHistory] = []
    for thread in threads:
        handle = caller.tenant.stack.temporal.get_workflow_handle(f"thread-{thread}")
        await handle.result()
        found.append(await handle.fetch_history())
    return found


@pytest.mark.long
async def test_no_history_log_or_event_holds_content(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    """No payload, no word of an exception and no stack trace; what a listener answered is in its reply event alone."""
    caplog.set_level(logging.INFO)
    sent = [await caller.send(to, payload, correlation_id=f"c-{n}") for n, (to, payload) in enumerate(CONVERSATIONS)]
    heard = [await caller.heard(each) for each in sent]
    histories = await histories_of(caller, [ThreadId(str(each.thread_id)) for each in sent])
    for history in histories:
        raw = b"".join(event.SerializeToString() for event in history.events)
        assert MARKER.encode() not in raw
        assert SECRET.encode() not in raw
        assert b".py" not in raw
    assert len(caplog.messages) > 5
    logged = "".join(map(logging.Formatter().format, caplog.records))
    assert MARKER not in logged
    assert SECRET not in logged
    assert "Traceback" not in logged
    for each in heard:
        assert SECRET not in json.dumps(each.event)
        assert ".py" not in json.dumps(each.event)
        told = {name: value for name, value in each.event.items() if name != "payload"}
        assert MARKER not in json.dumps(told)
        assert MARKER not in json.dumps(each.headers)
    events = await caller.tenant.events(">")
    assert {event.suffix for event in events} == {"reply"}
    assert await replay(histories) == {}


async def test_an_agent_cannot_tell_a_forbidden_peer_from_one_that_is_not_there(caller: Caller) -> None:
    """The same text, chain, SQL statements in the same order, and messages on NATS."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, what in (("not there", "nobody"), ("forbidden", "shouter"), ("forbidden too", "worker")):
        ours = {str(caller.tenant.project)}
        async with noting_messages(caller) as messages:
            with noting_statements(ours) as statements:
                sent = await caller.send("manager", Task(do="forward", what=what))
                ours |= {str(sent.thread_id), str(sent.message_id)}
                said = (await caller.heard(sent)).said
                await histories_of(caller, [ThreadId(str(sent.thread_id))])
        found[name] = (said, tuple(await caller.chain(sent)), tuple(statements), tuple(messages))
    assert found["not there"][0].startswith("system SystemError routing True")
    assert len(found["not there"][2]) > 15
    assert found["forbidden"] == found["not there"]
    assert found["forbidden too"] == found["not there"]
