"""Conversations from the outside, bytes in, bytes out: what a handler returns, is told and hears (protocol §9)."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.processes.stack import Stack
from tests.support.pump.organism import Errand, Order, Shout, Task
from tests.support.pump.pump import Caller, Heard, assert_threads, calling_in, pump_config
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.peers import RESPONSE_WARNING
from turnstile.schema.pump.primitives import (
    CORE_NAMESPACE,
    INVALID_STRUCTURE,
    REJECTED,
    TIMED_OUT,
    UNDELIVERABLE,
)

pytestmark = pytest.mark.stack(pump_config())

OUTSIDE = "external:client"
TIMEOUT = (
    f'<SystemError xmlns=""><code>timeout</code><message>{TIMED_OUT}</message>'
    "<retry-allowed>false</retry-allowed></SystemError>"
)


@pytest.fixture
async def caller(here: Stack) -> AsyncIterator[Caller]:
    """A client in a project of its own; when the test ends, what protocol §9 says holds, and each answer came once."""
    async with calling_in(here) as caller:
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)

        async def kept() -> bool:
            return len(await caller.stored()) >= len(caller.events)

        await until(kept, 25, "the stream has every answer that was heard")  # who listens may hear it first
        stored = await caller.stored()
        assert sorted(stored) == sorted(set(stored)) == sorted(caller.events)


def huh(attempt: bytes) -> str:
    """The answer to what cannot be processed."""
    text = base64.b64encode(attempt).decode()
    return (
        f'<huh xmlns="{CORE_NAMESPACE}"><error>{INVALID_STRUCTURE}</error>'
        f"<original-attempt>{text}</original-attempt></huh>"
    )


def answered(heard: Heard) -> tuple[str, str, str | None, str | None]:
    """Kind, reason, sender and payload."""
    return heard.kind, heard.reason, heard.sender, heard.payload


# The return table.


async def test_a_response_goes_back_to_the_outside(caller: Caller) -> None:
    heard = await caller.ask("shouter", "<shout><text>hi &amp; bye</text></shout>")
    assert answered(heard) == ("reply", "responded", "shouter", "<shouted><text>HI &amp; BYE</text></shouted>")


async def test_a_forward_to_a_name_makes_a_segment_below(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="forward", what="shouter"))
    assert (await caller.heard(sent)).said == "shouter shouted HELLO"
    assert await caller.chain(sent) == [
        f"{OUTSIDE} > {OUTSIDE}.worker request handled forward",
        f"worker > {OUTSIDE}.worker.shouter request handled respond",
        f"shouter > {OUTSIDE}.worker response handled respond",
    ]


async def test_a_forward_without_a_name_goes_where_the_root_tag_says(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="tag"))
    assert (await caller.heard(sent)).said == "shouter shouted BY ITS TAG"
    assert (await caller.messages(sent))[1].chain == f"{OUTSIDE}.worker.shouter"


async def test_each_hop_answers_the_one_above_it(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="ask", what="clerk/ask/manager/ask/clerk/say/deep"))
    heard = await caller.heard(sent)
    assert heard.said.count("said") == 6  # each of the three above the last has said what it heard
    assert [line.chain.removeprefix(f"{OUTSIDE}.") for line in await caller.messages(sent)] == [
        "worker",
        "worker.clerk",
        "worker.clerk.manager",
        "worker.clerk.manager.clerk",
        "worker.clerk.manager",
        "worker.clerk",
        "worker",
    ]


async def test_nothing_returned_ends_the_thread(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="nothing"))
    assert answered(await caller.heard(sent)) == ("ended", "ended", None, None)


async def test_nothing_returned_below_ends_the_chain_for_the_outside(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="ask", what="clerk/nothing/"))
    assert answered(await caller.heard(sent)) == ("ended", "ended", None, None)
    assert (await caller.chain(sent))[-1] == f"worker > {OUTSIDE}.worker.clerk request handled nothing"


@pytest.mark.parametrize("order", [Order(do="iterate", what="3"), Order(do="self")], ids=["by its tag", "by name"])
async def test_a_self_call_changes_neither_chain_nor_thread_id(caller: Caller, order: Order) -> None:
    sent = await caller.send("worker", order)
    said = (await caller.heard(sent)).said
    assert said == "True worker True"
    lines = await caller.messages(sent)
    assert {line.chain for line in lines} == {f"{OUTSIDE}.worker"}
    assert len({line.segment_id for line in lines}) == 1
    assert [line.kind for line in lines] == ["request", *["self"] * (len(lines) - 1)]


# What a handler is told.


async def metadata_of(caller: Caller, *path: str, **fields: Any) -> dict[str, Any]:
    """What the last of these listeners is told when each asks the next."""
    do, what = "tell", ""
    for name in reversed(path[1:]):
        do, what = "ask", f"{name}/{do}/{what}"
    payload = {"worker": Order, "clerk": Errand, "manager": Task}[path[0]](do=do, what=what)
    said = (await caller.ask(path[0], payload, **fields)).said
    for _ in path[1:]:
        said = json.loads(said.partition(" said ")[2])["said"]
    return json.loads(said)


async def test_metadata_of_a_plain_handler(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="tell"))
    told = json.loads((await caller.heard(sent)).said)
    [line] = await caller.messages(sent)
    assert told == {
        "thread_id": line.segment_id,
        "from_id": OUTSIDE,
        "own_name": None,
        "is_self_call": False,
        "usage_instructions": "",
    }
    assert told["thread_id"] not in {sent.thread_id, sent.message_id}


async def test_a_handler_finds_nothing_in_its_context(caller: Caller) -> None:
    """Neither the thread's id nor the activity that runs it."""
    assert (await caller.ask("worker", Order(do="pry"))).said == "[]"


async def test_only_the_previous_hop_is_told(caller: Caller) -> None:
    told = await metadata_of(caller, "worker", "manager", "clerk")
    assert (told["from_id"], told["own_name"]) == ("manager", None)
    assert "worker" not in json.dumps(told)
    assert OUTSIDE not in json.dumps(told)


async def test_an_agent_is_told_its_name_its_peers_and_the_warning(caller: Caller) -> None:
    told = await metadata_of(caller, "worker", "manager")
    assert (told["from_id"], told["own_name"]) == ("worker", "manager")
    assert RESPONSE_WARNING in told["usage_instructions"]
    assert "# clerk" in told["usage_instructions"]
    assert "<errand>" in told["usage_instructions"]
    assert "shouter" not in told["usage_instructions"]


async def test_thread_ids_along_a_chain_are_opaque_and_unequal(caller: Caller) -> None:
    sent = await caller.send("worker", Order(do="ask", what="clerk/ask/manager/say/x"))
    await caller.heard(sent)
    lines = await caller.messages(sent)
    ids = {line.segment_id for line in lines}
    assert len(ids) == 3
    names = {"worker", "clerk", "manager", str(caller.tenant.project), str(sent.thread_id), str(sent.message_id)}
    assert not [each for each in ids for name in names if name in each]
    prefixes = {each[:8] for each in ids | {str(sent.thread_id)}}
    assert len(prefixes) == 4  # random from the first character: no time, no counter


# What is in the way: `SystemError` and `huh`.


@pytest.mark.parametrize(
    ("to", "payload", "said"),
    [
        ("worker", Order(do="forward", what="nobody"), f"system SystemError routing True {UNDELIVERABLE}"),
        ("worker", Order(do="stray"), f"system SystemError routing True {UNDELIVERABLE}"),
        ("manager", Task(do="forward", what="shouter"), f"system SystemError routing True {UNDELIVERABLE}"),
        ("manager", Task(do="tag"), f"system SystemError routing True {UNDELIVERABLE}"),
        ("manager", Task(do="forward", what="nobody"), f"system SystemError routing True {UNDELIVERABLE}"),
        ("worker", Order(do="system"), f"system SystemError validation True {REJECTED}"),
        ("worker", Order(do="system_response"), f"system SystemError validation True {REJECTED}"),
        ("worker", Order(do="huh"), f"system SystemError validation True {REJECTED}"),
        ("worker", Order(do="misfit"), f"system SystemError routing True {UNDELIVERABLE}"),
        ("worker", Order(do="stray_self"), f"system huh {INVALID_STRUCTURE} <stray><text></text></stray>"),
        ("worker", Order(do="ask", what="clerk/crash/"), "clerk SystemError timeout False " + TIMED_OUT),
        ("worker", Order(do="ask", what="clerk/garbage/"), "clerk SystemError timeout False " + TIMED_OUT),
        ("worker", Order(do="ask", what="clerk/exit/"), "clerk SystemError timeout False " + TIMED_OUT),
        ("worker", Order(do="ask", what="clerk/cancel/"), "clerk SystemError timeout False " + TIMED_OUT),
        ("worker", Order(do="ask", what="clerk/stray_response/"), f"system SystemError validation True {REJECTED}"),
    ],
    ids=[
        "unknown name",
        "unknown tag",
        "no peer",
        "no peer by its tag",
        "unknown name, by an agent",
        "a message of the pump sent",
        "a message of the pump as response",
        "huh as response",
        "another's payload",
        "an unknown payload to itself",
        "exception",
        "no response",
        "exit",
        "cancellation",
        "an unknown payload as response",
    ],
)
async def test_a_sender_hears_what_was_in_the_way_and_lives_on(
    caller: Caller, to: str, payload: Payload, said: str
) -> None:
    assert (await caller.ask(to, payload)).said == said


async def test_an_agent_may_call_its_peers_and_itself(caller: Caller) -> None:
    assert (await caller.ask("manager", Task(do="ask", what="clerk/say/yes"))).said.startswith("clerk said")
    assert (await caller.ask("manager", Task(do="ask", what="manager/say/me"))).said == "me"


async def test_a_crash_and_a_deadline_are_a_timeout_for_the_outside(caller: Caller) -> None:
    """Whether the handler hears that it is to end or not."""
    sent = [await caller.send("worker", Order(do=do)) for do in ("crash", "sleep", "cling")]
    for each in sent:
        assert answered(await caller.heard(each)) == ("reply", "undelivered", "worker", TIMEOUT)


@pytest.mark.parametrize(
    ("to", "payload"),
    [
        ("nobody", "<shout><text>hi</text></shout>"),
        ("shouter", "<shout><words>hi</words></shout>"),
        ("shouter", "<order><do>say</do></order>"),
        ("shouter", "<nosuch/>"),
        ("shouter", "no XML"),
        ("shouter", ""),
    ],
    ids=["no such listener", "wrong schema", "another's payload", "unknown payload", "no XML", "nothing"],
)
async def test_the_outside_hears_huh(caller: Caller, to: str, payload: str) -> None:
    heard = await caller.ask(to, payload)
    assert answered(heard) == ("reply", "undelivered", to, huh(payload.encode()))


async def test_huh_gives_back_no_more_than_a_piece_of_what_is_large(caller: Caller) -> None:
    payload = "<shout>" + "x" * 100_000
    heard = await caller.ask("shouter", payload)
    assert heard.payload == huh(payload[:4096].encode())


async def test_a_large_payload_goes_through(caller: Caller) -> None:
    heard = await caller.ask("shouter", Shout(text="y" * 400_000))
    assert heard.payload == f"<shouted><text>{'Y' * 400_000}</text></shouted>"


# Introspection.


async def test_operators_list_listeners_peers_and_schemas(caller: Caller) -> None:
    client = caller.tenant.client

    async def listed() -> Any:
        reply: Any = await client.request("listener.list", {})
        return reply if reply["listeners"] else None

    every = await until(listed, 25, "a worker has declared its listeners")
    found = {each["listener"]: each for each in every["listeners"]}
    shouter = found["shouter"]
    assert (shouter["root_tag"], shouter["is_agent"], shouter["agent_id"], shouter["workers"]) == (
        "shout",
        False,
        None,
        1,
    )
    assert {each["xsd"] for each in found.values()} == {None}
    agents = {name: each["peers"] for name, each in found.items() if each["is_agent"]}
    assert agents
    assert all(set(peers) <= found.keys() for peers in agents.values())
    one: Any = await client.request("listener.list", {"listener": "shouter"})
    [shouter] = one["listeners"]
    assert shouter["xsd"] == Shout.xsd().decode()
    every: Any = await client.request("listener.list", {"xsd": True})
    assert all(each["xsd"].startswith("<xs:schema") for each in every["listeners"])
    for asked, code in (({"listener": "nobody"}, "unknown_listener"), ({"listener": "a.b"}, "bad_request")):
        refused = await client.request("listener.list", {**asked})
        assert (refused["status"], refused["error_code"]) == ("rejected", code)
