"""What Temporal is told of turns: ids and codes, as much for a long context as for a short one, and it replays."""

import logging
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from google.protobuf.json_format import MessageToJson
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from tests.e2e.scripts.python import BUG
from tests.support.processes.stack import script_names
from tests.support.tenants import Ended, Tenant, new_tenant
from tests.workflows.recordings import replay
from turnstile.schema.ids import AgentId

pytestmark = pytest.mark.shared_stack

log = logging.getLogger(__name__)
MARKER = "xyzzy-marker"
NUMBER = re.compile(r'(?<=[:\[,])\s*"?-?\d[\d.]*"?(?=\s*[,}\]])')
"""In JSON: a count, a time or an age. It may have a digit more; nothing else may differ."""


def shown(event: HistoryEvent) -> str:
    """An event as JSON, payloads readable, each number and time 0."""
    readable = re.sub(
        r'(?<="data": )"([\w+/=]*)"', lambda found: b64decode(found[1]).decode(), MessageToJson(event, indent=None)
    )
    return NUMBER.sub("0", re.sub(r'"[\dT:-]+(\.\d+)?Z"', "0", readable))


def sizes(history: WorkflowHistory, of: Callable[[HistoryEvent], int]) -> list[int]:
    """The whole, then each step from its beginning to the next one's."""
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    starts = [index for index, event in enumerate(history.events) if event.event_type == kind]
    parts = [history.events, *(history.events[first:last] for first, last in pairwise(starts))]
    return [sum(of(event) for event in part) for part in parts]


async def test_history_bytes_do_not_depend_on_the_context(tenant: Tenant) -> None:
    found: dict[int, list[int]] = {}
    for size in (1_000, 500_000):
        agent = await tenant.agent(
            "three_steps", AgentId(f"agent-{size:06}"), system_prompt_template="You are {agent_id}."
        )
        ended = await tenant.turn(agent, "x" * size)
        assert len(ended.steps) == 3
        assert sum(len(str(card.content)) for card in ended.cards) > 3 * size
        history = await tenant.stack.history(ended.view.agent_turn_id)
        found[size] = sizes(history, lambda event: len(shown(event)))
        whole, *steps = sizes(history, lambda event: event.ByteSize())
        log.info("%d bytes of context: %d bytes of history, steps %s", size, whole, steps)
        assert len(steps) == 2
        assert max(steps) < 1_500
    assert found[1_000] == found[500_000]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["buggy", "three_steps", "nosuch", *script_names()[::4]], id="some"),
        pytest.param([*script_names(), "buggy", "three_steps", "nosuch"], id="every-script", marks=pytest.mark.long),
    ],
)
async def test_no_history_holds_content_and_each_replays(
    tenant: Tenant, caplog: pytest.LogCaptureFixture, names: Sequence[str]
) -> None:
    """No card text, prompt, answer, argument or error of any scripted turn; not even of an exception."""
    prompt = f"The prompt says {MARKER}."
    fields = [{"name": "answer", "description": f"the field says {MARKER}"}]
    ended: dict[str, Ended] = {}
    for name in names:
        own = new_tenant(tenant.stack)
        agent = await own.agent(name, system_prompt_template=prompt, max_steps=3)
        metadata = {"note": f"metadata says {MARKER}"}
        ended[name] = await own.turn(agent, f"do as {MARKER} says", result_fields=fields, metadata=metadata)
    texts = {MARKER, BUG, "come back later", "the script says so"}
    for each in ended.values():
        for card in each.cards:
            texts |= set(prose(card.content))
            texts |= {call.arguments for call in card.tool_calls or [] if " " in call.arguments}
        texts |= {each.view.error} if each.view.error else set()
    assert len(texts) > len(names)
    histories = {name: await tenant.stack.history(each.view.agent_turn_id) for name, each in ended.items()}
    for name, history in histories.items():
        raw = b"".join(event.SerializeToString() for event in history.events)
        assert {text for text in texts if text.encode() in raw} == set(), name
        assert (b"RuntimeError" in raw) == (name == "buggy")  # the failure is there, by its type
    assert BUG not in caplog.text
    assert len(histories) == len(names) > 6
    assert await replay(list(histories.values())) == {}


def prose(value: JsonValue) -> Iterator[str]:
    """The strings in a card's content that are sentences, not ids or codes."""
    match value:
        case str() if re.search(r"\w \w", value):
            yield value
        case list():
            for item in value:
                yield from prose(item)
        case dict():
            for item in value.values():
                yield from prose(item)
        case _:
            return
