"""`box_fork`, `box_make` and `box_replace` from the outside (protocol §6): refusals, and a command that comes twice."""

from pathlib import Path

import pytest

from tests.support.tenants import ALICE, CHANNEL, Tenant
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.verbs.handlers import Verbs
from turnstile.bridge.verbs.micro_service import Payload, VerbRequest
from turnstile.runtime.faults import Fault, FaultStruckError
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import new_box_id


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
    verbs = Verbs(tenant.pool, NatsPublisher(tenant.stack.conn), depth_limit=20).handlers()
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
        request = VerbRequest(verb, tenant.project, CHANNEL, Payload(arguments), {}, "command", "1-2")
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
