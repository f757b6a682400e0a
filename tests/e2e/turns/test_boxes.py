"""Boxes from the outside: what turns read of them (protocol §7.2), and the verbs on boxes (§6)."""

import json
from pathlib import Path

import pytest

from tests.support.tenants import ALICE, CHANNEL, Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of, shown
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.serving.micro_service import RequestPayload, VerbRequest, handlers_of
from turnstile.bridge.verbs.handlers import Verbs
from turnstile.runtime.faults import Fault, FaultStruckError
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, new_box_id


@pytest.mark.parametrize(
    ("verb", "arguments", "code"),
    [
        ("box_fork", {}, "bad_request"),
        ("box_fork", {"box_id": "x"}, "bad_request"),
        ("box_fork", {"box_id": new_box_id(), "new_box_id": new_box_id()}, "bad_request"),
        ("box_fork", {"box_id": new_box_id()}, "unknown_box"),
        ("box_make", {}, "bad_request"),
        ("box_make", {"parts": [{"text": "a\0"}]}, "bad_request"),
        ("box_make", {"parts": [{"card_id": "none"}]}, "unknown_card"),
        ("box_make", {"parts": [{"text": "a"}, {"box_id": new_box_id()}]}, "unknown_box"),
        ("box_make", {"parts": [{"text": "x" * 600_000}]}, "text_too_large"),
        ("box_replace", {"agent_id": ALICE}, "bad_request"),
        ("box_replace", {"agent_id": "a.b", "memory_context_box_id": None}, "bad_request"),
        ("box_replace", {"agent_id": ALICE, "memory_context_box_id": "x"}, "bad_request"),
        ("box_replace", {"agent_id": ALICE, "last_output_box_id": None}, "bad_request"),
        ("box_replace", {"agent_id": "nobody", "memory_context_box_id": None}, "unknown_agent"),
        ("box_replace", {"agent_id": ALICE, "last_output_box_id": new_box_id()}, "unknown_output_box"),
    ],
)
async def test_what_is_refused(tenant: Tenant, verb: str, arguments: JsonObject, code: str) -> None:
    await tenant.agent("echo")
    reply = await tenant.client.request(verb, arguments)
    assert (reply["status"], reply["error_code"]) == ("rejected", code)


async def test_a_command_that_fails_after_its_commit_is_done_once(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails between the commit and the ack comes again, as the same command."""
    ended = (await tenant.run("echo")).view
    written, deliverable = ended.output_box_id, ended.deliverable_card_id
    verbs = handlers_of(Verbs(tenant.pool, NatsPublisher(tenant.stack.conn), depth_limit=20))
    armed = (Fault.BOX_FORKED, Fault.BOX_MADE, Fault.BOX_REPLACED)
    monkeypatch.setenv("TURNSTILE_FAULTS", ",".join(f"{point}=throw" for point in armed))
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    commands: dict[str, JsonObject] = {
        "box_fork": {"box_id": written},
        "box_make": {"parts": [{"card_id": deliverable}, {"text": "more"}]},
        "box_replace": {"agent_id": ALICE, "memory_context_box_id": written},
    }
    answers: dict[str, JsonObject] = {}
    for verb, arguments in commands.items():
        request = VerbRequest(verb, tenant.project, CHANNEL, RequestPayload(arguments), {}, "command", "1-2")
        with pytest.raises(FaultStruckError):
            await verbs[verb](request)
        answers[verb] = (await verbs[verb](request)).model_dump()
    forks = await tenant.rows("SELECT box_id::text AS box FROM boxes WHERE $1::text::uuid = ANY (parent_ids)", written)
    fork = answers["box_fork"]
    assert (fork["status"], fork["duplicate"], [fork["box_id"]]) == ("accepted", True, [row["box"] for row in forks])
    made = answers["box_make"]
    assert (made["status"], made["duplicate"], made["cards"]) == ("accepted", True, 2)
    assert answers["box_replace"]["memory_context_box_id"] == written


async def test_a_turn_reads_a_box_of_parts(tenant: Tenant) -> None:
    """What was said before, as the caller keeps it, and a question."""
    agent = await tenant.agent("echo")
    said: list[JsonObject] = [{"text": "I am Ada."}, {"text": "Hello Ada.", "type": "task.deliverable"}]
    made = await tenant.client.request("box_make", {"parts": [*said, {"text": "Who am I?"}]})
    ended = await tenant.turn(agent, None, context_box_id=made["box_id"])
    assert "Who am I?" in str(ended.deliverable())


@pytest.mark.parametrize("gone", ["expires_at = now()", "deleted_at = now()"])
async def test_a_turn_reads_nothing_that_has_expired_or_is_deleted(tenant: Tenant, gone: str) -> None:
    """Not in its memory, and not in a context that its worker has read before."""
    agent = await tenant.agent("mirror")
    first = await tenant.turn(agent, "the first thing")
    box = first.view.output_box_id
    second = await tenant.turn(agent, "the second thing", output_box_id=box, runtime_config={"remember": True})
    assert len(shown(second.deliverable())["messages"]) == 3
    await tenant.rows(
        f"UPDATE cards SET {gone} WHERE metadata ->> 'agent_turn_id' = $1",  # noqa: S608 -- words of tests
        first.view.agent_turn_id,
    )
    third = await tenant.turn(agent, "the third thing", output_box_id=box)
    assert shown(third.deliverable())["messages"] == [
        ["user", "the second thing"],
        ["assistant", second.deliverable()],
        ["user", "the third thing"],
    ]


async def test_a_context_box_is_read_as_of_the_begin_of_the_turn(tenant: Tenant) -> None:
    """Alice's context is the box that bob writes: what he adds while her turn is in hand is not hers."""
    steps = {"steps": [calling("search")]}
    async with hand_of(tenant, agent=AgentId("bob")) as hand:
        await tenant.agent("player", allowed_tools=["search"])
        bob = await tenant.enqueue(hand.agent, json.dumps(steps), runtime_config={"remember": True})
        await hand.heard()
        alice = turn_of(await tenant.enqueue(ALICE, None, context_box_id=bob.output_box_id))
        await hand.heard(2)
        await hand.report(call_of(turn_of(bob)), "what bob has found")
        assert "what bob has found" in str((await hand.ended(turn_of(bob))).deliverable())
        await hand.report(call_of(alice), "what alice has found")
        ended = await hand.ended(alice)
    told = [content for role, content in shown(ended.deliverable())["messages"] if role == "tool"]
    assert [json.loads(content) for content in told] == [
        {"status": "canceled"},
        {"status": "success", "result": "what alice has found"},
    ]
