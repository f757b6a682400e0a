"""Nothing that one channel of a project said or made reaches another channel of it (protocol §6, §12).

Two channels share their project, its agents and its profiles. The matrix of verbs is that of the projects
(`test_tenants`): an id of the other channel is answered like an id that nobody has. Then every way in which an agent
asks another is walked, in one channel, with an agent that has worked in the other.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.e2e.projects.test_tenants import MATRIX, OPERATOR, WORD, Case, Ids, live, of_nobody, secret
from tests.support.delegation import answer, fork, result, says, staff, steps, task
from tests.support.processes.net import STILL
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.pump.pump import pump_config
from tests.support.tenants import CHANNEL as RED
from tests.support.tenants import Ended, Tenant, new_tenant, turn_of
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.roster import add_agent
from turnstile.ledger.turns.boxes import agent_boxes
from turnstile.ledger.turns.cards import box_cards
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ChannelId, uuid7
from turnstile.schema.verbs import verb_named
from turnstile.schema.wire import subjects
from turnstile.sdk.client import BridgeClient
from turnstile.transport.json_messages import decode_object, encode

BLUE = ChannelId("u_blue")
SAID = "what red alone may read"
"""Said by red's user and its agent, and kept in its boxes."""
DUMPER, CHIEF, DORA = AgentId("dumper"), AgentId("chief"), AgentId("dora")
ROSTER = (
    *("enqueue agent_id", "enqueue profile_name", "agent.", "tool.remove", "raise_budget budget_id, a project's"),
    *("budget.get budget_id, a project's", "box_replace agent_id", "interrupt.list agent_id"),
    *("schedule.put agent_id", "schedule.put profile_name"),
    *("delegate arguments, an agent", "delegate arguments, a profile", "ledger.read"),
)
"""What the cases name is the project's, of which its channels see the same."""
TOOLS = ("report", "describe tool_call_id", "describe begins")
"""A tool serves all channels of its project, and names a call by its id alone."""
NAMES = ("correlation_id",)
"""A name for a request is the project's; that it was used is all that another channel hears."""
SAME = ("in the header",)
"""The header and the subject name one project, or agents of it."""
CASES = [case for case in MATRIX if not case.startswith((*ROSTER, *TOOLS)) and not case.endswith((*NAMES, *SAME))]
TAKEN = [case for case in MATRIX if case.endswith(NAMES)]
OF_RED = """
SELECT md5(string_agg(x.row, '|' ORDER BY x.row)) AS digest FROM (
    SELECT to_jsonb(t)::text AS row FROM state.agent_inbox t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.turn_outcomes t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.interrupts t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.channel_pointers t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.push_receivers t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.threads t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.budgets t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.conversations t WHERE t.project_id = $1 AND t.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM state.steers t JOIN state.agent_inbox i USING (agent_turn_id)
        WHERE t.project_id = $1 AND i.channel_id = $2
    UNION ALL SELECT to_jsonb(t)::text FROM public.box_cards t WHERE t.box_id::text = ANY ($3)) x
"""


@dataclass(frozen=True)
class Two:
    """A channel that asks, and another one of the same project, with what each has."""

    blue: Tenant
    ids: Ids
    red: Tenant
    its: Ids

    async def of_red(self) -> str:
        """A digest of all that is red's."""
        boxes = [self.its.context_box, self.its.output_box, self.its.asleep_box]
        [row] = await self.red.rows(OF_RED, self.red.project, RED, boxes)
        return row["digest"]


def beside(tenant: Tenant) -> Tenant:
    """The same project, asked in the channel blue."""
    return replace(tenant, client=BridgeClient(tenant.stack.conn, tenant.project, BLUE))


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """Worker and bridge, whose net does not look."""
    config = pump_config({**STILL, "bridge": {**STILL["bridge"], "ui_actions": True}})
    async with stacks.open(config) as opened, running_here(opened):
        yield opened


@pytest.fixture(scope="module")
async def two(stack: Stack) -> Two:
    """Red has lived in the project; blue has a turn that ended, and one asleep, of an agent of the same project."""
    red = new_tenant(stack)
    its, blue = await live(red), beside(red)
    long = definition(options={"suspend_timeout_seconds": 600})
    async with hand_of(blue, long, agent=DORA) as hand:
        ended = await hand.suspended(calling("search"), {"text": "blue"})
        await hand.report(call_of(ended), "blue")
        view = (await hand.ended(ended)).view
        asleep = await hand.suspended(calling("search"))
    own = replace(of_nobody(), context_box=str(view.context_box_id), output_box=str(view.output_box_id))
    return Two(blue, replace(own, ended=ended, asleep=asleep, call=call_of(asleep), agent=DORA), red, its)


async def told(two: Two, case: Case, used: Ids) -> JsonObject:
    """What blue is answered, without what is drawn anew each time."""
    declared = verb_named(case.verb)
    caller = Caller("somebody") if declared is not None and declared.caller == "must" else None
    if case.verb in ("raise_budget", "steer", "rerun", "stop"):
        caller = OPERATOR
    subject = subjects.bridge_request(two.blue.project, BLUE, case.verb, caller)
    answer = await two.blue.stack.conn.request(subject, encode(case.arguments), timeout=25, headers=dict(case.told))
    reply = decode_object(answer.data)
    if reply["status"] == "accepted" and case.verb in ("enqueue", "rerun"):
        ended = await two.blue.ended(AgentTurnId(str(reply["agent_turn_id"])))
        reply["deliverable"] = ended.deliverable()
    for drawn in ("turn_epoch", "inbox_status", "created_at", "budget"):
        reply.pop(drawn, None)
    text = json.dumps(reply)
    for var in sorted(vars(used).values(), key=len, reverse=True):
        text = text.replace(var, "ID")
    return decode_object(WORD.sub("ID", text).encode())


@pytest.mark.parametrize("case", CASES)
async def test_an_id_of_another_channel_is_an_id_of_nobody(two: Two, case: str) -> None:
    make, nobody, before = MATRIX[case], of_nobody(), await two.of_red()
    reply = await told(two, make(two.ids, two.its), two.its)
    assert reply == await told(two, make(two.ids, nobody), nobody)
    assert secret(two.red) not in json.dumps(reply)
    assert await two.of_red() == before


@pytest.mark.parametrize("case", TAKEN)
async def test_of_a_name_that_another_channel_has_used_nothing_else_is_heard(two: Two, case: str) -> None:
    before = await two.of_red()
    made = MATRIX[case](two.ids, two.its)
    reply = await two.blue.client.request(
        made.verb, made.arguments, caller=OPERATOR if made.verb in ("steer", "rerun", "raise_budget") else None
    )
    assert not {two.its.ended, two.its.context_box, two.its.output_box, two.its.card} & set(map(str, reply.values()))
    assert secret(two.red) not in json.dumps(reply)
    assert reply["status"] == "accepted" or reply["error_code"] in (
        *("correlation_conflict", "unknown_budget"),
        "unknown_schedule",  # whose turn it is to trigger is looked for first
    )
    assert await two.of_red() == before


async def test_red_itself_knows_each_of_them(two: Two) -> None:
    """Else the matrix would prove nothing."""
    its = two.its
    asked: list[tuple[str, JsonObject]] = [
        *(("describe", {"agent_turn_id": turn}) for turn in (its.asleep, its.queued, its.due, its.ended)),
        *(("describe", {"card_id": card}) for card in (its.card, its.result_card)),
        *(("box_fork", {"box_id": box}) for box in (its.context_box, its.output_box)),
        ("box_make", {"parts": [{"card_id": its.card}, {"box_id": its.output_box}]}),
        ("box_replace", {"agent_id": its.agent, "memory_context_box_id": its.context_box}),
        ("thread.describe", {"thread_id": its.thread}),
    ]
    replies = [await two.red.client.request(verb, arguments) for verb, arguments in asked]
    assert [reply["status"] for reply in replies] == ["accepted"] * len(asked)


@pytest.fixture
async def dumped(stack: Stack) -> tuple[Tenant, Tenant, Ended]:
    """Red has talked with `dumper`, which repeats what it reads; in blue, which is new, `chief` may ask anybody."""
    red = new_tenant(stack)
    await staff(red)
    await red.profile("dump", "mirror")
    await add_agent(red.pool, red.project, DUMPER, "dump")
    ended = await red.turn(DUMPER, SAID)
    return red, beside(red), ended


def child_of(ended: Ended) -> AgentTurnId:
    """The turn that its only call made."""
    return AgentTurnId(result(ended)["agent_turn_id"])


def reason(ended: Ended) -> str:
    """Why its only call was refused."""
    assert answer(ended).status == "failed"
    return result(ended)["error_detail"]["reason"]


async def read_by(tenant: Tenant, box: BoxId | None) -> str:
    """All that is in a box."""
    assert box is not None
    return json.dumps(
        [card.content for card in await tenant.pool.run(lambda conn: box_cards(conn, tenant.project, box)) or []]
    )


async def blue_asks(blue: Tenant, tool: str, arguments: JsonObject) -> Ended:
    """A turn of blue's chief that makes this call."""
    return await blue.turn(CHIEF, steps(calling((tool, arguments)), {"text": "done"}))


def asking(**fields: Any) -> JsonObject:
    """A task for `dumper`."""
    return {**task(str(DUMPER), "blue's own words"), **fields}


async def test_a_clone_has_nothing_of_another_channel(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    _, blue, _ = dumped
    assert reason(await blue_asks(blue, "delegate_async", asking(target_strategy="clone"))) == "missing_output_box"
    await blue.turn(DUMPER, "said by blue")
    child = await blue.ended(child_of(await blue_asks(blue, "delegate_async", asking(target_strategy="clone"))))
    assert SAID not in json.dumps(child.deliverable())
    assert "said by blue" in json.dumps(child.deliverable())


async def test_reuse_goes_on_in_the_box_of_its_own_channel(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    red, blue, reds = dumped
    first = await blue.ended(child_of(await blue_asks(blue, "delegate_async", asking(target_strategy="reuse"))))
    assert SAID not in json.dumps(first.deliverable())
    assert first.view.output_box_id != reds.view.output_box_id
    assert "blue's own words" not in await read_by(red, reds.view.output_box_id)
    await red.turn(DUMPER, SAID)
    second = await blue.ended(child_of(await blue_asks(blue, "delegate_async", asking(target_strategy="reuse"))))
    assert second.view.output_box_id == first.view.output_box_id
    assert SAID not in json.dumps(second.deliverable())


async def test_reuse_of_an_agent_that_is_busy_in_another_channel_waits_with_a_box_of_its_own(stack: Stack) -> None:
    red = new_tenant(stack)
    async with hand_of(red, definition(options={"suspend_timeout_seconds": 600}), agent=DUMPER) as hand:
        await staff(red)
        busy = await hand.suspended(calling("search"), {"text": SAID})
        blue = beside(red)
        ended = await blue_asks(blue, "delegate_async", {**task(str(DUMPER), says("mine")), "target_strategy": "reuse"})
        await hand.report(call_of(busy))
        child, its = await blue.ended(child_of(ended)), await hand.ended(busy)
    assert (child.deliverable(), child.view.output_box_id != its.view.output_box_id) == ("mine", True)


@pytest.mark.parametrize("strategy", ["reuse", "clone"])
async def test_a_fork_is_walled_too(dumped: tuple[Tenant, Tenant, Ended], strategy: str) -> None:
    _, blue, reds = dumped
    line = fork([asking(target_strategy=strategy)], join="all")
    ended = await blue.turn(CHIEF, steps(line, {"text": "done"}))
    assert SAID not in json.dumps([card.content for card in ended.cards])
    assert str(reds.view.output_box_id) not in json.dumps(result(ended))


@pytest.mark.parametrize("tool", ["delegate_async", "ask_expert", "launch_principal"])
async def test_a_new_agent_reads_its_callers_boxes_alone(dumped: tuple[Tenant, Tenant, Ended], tool: str) -> None:
    _, blue, reds = dumped
    given: dict[str, JsonObject] = {
        "delegate_async": task("dump", "hello"),
        "ask_expert": {"expert_profile": "dump", "question": "hello", "include_history": True, "wait": False},
        "launch_principal": {"profile_name": "dump", "instruction": "hello"},
    }
    child = await blue.ended(child_of(await blue_asks(blue, tool, given[tool])))
    assert SAID not in json.dumps(child.deliverable())
    if tool == "delegate_async":
        for box in (reds.view.output_box_id, reds.view.context_box_id):
            ended = await blue_asks(blue, tool, {**given[tool], "context_box_id": str(box)})
            assert reason(ended) == "unauthorized_box"


async def test_a_callers_own_pointers_are_those_of_its_channel(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    """`chief` has worked in red, and red has given it a memory: in blue it may pass neither on."""
    red, blue, reds = dumped
    worked = await red.turn(CHIEF, says(SAID))
    await red.client.request("box_replace", {"agent_id": CHIEF, "memory_context_box_id": str(reds.view.context_box_id)})
    for box in (worked.view.output_box_id, reds.view.context_box_id):
        ended = await blue_asks(blue, "delegate_async", {**task("dump", "hello"), "context_box_id": str(box)})
        assert reason(ended) == "unauthorized_box"


async def test_a_memory_is_its_channels(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    red, blue, reds = dumped
    given: JsonObject = {"agent_id": DUMPER, "memory_context_box_id": str(reds.view.context_box_id)}
    assert (await red.client.request("box_replace", given))["status"] == "accepted"
    assert (await blue.client.request("enqueue", {"agent_id": DUMPER}))["error_code"] == "bad_request"
    made = await blue.client.request("box_make", {"parts": [{"text": "blue's memory"}]})
    mine: JsonObject = {"agent_id": DUMPER, "memory_context_box_id": made["box_id"]}
    assert (await blue.client.request("box_replace", mine))["memory_context_box_id"] == made["box_id"]
    for tenant, words in ((blue, "blue's memory"), (red, SAID)):
        said = json.dumps((await tenant.ended(turn_of(await tenant.ask({"agent_id": DUMPER})))).deliverable())
        assert words in said
    boxes = await red.pool.run(lambda conn: agent_boxes(conn, red.project, BLUE, DUMPER))
    assert boxes.memory_context_box_id == made["box_id"]


async def test_what_box_make_makes_is_its_channels(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    red, blue, _ = dumped
    made = await red.client.request("box_make", {"parts": [{"text": SAID}]})
    copy = await red.client.request("box_fork", {"box_id": made["box_id"]})
    for box in (made["box_id"], copy["box_id"]):
        tries: list[tuple[str, JsonObject, str]] = [
            ("enqueue", {"agent_id": DUMPER, "context_box_id": box}, "unknown_context_box"),
            ("enqueue", {"agent_id": DUMPER, "instruction": "hi", "output_box_id": box}, "unknown_output_box"),
            ("box_fork", {"box_id": box}, "unknown_box"),
            ("box_make", {"parts": [{"box_id": box}]}, "unknown_box"),
            ("box_make", {"parts": [{"card_id": f"{made['box_id']}-1"}]}, "unknown_card"),
            ("box_replace", {"agent_id": DUMPER, "memory_context_box_id": box}, "unknown_context_box"),
            ("box_replace", {"agent_id": DUMPER, "last_output_box_id": box}, "unknown_output_box"),
            ("describe", {"card_id": f"{made['box_id']}-1"}, "unknown_card"),
        ]
        assert [(await blue.client.request(verb, asked))["error_code"] for verb, asked, _ in tries] == [
            code for _, _, code in tries
        ]


async def test_a_provisioned_agent_brings_its_profile_alone(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    _, blue, _ = dumped
    wanted: JsonObject = {"action": "derive", "agent_id": "twin", "derived_from": str(DUMPER), "profile_name": "dump"}
    assert result(await blue_asks(blue, "provision_agent", wanted))["status"] == "accepted"
    child = await blue_asks(blue, "delegate_async", {**task("twin", "hello"), "target_strategy": "reuse"})
    assert SAID not in json.dumps((await blue.ended(child_of(child))).deliverable())


async def test_nobody_writes_in_the_box_that_another_channel_reads(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    """What were written there before the turn begins, it would read."""
    red, blue, _ = dumped
    box = BoxId(uuid7())
    await red.rows("INSERT INTO public.boxes (box_id, tenant_id) VALUES ($1::text::uuid, $2)", box, red.project)
    writes: JsonObject = {"agent_id": CHIEF, "output_box_id": box}
    asked = await blue.ask({"agent_id": DUMPER, "context_box_id": box})
    refused = await red.client.request("enqueue", {**writes, "instruction": SAID})
    assert refused["error_code"] == "unknown_output_box"
    await blue.ended(turn_of(asked))
    assert await read_by(blue, box) == "[]"
    own = await blue.client.request("enqueue", {**writes, "instruction": says("mine")})
    assert (await blue.ended(AgentTurnId(str(own["agent_turn_id"])))).deliverable() == "mine"


async def test_of_two_channels_that_name_a_box_of_nobody_one_has_it(dumped: tuple[Tenant, Tenant, Ended]) -> None:
    """By SQL, as tools of v1r4 make boxes: no channel has it until a turn does."""
    red, blue, _ = dumped
    box = BoxId(uuid7())
    await red.rows("INSERT INTO public.boxes (box_id, tenant_id) VALUES ($1::text::uuid, $2)", box, red.project)
    asked: JsonObject = {"instruction": "hi", "output_box_id": box}
    first = await red.ask({"agent_id": DUMPER, **asked})
    second = await blue.ask({"agent_id": CHIEF, **asked})
    assert (first.error_code, second.error_code) == (None, "unknown_output_box")
